// Record, replay and adjoint of an ensemble that has everything: forwards and backwards, short and
// long trajectories, failed ones, padded output times, a pack that is not full.
//
// The program prints a digest of each result, which must not depend on the number of lanes.

#include <vector>

#include "check.h"
#include "gs/host.h"
#include "problems.h"

namespace {

constexpr int kLanes = 2 * gs::kGroup + 11, kDim = 3, kOutputTimesEach = 4;
constexpr int kMaxSteps = 300, kCapacity = 300;
constexpr int kNanLane = 4, kLongLane = 9;

using Numbers = std::vector<double>;
using Counts = std::vector<int32_t>;

struct Ensemble {
  Numbers y0, t0, t1, ts, dt0, sigma, rho, beta;

  explicit Ensemble(bool with_failures) : dt0{0.005}, rho{28.0}, beta{8.0 / 3} {
    for (int i = 0; i < kLanes; ++i) {
      for (int c = 0; c < kDim; ++c) y0.push_back(1.0 + 0.3 * c + 0.001 * i);
    }
    for (int i = 0; i < kLanes; ++i) {
      const bool backwards = i % 3 == 1;
      t0.push_back(backwards ? 0.1 : 0.002 * i);
      t1.push_back(backwards ? -0.05 - 0.0001 * i : t0[i] + 0.1 + 0.15 * (i % 5));
      sigma.push_back(10 + 0.002 * i);
    }
    for (int m = 0; m < kOutputTimesEach; ++m) {
      for (int i = 0; i < kLanes; ++i) {
        const double theta = double(m) / (kOutputTimesEach - 1);
        const bool last = m == kOutputTimesEach - 1;
        ts.push_back(last ? (i % 4 == 2 ? INFINITY : t1[i]) : t0[i] + theta * (t1[i] - t0[i]));
      }
    }
    if (with_failures) {
      y0[kNanLane * kDim] = NAN;
      t1[kLongLane] = 1e3;  // too long for so many steps; output times stay where they are
    }
  }
};

// What is in memory before anything is written to it.
constexpr double kLeftOver = 1e300;

struct Recording {
  Numbers y1, ys, times, checkpoints;
  Counts accepted, rejected, status;
  std::vector<uint8_t> unfinished;
  std::vector<uint32_t> taken;
};

template <int N>
gs::LeafArguments<N> leaves_of(Ensemble& e) {
  return {{{e.sigma.data(), 1}, {e.rho.data(), 0}, {e.beta.data(), 0}}};
}

template <class P>
Recording run_record(Ensemble& e, int every, int64_t threads, int capacity = kCapacity,
                     bool by_attempts = false) {
  const int blocks = (kCapacity + every - 1) / every;
  Recording r{Numbers(kDim * kLanes),
              Numbers(kOutputTimesEach * kDim * kLanes),
              Numbers((kCapacity + 1) * kLanes),
              Numbers(blocks * kDim * kLanes, kLeftOver),
              Counts(kLanes),
              Counts(kLanes),
              Counts(kLanes),
              std::vector<uint8_t>(kLanes),
              std::vector<uint32_t>((kCapacity + 31) / 32 * kLanes, ~0u)};
  const gs::RecordArguments<P::num_leaves> arguments{kLanes,
                                                     kMaxSteps,
                                                     capacity,
                                                     kOutputTimesEach,
                                                     every,
                                                     e.y0.data(),
                                                     {e.t0.data(), 1},
                                                     {e.t1.data(), 1},
                                                     {e.ts.data(), 1},
                                                     {e.dt0.data(), 0},
                                                     r.y1.data(),
                                                     r.ys.data(),
                                                     r.times.data(),
                                                     r.accepted.data(),
                                                     r.rejected.data(),
                                                     r.status.data(),
                                                     r.unfinished.data(),
                                                     r.checkpoints.data(),
                                                     by_attempts ? r.taken.data() : nullptr,
                                                     leaves_of<P::num_leaves>(e)};
  gs::record_on_host<P>(arguments, threads);
  return r;
}

struct Replayed {
  Numbers y1, ys, checkpoints;
};

template <class P>
Replayed run_replay(Ensemble& e, const Recording& r, int every, int64_t threads) {
  const int blocks = (kCapacity + every - 1) / every;
  Replayed out{Numbers(kDim * kLanes), Numbers(kOutputTimesEach * kDim * kLanes),
               Numbers(blocks * kDim * kLanes, kLeftOver)};
  const gs::ReplayArguments<P::num_leaves> arguments{kLanes,           kLanes,
                                                     kOutputTimesEach, every,
                                                     e.y0.data(),      {e.t0.data(), 1},
                                                     {e.t1.data(), 1}, {e.ts.data(), 1},
                                                     r.times.data(),   r.accepted.data(),
                                                     r.status.data(),  out.y1.data(),
                                                     out.ys.data(),    out.checkpoints.data(),
                                                     nullptr,          leaves_of<P::num_leaves>(e)};
  gs::replay_on_host<P>(arguments, threads);
  return out;
}

struct Cotangents {
  Numbers y0, t0, t1, ts, sigma, rho, beta;
};

template <class P>
Cotangents run_adjoint(Ensemble& e, const Recording& r, const Numbers& checkpoints, int every,
                       const Numbers& ct_ys, int64_t threads, bool by_attempts = false) {
  Cotangents ct{
      Numbers(kDim * kLanes), Numbers(kLanes), Numbers(kLanes), Numbers(kOutputTimesEach * kLanes),
      Numbers(kLanes),        Numbers(1),      Numbers(1)};
  Numbers segment(every * kDim * kLanes, kLeftOver);
  Numbers partial(((kLanes + gs::kGroup - 1) / gs::kGroup) * P::num_cotangents);
  const gs::AdjointArguments<P::num_leaves, P::num_wanted> arguments{
      kLanes,
      kOutputTimesEach,
      every,
      {e.t0.data(), 1},
      {e.t1.data(), 1},
      {e.ts.data(), 1},
      r.times.data(),
      r.accepted.data(),
      r.status.data(),
      checkpoints.data(),
      by_attempts ? r.taken.data() : nullptr,
      r.rejected.data(),
      nullptr,
      nullptr,
      ct_ys.data(),
      ct.y0.data(),
      ct.t0.data(),
      ct.t1.data(),
      ct.ts.data(),
      segment.data(),
      partial.data(),
      leaves_of<P::num_leaves>(e),
      {{{ct.sigma.data(), 1}, {ct.rho.data(), 0}, {ct.beta.data(), 0}}}};
  gs::adjoint_on_host<P>(arguments, threads);
  return ct;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && ::same(a.data(), b.data(), static_cast<int>(a.size()));
}

// Whether two arrays [rows][kLanes][columns] agree in all trajectories but those that fail.
template <class T>
bool same_in_others(const std::vector<T>& a, const std::vector<T>& b, int columns = 1) {
  for (size_t i = 0; i < a.size(); ++i) {
    const int lane = static_cast<int>(i) / columns % kLanes;
    const bool fails = lane == kNanLane || lane == kLongLane;
    if (!fails && !::same(a[i], b[i])) return false;
  }
  return true;
}

void print(const char* name, const Numbers& values) {
  uint64_t digest = 14695981039346656037ull;  // FNV-1a, over whole numbers
  for (const double value : values) {
    uint64_t bits = 0x7ff8000000000000ull;
    if (value == value) std::memcpy(&bits, &value, sizeof bits);
    digest = (digest ^ bits) * 1099511628211ull;
  }
  std::printf("%s %016llx\n", name, static_cast<unsigned long long>(digest));
}

Numbers some_cotangents() {
  Numbers out;
  for (int i = 0; i < kOutputTimesEach * kDim * kLanes; ++i) out.push_back(std::cos(0.7 * i));
  return out;
}

// A padded or failed row of `ys` is nan; whatever its cotangent, it contributes nothing.
double product(const Numbers& ct_ys, const Numbers& plus, const Numbers& minus, double step) {
  double out = 0;
  for (size_t i = 0; i < ct_ys.size(); ++i) {
    const double difference = (plus[i] - minus[i]) / (2 * step);
    if (difference == difference) out += ct_ys[i] * difference;
  }
  return out;
}

// One problem for all jobs, so that the compiler has less to do.
template <class Tableau>
using Whole = Problem<Lorenz, Tableau, kOutputs | kOutputTimes | kTimes>;

template <class Tableau>
void check_recording(const char* method) {
  using P = Whole<Tableau>;
  Ensemble e(true), healthy(false);
  const Recording r = run_record<P>(e, 1, 1);
  std::printf("%s\n", method);
  print("y1", r.y1);
  print("ys", r.ys);
  print("accepted", Numbers(r.accepted.begin(), r.accepted.end()));
  print("rejected", Numbers(r.rejected.begin(), r.rejected.end()));
  for (int i = 0; i < kLanes; ++i) {
    const int32_t want = i == kNanLane    ? gs::kNonfinite
                         : i == kLongLane ? gs::kMaxStepsReached
                                          : gs::kSuccessful;
    CHECK(r.status[i] == want);
    CHECK(!r.unfinished[i]);
    CHECK(r.accepted[i] + r.rejected[i] <= kMaxSteps);
    CHECK(::same(r.times[i], e.t0[i]));
    const double last = r.times[r.accepted[i] * kLanes + i];
    CHECK(want != gs::kSuccessful || last == e.t1[i]);
    const bool padded = i % 4 == 2;
    const int end = (kOutputTimesEach - 1) * kDim * kLanes + i;
    // What the long trajectory has passed before it fails is kept.
    if (i != kLongLane) CHECK(std::isnan(r.ys[end]) == (padded || i == kNanLane));
    if (!padded && want == gs::kSuccessful) CHECK(::same(r.ys[end], r.y1[i * kDim]));
  }

  // Trajectories that fail change nothing for the others, nor do threads and checkpoints.
  const Recording others = run_record<P>(healthy, 4, 3);
  CHECK(same_in_others(r.y1, others.y1, kDim) && same_in_others(r.ys, others.ys));
  CHECK(same_in_others(r.accepted, others.accepted));
  const Recording threaded = run_record<P>(e, 4, 3);
  CHECK(same(r.y1, threaded.y1) && same(r.ys, threaded.ys) && same(r.times, threaded.times));
  for (int i = 0; i < kLanes; ++i) {
    for (int row = 0; row < r.accepted[i]; row += 4) {
      for (int c = 0; c < kDim; ++c) {
        CHECK(::same(r.checkpoints[(row * kDim + c) * kLanes + i],
                     threaded.checkpoints[(row / 4 * kDim + c) * kLanes + i]));
      }
    }
  }

  // A mesh that is too small says so, for the trajectories that it is too small for.
  const Recording small = run_record<P>(healthy, 1, 1, 20);
  for (int i = 0; i < kLanes; ++i) {
    CHECK(small.unfinished[i] == (others.accepted[i] > 20));
    CHECK(small.accepted[i] <= 20);
  }

  // Room for every state, also of attempts that are rejected: that many attempts and no more.
  const Recording attempted = run_record<P>(e, 1, 2, kCapacity, true);
  CHECK(same(r.y1, attempted.y1) && same(r.times, attempted.times));
  CHECK(same(r.accepted, attempted.accepted) && same(r.rejected, attempted.rejected));
  const Recording few = run_record<P>(healthy, 1, 1, 20, true);
  for (int i = 0; i < kLanes; ++i) {
    CHECK(few.unfinished[i] == (others.accepted[i] + others.rejected[i] > 20));
    CHECK(few.accepted[i] + few.rejected[i] <= 20);
    int row = 0;
    for (int attempt = 0; attempt < r.accepted[i] + r.rejected[i]; ++attempt) {
      if (!(attempted.taken[attempt / 32 * kLanes + i] >> attempt % 32 & 1)) continue;
      for (int c = 0; c < kDim; ++c) {
        CHECK(::same(r.checkpoints[(row * kDim + c) * kLanes + i],
                     attempted.checkpoints[(attempt * kDim + c) * kLanes + i]));
      }
      ++row;
    }
    CHECK(row == r.accepted[i]);
  }

  // A replay at the recorded parameters.
  for (int every = 1; every <= 4; every += 3) {
    const Replayed again = run_replay<P>(e, r, every, 2);
    CHECK(same(again.y1, r.y1));
    CHECK(same(again.ys, r.ys));
    const Numbers& saved = every == 1 ? r.checkpoints : threaded.checkpoints;
    for (int i = 0; i < kLanes; ++i) {
      for (int row = 0; row < r.accepted[i]; row += every) {
        const int at = row / every * kDim * kLanes + i;
        CHECK(::same(again.checkpoints[at], saved[at]));
      }
    }
  }
}

template <class Tableau>
void check_adjoint(const char* method) {
  using P = Whole<Tableau>;
  using Segmented = Problem<Lorenz, Tableau, kOutputs | kOutputTimes | kTimes | kSegments>;
  Ensemble e(true);
  const Recording r = run_record<P>(e, 1, 2), sparse = run_record<P>(e, 4, 2);
  const Numbers ct_ys = some_cotangents();
  const Cotangents ct = run_adjoint<P>(e, r, r.checkpoints, 1, ct_ys, 1);
  std::printf("adjoint of %s\n", method);
  print("ct_y0", ct.y0);
  print("ct_t0", ct.t0);
  print("ct_t1", ct.t1);
  print("ct_ts", ct.ts);
  print("ct_sigma", ct.sigma);
  // Sums over trajectories are taken pack by pack.
  double sigma = 0;
  for (const double entry : ct.sigma) sigma += entry;
  std::printf("sum ct_sigma %.17g\nsum ct_rho %.17g\nsum ct_beta %.17g\n", sigma, ct.rho[0],
              ct.beta[0]);
  for (const int lane : std::vector<int>{kNanLane, kLongLane}) {
    CHECK(std::isfinite(ct.y0[lane * kDim]) && std::isfinite(ct.sigma[lane]));
  }
  CHECK(ct.y0[kNanLane * kDim] == 0 && ct.sigma[kNanLane] == 0);

  // Threads and checkpoints do not change a bit.
  const Cotangents threaded = run_adjoint<P>(e, r, r.checkpoints, 1, ct_ys, 3);
  const Cotangents segmented = run_adjoint<Segmented>(e, r, sparse.checkpoints, 4, ct_ys, 1);
  const Recording attempted = run_record<P>(e, 1, 2, kCapacity, true);
  const Cotangents by_attempts =
      run_adjoint<P>(e, attempted, attempted.checkpoints, 1, ct_ys, 2, true);
  for (const Cotangents& other : std::vector<Cotangents>{threaded, segmented, by_attempts}) {
    CHECK(same(ct.y0, other.y0) && same(ct.t0, other.t0) && same(ct.t1, other.t1));
    CHECK(same(ct.ts, other.ts) && same(ct.sigma, other.sigma));
    CHECK(same(ct.rho, other.rho) && same(ct.beta, other.beta));
  }

  // The derivative of the replay along some direction, by central differences: their error is of
  // the order of the step squared, and of rounding over the step.
  const double step = 1e-5;
  Numbers ys[2];
  double along = 0;
  for (int side = 0; side < 2; ++side) {
    Ensemble moved(true);
    const double size = side == 0 ? step : -step;
    for (int i = 0; i < kLanes; ++i) {
      for (int c = 0; c < kDim; ++c) moved.y0[i * kDim + c] += size * (0.3 + 0.2 * c);
      moved.sigma[i] += size * std::cos(i);
      // The first and the last mesh time move with the window.
      moved.t0[i] += size * 0.4;
      moved.t1[i] -= size * 0.3;
    }
    moved.rho[0] += size * 0.7;
    moved.beta[0] -= size * 0.4;
    for (int m = 1; m < kOutputTimesEach - 1; ++m) {
      for (int i = 0; i < kLanes; ++i) moved.ts[m * kLanes + i] += size * 0.1 * m;
    }
    for (int i = 0; i < kLanes; ++i) {  // these two are the ends of the window
      moved.ts[i] = moved.t0[i];
      if (i % 4 != 2) moved.ts[(kOutputTimesEach - 1) * kLanes + i] = moved.t1[i];
    }
    ys[side] = run_replay<P>(moved, r, 1, 2).ys;
  }
  for (int i = 0; i < kLanes; ++i) {
    if (i == kLongLane) continue;  // its window ends with the mesh, not at t1
    for (int c = 0; c < kDim; ++c) along += ct.y0[i * kDim + c] * (0.3 + 0.2 * c);
    along += ct.sigma[i] * std::cos(i) + 0.4 * ct.t0[i] - 0.3 * ct.t1[i];
    along += 0.4 * ct.ts[i];
    for (int m = 1; m < kOutputTimesEach - 1; ++m) along += 0.1 * m * ct.ts[m * kLanes + i];
    if (i % 4 != 2) along -= 0.3 * ct.ts[(kOutputTimesEach - 1) * kLanes + i];
  }
  Numbers without = ct_ys;  // of the trajectory that is left out
  for (size_t i = 0; i < without.size(); ++i) {
    if (i % kLanes == kLongLane) without[i] = 0;
  }
  const Cotangents shared = run_adjoint<P>(e, r, r.checkpoints, 1, without, 2);
  along += 0.7 * shared.rho[0] - 0.4 * shared.beta[0];
  const double want = product(without, ys[0], ys[1], step);
  CHECK(std::fabs(along - want) < 1e-6 * std::fabs(want));
}

}  // namespace

int main() {
  check_recording<Bosh3>("Bosh3");
#if GS_LANES <= 2  // for the compiler's sake
  check_recording<Heun>("Heun");
#endif
  check_adjoint<Bosh3>("Bosh3");
  CHECK(!far_away);
  return failures != 0;
}
