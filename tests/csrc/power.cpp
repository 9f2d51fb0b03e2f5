// The power of step control against the C library, in more precision than it has.

#include "gs/power.h"

#include <initializer_list>

#include "check.h"

using namespace gs;

// A few units of the last place: the rounding of the series and of its last sum, and half a unit
// that x y^N was rounded by, times the 1/N of the root.
template <int N>
void check_root(Real x) {
  const double unit = GS_REAL_BITS == 64 ? 0x1p-52 : 0x1p-23;
  const double bound = GS_REAL_BITS == 64 ? 3 * unit : (0.5 * 44 * 0.7 + 4) * unit;
  const Real out = inverse_root<N>(x);
  for (int l = 0; l < GS_LANES; ++l) {
    const long double want = powl(lane(x, l), -1.0L / N);
    CHECK(std::fabs((lane(out, l) - want) / want) < bound);
  }
}

template <int N>
void check_root_of_special_numbers() {
  CHECK(lane(inverse_root<N>(Real(kInfinity)), 0) < Scalar(1e-1));
  const Scalar largest = lane(inverse_root<N>(Real(0)), 0);
  CHECK(largest > Scalar(1e2) && largest < Scalar(kInfinity));
  const Scalar undefined = lane(inverse_root<N>(Real(kNan)), 0);
  CHECK(undefined != undefined);
}

int main() {
  // The rounding of e log2(x), which is at most 0.5 * 44 here, is what remains: relative to the
  // result it is that number times ln 2 times half a unit, beside a few units of the polynomials.
  const double unit = GS_REAL_BITS == 64 ? 0x1p-52 : 0x1p-23;
  const double bound = (0.5 * 44 * 0.7 + 4) * unit;
  const double exponents[] = {0.2, 0.14, -0.07, 1.0 / 8, 1.0 / 3, 0.5, -0.4};
  uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    Real x;
    for (int l = 0; l < GS_LANES; ++l) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double uniform = static_cast<double>(state >> 11) * 0x1p-53;
      set_lane(x, l, static_cast<Scalar>(std::exp((uniform - 0.5) * 60)));
    }
    for (const double given : exponents) {
      const Scalar exponent = static_cast<Scalar>(given);
      const Real out = power(x, Real(exponent));
      for (int l = 0; l < GS_LANES; ++l) {
        const long double want = powl(lane(x, l), exponent);
        CHECK(std::fabs((lane(out, l) - want) / want) < bound);
      }
    }
    check_root<2>(x);
    check_root<3>(x);
    check_root<10>(x);
    check_root<18>(x);
    check_root<20>(x);
  }
  if (GS_REAL_BITS == 64) {
    for (const double x : {1e-300, 1e-280, 0.99999999999999989, 1.0, 1e300}) {
      check_root<2>(Real(static_cast<Scalar>(x)));
      check_root<10>(Real(static_cast<Scalar>(x)));
    }
  }
  check_root_of_special_numbers<2>();
  check_root_of_special_numbers<10>();
  check_root_of_special_numbers<18>();
  // Zero and infinity stand for very small and very large numbers; nan stays nan.
  CHECK(lane(power(Real(kInfinity), Real(Scalar(0.2))), 0) > Scalar(1e6));
  CHECK(lane(power(Real(0), Real(Scalar(0.2))), 0) < Scalar(1e-6));
  const Scalar undefined = lane(power(Real(kNan), Real(Scalar(0.2))), 0);
  CHECK(undefined != undefined);
  return failures != 0;
}
