// Lorenz by Tsit5, written by hand: record, replay and adjoint with one thread per trajectory.
//
// The yardstick for the generated kernels. It knows what they do not: the field and its transpose, an
// I controller for a state of three, one window for all trajectories, one precision; and it need not
// round like a CPU, so the compiler may contract. handwritten.py compiles it, with
//
//   REAL   double or float
//   POWER  0: pow() of CUDA's library for the step size; 1: single precision, which is enough for a
//          factor that is multiplied by 0.9 anyway
//
// Arrays are [row][component][trajectory], as in the generated kernels, whose end states alone are
// [trajectory][component].

#ifndef REAL
#define REAL double
#endif
#ifndef POWER
#define POWER 0
#endif

using Real = REAL;
using Word = long long;

// Words of 64 bits; handwritten.py packs the same.
struct RecordArguments {
  Word n, max_steps;
  double t0, t1, near_end, dt0, rtol, atol;  // a step that ends after near_end goes to t1
  const Real *rho, *y0;
  Real *y1, *times;
  int *accepted, *rejected, *status;
  Real* checkpoints;
};

struct ReplayArguments {
  Word n;
  const Real *rho, *y0, *times;
  const int* accepted;
  Real *y1, *checkpoints;
};

struct AdjointArguments {
  Word n;
  const Real *rho, *times;
  const int* accepted;
  const Real *checkpoints, *ct_y1;
  Real *ct_y0, *ct_rho;
};

namespace {

struct State {
  Real x, y, z;
};

constexpr Real kSigma = Real(10), kBeta = Real(8.0 / 3.0);

constexpr Real a21 = Real(0.161);
constexpr Real a31 = Real(-0.008480655492356989), a32 = Real(0.335480655492357);
constexpr Real a41 = Real(2.8971530571054935), a42 = Real(-6.359448489975075),
               a43 = Real(4.3622954328695815);
constexpr Real a51 = Real(5.325864828439257), a52 = Real(-11.748883564062828),
               a53 = Real(7.4955393428898365), a54 = Real(-0.09249506636175525);
constexpr Real a61 = Real(5.86145544294642), a62 = Real(-12.92096931784711),
               a63 = Real(8.159367898576159), a64 = Real(-0.071584973281401),
               a65 = Real(-0.028269050394068383);
constexpr Real b1 = Real(0.09646076681806523), b2 = Real(0.01), b3 = Real(0.4798896504144996),
               b4 = Real(1.379008574103742), b5 = Real(-3.290069515436081),
               b6 = Real(2.324710524099774);
constexpr Real e1 = Real(0.0017800110522257714), e2 = Real(0.0008164344596567469),
               e3 = Real(-0.007880878010261995), e4 = Real(0.1447110071732629),
               e5 = Real(-0.5823571654525552), e6 = Real(0.45808210592918697),
               e7 = Real(-0.015151515151515152);

__device__ __forceinline__ State field(Real rho, State s) {
  return {kSigma * (s.y - s.x), s.x * (rho - s.z) - s.y, s.x * s.y - kBeta * s.z};
}

// The transpose of the field's Jacobian times w; the derivative by rho is added up.
__device__ __forceinline__ State pull(Real rho, State s, State w, Real& ct_rho) {
  ct_rho += w.y * s.x;
  return {(rho - s.z) * w.y - kSigma * w.x + s.y * w.z, kSigma * w.x - w.y + s.x * w.z,
          -s.x * w.y - kBeta * w.z};
}

__device__ __forceinline__ State operator*(Real a, State s) { return {a * s.x, a * s.y, a * s.z}; }

__device__ __forceinline__ State operator+(State s, State r) {
  return {s.x + r.x, s.y + r.y, s.z + r.z};
}

__device__ __forceinline__ State load(const Real* array, Word row, Word n, Word i) {
  const Real* at = array + 3 * row * n + i;
  return {at[0], at[n], at[2 * n]};
}

__device__ __forceinline__ void store(Real* array, Word row, Word n, Word i, State s) {
  Real* at = array + 3 * row * n + i;
  at[0] = s.x, at[n] = s.y, at[2 * n] = s.z;
}

// One step from y with its first stage k1; y1 and its last stage, which is the next step's first.
struct Step {
  State k2, k3, k4, k5, k6, k7, y1;

  __device__ __forceinline__ Step(Real rho, Real h, State y, State k1) {
    k2 = field(rho, y + h * (a21 * k1));
    k3 = field(rho, y + h * (a31 * k1 + a32 * k2));
    k4 = field(rho, y + h * (a41 * k1 + a42 * k2 + a43 * k3));
    k5 = field(rho, y + h * (a51 * k1 + a52 * k2 + a53 * k3 + a54 * k4));
    k6 = field(rho, y + h * (a61 * k1 + a62 * k2 + a63 * k3 + a64 * k4 + a65 * k5));
    y1 = y + h * (b1 * k1 + b2 * k2 + b3 * k3 + b4 * k4 + b5 * k5 + b6 * k6);
    k7 = field(rho, y1);
  }

  __device__ __forceinline__ State error(Real h, State k1) const {
    return h * (e1 * k1 + e2 * k2 + e3 * k3 + e4 * k4 + e5 * k5 + e6 * k6 + e7 * k7);
  }
};

__device__ __forceinline__ Real square(Real x) { return x * x; }

// 0.9 err^(-1/5) from the square of err.
__device__ __forceinline__ Real growth(Real squared) {
#if POWER == 0
  return Real(0.9) * pow(squared, Real(-0.1));
#else
  return Real(0.9f * exp2f(-0.1f * log2f(static_cast<float>(squared))));
#endif
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) record(const RecordArguments a) {
  const Word i = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x, n = a.n;
  if (i >= n) return;
  const Real rho = a.rho[i], t1 = Real(a.t1), near_end = Real(a.near_end);
  const Real rtol = Real(a.rtol), atol = Real(a.atol);
  State y = load(a.y0, 0, n, i), k1 = field(rho, y);
  Real t = Real(a.t0), t_next = fmin(t + Real(a.dt0), t1);
  const int max_steps = static_cast<int>(a.max_steps);
  int accepted = 0, attempts = 0, status = 1;
  a.times[i] = t;

  while (attempts < max_steps) {
    const Real h = t_next - t;
    const Step step(rho, h, y, k1);
    const State error = step.error(h, k1), y1 = step.y1;
    const Real squared =
        (square(error.x / (atol + rtol * fmax(fabs(y.x), fabs(y1.x)))) +
         square(error.y / (atol + rtol * fmax(fabs(y.y), fabs(y1.y)))) +
         square(error.z / (atol + rtol * fmax(fabs(y.z), fabs(y1.z))))) *
        Real(1.0 / 3.0);
    const bool ok = squared < Real(1);  // false for nan
    ++attempts;
    Real factor = growth(squared);
    factor = fmin(fmax(factor, ok ? Real(1) : Real(0.2)), ok ? Real(10) : Real(0.9));
    const bool at_end = t_next >= t1;
    if (ok) {
      if (a.checkpoints != nullptr) store(a.checkpoints, accepted, n, i, y);
      ++accepted;
      a.times[accepted * n + i] = t_next;
      t = t_next;
      y = y1;
      k1 = step.k7;
      if (at_end) {
        status = 0;
        break;
      }
    }
    t_next = t + h * factor;
    if (t_next > near_end) t_next = ok ? t1 : t + Real(0.5) * (t1 - t);
    if (!(t_next > t)) {
      status = 2;
      break;
    }
  }

  store(a.y1, 0, n, i, y);
  a.accepted[i] = accepted;
  a.rejected[i] = attempts - accepted;
  a.status[i] = status;
}

extern "C" __global__ void __launch_bounds__(128) replay(const ReplayArguments a) {
  const Word i = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x, n = a.n;
  if (i >= n) return;
  const Real rho = a.rho[i];
  const int steps = a.accepted[i];
  State y = load(a.y0, 0, n, i), k1 = field(rho, y);
  Real t = a.times[i];
  for (int row = 0; row < steps; ++row) {
    const Real t_next = a.times[(row + 1) * n + i];
    if (a.checkpoints != nullptr) store(a.checkpoints, row, n, i, y);
    const Step step(rho, t_next - t, y, k1);
    y = step.y1;
    k1 = step.k7;
    t = t_next;
  }
  store(a.y1, 0, n, i, y);
}

// The states of the stages are kept, not their derivatives: the transposed step needs nothing else.
// A warp walks the rows downwards together, so that its loads coalesce.
extern "C" __global__ void __launch_bounds__(128) adjoint(const AdjointArguments a) {
  const Word thread = static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x, n = a.n;
  const bool inside = thread < n;
  const Word i = inside ? thread : n - 1;
  const Real rho = a.rho[i];
  const int steps = inside ? a.accepted[i] : 0;
  State ct = load(a.ct_y1, 0, n, i);
  Real ct_rho = 0;
  Real t_next = a.times[steps * n + i];
  const int rows = static_cast<int>(__reduce_max_sync(0xffffffffu, static_cast<unsigned>(steps)));
  for (int row = rows - 1; row >= 0; --row) {
    if (row >= steps) continue;
    const Real t = a.times[row * n + i], h = t_next - t;
    t_next = t;
    const State y1 = load(a.checkpoints, row, n, i);
    const State k1 = field(rho, y1);
    const State y2 = y1 + h * (a21 * k1), k2 = field(rho, y2);
    const State y3 = y1 + h * (a31 * k1 + a32 * k2), k3 = field(rho, y3);
    const State y4 = y1 + h * (a41 * k1 + a42 * k2 + a43 * k3), k4 = field(rho, y4);
    const State y5 = y1 + h * (a51 * k1 + a52 * k2 + a53 * k3 + a54 * k4), k5 = field(rho, y5);
    const State y6 = y1 + h * (a61 * k1 + a62 * k2 + a63 * k3 + a64 * k4 + a65 * k5);

    const State w6 = pull(rho, y6, h * (b6 * ct), ct_rho);
    const State w5 = pull(rho, y5, h * (b5 * ct + a65 * w6), ct_rho);
    const State w4 = pull(rho, y4, h * (b4 * ct + a54 * w5 + a64 * w6), ct_rho);
    const State w3 = pull(rho, y3, h * (b3 * ct + a43 * w4 + a53 * w5 + a63 * w6), ct_rho);
    const State w2 =
        pull(rho, y2, h * (b2 * ct + a32 * w3 + a42 * w4 + a52 * w5 + a62 * w6), ct_rho);
    const State w1 = pull(
        rho, y1, h * (b1 * ct + a21 * w2 + a31 * w3 + a41 * w4 + a51 * w5 + a61 * w6), ct_rho);
    ct = ct + w1 + w2 + w3 + w4 + w5 + w6;
  }
  if (!inside) return;
  store(a.ct_y0, 0, n, i, ct);
  a.ct_rho[i] = ct_rho;
}
