// x^e for the step size: positive x, a moderate exponent, no branches.
//
// A step size is the product of a safety factor and a power of an error estimate, in every
// attempted step; the pow() of a mathematical library costs more than a small vector field. This
// one is right to a few units in the last place (a test compares), far inside the rounding of the
// estimate that it is applied to. The same operations run on every backend, so that all choose the
// same steps.

#pragma once

#include "gs/lanes.h"

namespace gs {

namespace power_detail {

#if GS_REAL_BITS == 64
using Bits = U64;
constexpr uint64_t kMantissaBits = 52;
constexpr uint64_t kOne = 0x3ff0000000000000ull;
constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;     // the bits of sqrt(1/2)
constexpr uint64_t kIntegerBits = 0x4330000000000000ull;  // those of 2^52: its last bit counts ones
constexpr double kInteger = 4503599627370496.0;
constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
constexpr double kSmallest = 0x1p-1000, kLargest = 0x1p1000;
constexpr int kLogTerms = 10, kExpTerms = 14;
#else
using Bits = U32;
constexpr uint32_t kMantissaBits = 23;
constexpr uint32_t kOne = 0x3f800000u;
constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
constexpr uint32_t kIntegerBits = 0x4b000000u;
constexpr float kInteger = 8388608.0f;
constexpr float kRound = 12582912.0f;
constexpr float kSmallest = 0x1p-120f, kLargest = 0x1p120f;
constexpr int kLogTerms = 5, kExpTerms = 8;
#endif

// log2(m) = sum_k kLog[k] s^(2k+1) with s = (m - 1) / (m + 1); 2^r = sum_k kExp[k] r^k. Taylor
// series: on sqrt(1/2) <= m < sqrt(2) and |r| <= 1/2 what is cut off is below the rounding.
constexpr Scalar kLog[10] = {
    static_cast<Scalar>(2.8853900817779268),  static_cast<Scalar>(0.9617966939259756),
    static_cast<Scalar>(0.5770780163555854),  static_cast<Scalar>(0.4121985831111324),
    static_cast<Scalar>(0.3205988979753252),  static_cast<Scalar>(0.26230818925253878),
    static_cast<Scalar>(0.22195308321368668), static_cast<Scalar>(0.19235933878519512),
    static_cast<Scalar>(0.16972882833987804), static_cast<Scalar>(0.15186263588304878)};
constexpr Scalar kExp[14] = {static_cast<Scalar>(1.0),
                             static_cast<Scalar>(0.6931471805599453),
                             static_cast<Scalar>(0.24022650695910072),
                             static_cast<Scalar>(0.05550410866482158),
                             static_cast<Scalar>(0.009618129107628477),
                             static_cast<Scalar>(0.0013333558146428443),
                             static_cast<Scalar>(0.0001540353039338161),
                             static_cast<Scalar>(1.5252733804059841e-05),
                             static_cast<Scalar>(1.3215486790144307e-06),
                             static_cast<Scalar>(1.0178086009239699e-07),
                             static_cast<Scalar>(7.0549116208011225e-09),
                             static_cast<Scalar>(4.4455382718708114e-10),
                             static_cast<Scalar>(2.5678435993488204e-11),
                             static_cast<Scalar>(1.3691488853904128e-12)};

// Estrin's scheme: terms are paired, pairs are paired, and so on, so that the chain of operations
// that wait for each other is short. Coefficients Begin .. Begin + Terms - 1; xs[i] = x^(2^i).
template <const Scalar* Coefficients, int Begin, int Terms>
GS_FN Real polynomial(const Real* xs) {
  if constexpr (Terms == 1) {
    constexpr Scalar c = Coefficients[Begin];
    return Real(c);
  } else {
    constexpr int level = Terms > 8 ? 3 : Terms > 4 ? 2 : Terms > 2 ? 1 : 0;
    constexpr int low = 1 << level;
    return fma(polynomial<Coefficients, Begin + low, Terms - low>(xs), xs[level],
               polynomial<Coefficients, Begin, low>(xs));
  }
}

template <const Scalar* Coefficients, int Terms>
GS_FN Real polynomial(Real x) {
  Real xs[4];
  xs[0] = x;
  for (int i = 1; i < 4; ++i) xs[i] = xs[i - 1] * xs[i - 1];
  return polynomial<Coefficients, 0, Terms>(xs);
}

}  // namespace power_detail

// x is clamped to 2^-1000 .. 2^1000 (2^-120 .. 2^120 in single precision): zero and infinity stand
// for a very large and a very small error, whose exact size decides nothing. The result must be
// representable.
GS_FN Real power(Real x, Real exponent) {
  using namespace power_detail;
  const Mask undefined = x != x;
  x = min(max(x, Real(kSmallest)), Real(kLargest));
  // x = 2^k m: shifting the bits by those of sqrt(1/2) makes the carry into the exponent right.
  const Bits bits = bit_cast<Bits>(x);
  const Bits shifted = bits + Bits(kOne - kSqrtHalf);
  const Bits exponent_bits = shifted >> Bits(kMantissaBits);
  const Bits bias(kOne >> kMantissaBits);
  const Real m = bit_cast<Real>(bits - ((exponent_bits - bias) << Bits(kMantissaBits)));
  const Real k = bit_cast<Real>(exponent_bits | Bits(kIntegerBits)) -
                 Real(kInteger + static_cast<Scalar>(kOne >> kMantissaBits));
  const Real s = (m - Real(1)) / (m + Real(1));
  const Real log2x = fma(polynomial<kLog, kLogTerms>(s * s), s, k);

  const Real power = exponent * log2x;
  const Real rounded = power + Real(kRound);
  const Real r = power - (rounded - Real(kRound));
  const Real fraction = polynomial<kExp, kExpTerms>(r);
  const Bits scale = bit_cast<Bits>(rounded) << Bits(kMantissaBits);
  const Real out = bit_cast<Real>(bit_cast<Bits>(fraction) + scale);
  return select(undefined, x, out);
}

}  // namespace gs
