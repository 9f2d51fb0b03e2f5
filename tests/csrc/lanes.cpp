// The lane types against plain scalars, one lane at a time.

#include "check.h"

using namespace gs;

namespace {

constexpr int kValues = 16;
const double kSpecial[kValues] = {0.0,  -0.0, 1.0,   -1.0, 1.5,      -2.5,      3e-310, -7e300,
                                  1e30, 0.1,  -0.75, 42.0, INFINITY, -INFINITY, NAN,    2.0};

// Lane l gets entry `start + l` of the special values.
template <class T>
T some(int start) {
  T out;
  for (int l = 0; l < GS_LANES; ++l) {
    set_lane(out, l, static_cast<scalar_of<T>>(kSpecial[(start + l) % kValues]));
  }
  return out;
}

template <class T, class F, class G>
void check_binary(F&& of_lanes, G&& of_scalars) {
  for (int i = 0; i < kValues; ++i) {
    for (int j = 0; j < kValues; ++j) {
      const T a = some<T>(i), b = some<T>(j);
      const auto out = of_lanes(a, b);
      for (int l = 0; l < GS_LANES; ++l) {
        const auto want = of_scalars(lane(a, l), lane(b, l));
        CHECK(same(static_cast<decltype(want)>(lane(out, l)), want));
      }
    }
  }
}

template <class T, class S>
void check_arithmetic() {
  check_binary<T>([](T a, T b) { return a + b; }, [](S a, S b) { return S(a + b); });
  check_binary<T>([](T a, T b) { return a - b; }, [](S a, S b) { return S(a - b); });
  check_binary<T>([](T a, T b) { return a * b; }, [](S a, S b) { return S(a * b); });
  check_binary<T>([](T a, T b) { return a / b; }, [](S a, S b) { return S(a / b); });
  check_binary<T>([](T a, T) { return -a; }, [](S a, S) { return S(-a); });
  check_binary<T>([](T a, T b) { return a < b; }, [](S a, S b) { return a < b; });
  check_binary<T>([](T a, T b) { return a <= b; }, [](S a, S b) { return a <= b; });
  check_binary<T>([](T a, T b) { return a > b; }, [](S a, S b) { return a > b; });
  check_binary<T>([](T a, T b) { return a >= b; }, [](S a, S b) { return a >= b; });
  check_binary<T>([](T a, T b) { return a == b; }, [](S a, S b) { return a == b; });
  check_binary<T>([](T a, T b) { return a != b; }, [](S a, S b) { return a != b; });
  check_binary<T>([](T a, T b) { return gs::select(a < b, a, b); },
                  [](S a, S b) { return a < b ? a : b; });
  // As in JAX, nan wins on either side. Of two zeros either is right.
  const auto smaller = [](S a, S b) { return a != a || b != b ? S(NAN) : (a < b ? a : b); };
  const auto larger = [](S a, S b) { return a != a || b != b ? S(NAN) : (a > b ? a : b); };
  check_binary<T>([](T a, T b) { return gs::min(a, b); }, smaller);
  check_binary<T>([](T a, T b) { return gs::max(a, b); }, larger);
  check_binary<T>([](T a, T) { return gs::abs(a); }, [](S a, S) { return std::abs(a); });
  check_binary<T>([](T a, T) { return gs::sqrt(a); }, [](S a, S) { return std::sqrt(a); });
  check_binary<T>([](T a, T) { return gs::floor(a); }, [](S a, S) { return std::floor(a); });
  check_binary<T>([](T a, T) { return gs::is_finite(a); }, [](S a, S) { return std::isfinite(a); });
#if defined(__FMA__)
  check_binary<T>([](T a, T b) { return gs::fma(a, b, a); },
                  [](S a, S b) { return std::fma(a, b, a); });
#endif
  check_binary<T>([](T a, T b) { return map([](S x, S y) { return S(x - 2 * y); }, a, b); },
                  [](S a, S b) { return S(a - 2 * b); });
  for (const double x : kSpecial) {
    for (int l = 0; l < GS_LANES; ++l) CHECK(same(lane(T(S(x)), l), S(x)));
  }
}

template <class T, class S>
void check_integers() {
  for (int i = 0; i < 40; ++i) {
    T a, b;
    for (int l = 0; l < GS_LANES; ++l) {
      set_lane(a, l, S(7919 * (i + l) - 90001));
      set_lane(b, l, S((3 * i + l) % 13));
    }
    const T sum = a + b, bits = (a & b) | (a ^ T(S(5))), shifted = b << T(S(3));
    const T down = (b << T(S(3))) >> T(S(2)), flipped = ~a;
    const F64 real = convert<F64>(a);
    const Mask nonzero = convert<Mask>(b);
    for (int l = 0; l < GS_LANES; ++l) {
      const S x = lane(a, l), y = lane(b, l);
      CHECK(lane(sum, l) == S(x + y));
      CHECK(lane(bits, l) == S((x & y) | (x ^ S(5))));
      CHECK(lane(shifted, l) == S(y << 3));
      CHECK(lane(down, l) == S(y << 1));
      CHECK(lane(flipped, l) == S(~x));
      CHECK(lane(real, l) == double(x));
      CHECK(lane(nonzero, l) == (y != 0));
      CHECK(lane(convert<T>(nonzero), l) == S(y != 0));
    }
  }
  CHECK(lane(gs::abs(convert<I32>(T(S(3))) - I32(10)), GS_LANES - 1) == 7);
}

// Every pattern of flags.
void check_masks() {
  constexpr int patterns = 1 << (GS_LANES < 8 ? GS_LANES : 8);
  const auto flag = [](int pattern, int l) { return (pattern >> (l % 8) & 1) != 0; };
  for (int i = 0; i < patterns; ++i) {
    Mask a;
    bool some_set = false, all_set = true;
    for (int l = 0; l < GS_LANES; ++l) {
      set_lane(a, l, flag(i, l));
      some_set = some_set || flag(i, l);
      all_set = all_set && flag(i, l);
    }
    CHECK(any(a) == some_set);
    CHECK(all(a) == all_set);
    for (int j = 0; j < patterns; j += 3) {
      Mask b;
      for (int l = 0; l < GS_LANES; ++l) set_lane(b, l, flag(j, l));
      const Mask both = a & b, either = a | b, one = a ^ b, chosen = gs::select(a, b, !b);
      const Mask equal = a == b, other = a != b;
      for (int l = 0; l < GS_LANES; ++l) {
        const bool x = flag(i, l), y = flag(j, l);
        CHECK(lane(both, l) == (x && y));
        CHECK(lane(either, l) == (x || y));
        CHECK(lane(one, l) == (x != y));
        CHECK(lane(!a, l) == !x);
        CHECK(lane(chosen, l) == (x ? y : !y));
        CHECK(lane(equal, l) == (x == y));
        CHECK(lane(other, l) == (x != y));
      }
    }
  }
  CHECK(all(Mask(true)) && !any(Mask(false)));
}

void check_conversions() {
  for (int i = 0; i < kValues; ++i) {
    const F64 x = some<F64>(i);
    const F32 narrow = convert<F32>(x);
    const I64 bits = bit_cast<I64>(x);
    for (int l = 0; l < GS_LANES; ++l) {
      int64_t want;
      const double value = lane(x, l);
      std::memcpy(&want, &value, sizeof want);
      CHECK(lane(bits, l) == want);
      CHECK(same(lane(narrow, l), static_cast<float>(value)));
      CHECK(same(lane(bit_cast<F64>(bits), l), value));
      CHECK(same(lane(convert<F64>(narrow), l), static_cast<double>(lane(narrow, l))));
    }
  }
}

// Arrays [rows][total] of every length around that of a pack: lanes past the end read the last
// trajectory and write nothing.
template <class T, class S>
void check_memory() {
  constexpr int kRows = 3, kMost = 2 * GS_LANES + 1;
  for (int total = 1; total <= kMost; ++total) {
    S array[kRows * kMost + 1], copy[kRows * kMost + 1], scattered[kRows * kMost + 1];
    for (int i = 0; i <= kRows * kMost; ++i) {
      array[i] = S(static_cast<scalar_of<T>>(i % 7));
      copy[i] = scattered[i] = S(99);
    }
    for (int first = 0; first < total; first += GS_LANES) {
      const Lanes lanes = lanes_from(first, total);
      CHECK(lanes.full == (first + GS_LANES <= total));
      I32 rows;
      Mask even;
      for (int l = 0; l < GS_LANES; ++l) {
        CHECK(lane(lanes.valid, l) == (first + l < total));
        set_lane(rows, l, (first + l) % kRows);
        set_lane(even, l, (first + l) % 2 == 0);
      }
      for (int row = 0; row < kRows; ++row) {
        const T x = load<T>(array, row, lanes);
        for (int l = 0; l < GS_LANES; ++l) {
          const int at = first + l < total ? first + l : total - 1;
          CHECK(lane(x, l) == scalar_of<T>(array[row * total + at]));
        }
        store(copy, row, lanes, x);
      }
      const T y = load_rows<T>(array, rows, lanes);
      for (int l = 0; l < GS_LANES && first + l < total; ++l) {
        CHECK(lane(y, l) == scalar_of<T>(array[lane(rows, l) * total + first + l]));
      }
      store_rows(even, scattered, rows, lanes, y);
      int32_t most = 0;
      for (int l = 0; l < GS_LANES; ++l) most = lane(rows, l) > most ? lane(rows, l) : most;
      CHECK(highest(rows) == most);
    }
    for (int i = 0; i <= kRows * kMost; ++i) {
      const bool inside = i < kRows * total;
      CHECK(copy[i] == (inside ? array[i] : S(99)));
      const int row = i / total, at = i % total;
      const bool written = inside && at % 2 == 0 && row == at % kRows;
      CHECK(scattered[i] == (written ? array[i] : S(99)));
    }
  }
}

void check_leaves() {
  constexpr int kTotal = GS_LANES + 1, kEntries = 4;
  double per_lane[kEntries * kTotal], shared[kEntries];
  for (int i = 0; i < kEntries * kTotal; ++i) per_lane[i] = 10.0 + i;
  for (int i = 0; i < kEntries; ++i) shared[i] = -1.0 - i;
  for (int first = 0; first < kTotal; first += GS_LANES) {
    const Lanes lanes = lanes_from(first, kTotal);
    const LeafView<F64, double> a({per_lane, 1}, lanes), b({shared, 0}, lanes);
    I32 entry;
    for (int l = 0; l < GS_LANES; ++l) set_lane(entry, l, (first + l) % kEntries);
    const F64 of_a = load(a, entry), of_b = load(b, entry);
    for (int l = 0; l < GS_LANES && first + l < kTotal; ++l) {
      CHECK(lane(a[2], l) == per_lane[2 * kTotal + first + l]);
      CHECK(lane(b[2], l) == shared[2]);
      CHECK(lane(of_a, l) == per_lane[lane(entry, l) * kTotal + first + l]);
      CHECK(lane(of_b, l) == shared[lane(entry, l)]);
    }
  }
}

void check_loops() {
  int up = 0, down = 0, long_sum = 0;
  static_for<4>([&](auto i) { up = 10 * up + decltype(i)::value; });
  static_for_down<4>([&](auto i) { down = 10 * down + decltype(i)::value; });
  for_each<kMaxUnrolled + 5>([&](auto i) { long_sum += i; });
  static_for<0>([&](auto) { up = -1; });
  CHECK(up == 123);
  CHECK(down == 3210);
  CHECK(long_sum == (kMaxUnrolled + 5) * (kMaxUnrolled + 4) / 2);
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) {  // flags in memory, by themselves
    check_memory<Mask, uint8_t>();
    return failures != 0;
  }
  check_arithmetic<F64, double>();
  check_arithmetic<F32, float>();
  check_integers<I32, int32_t>();
  check_integers<I64, int64_t>();
  check_integers<U32, uint32_t>();
  check_integers<U64, uint64_t>();
  check_masks();
  check_conversions();
  check_memory<F64, double>();
  check_memory<F32, float>();
  check_memory<I32, int32_t>();
  check_leaves();
  check_loops();
  std::printf("%d lanes of %d bits\n", GS_LANES, GS_REAL_BITS);
  return failures != 0;
}
