// x^e for the step size: positive x, a moderate exponent, no branches.
//
// A step size is the product of a safety factor and a power of an error estimate, in every
// attempted step; the pow() of a mathematical library costs more than a small vector field. This
// one is right to a few units in the last place (a test compares), far inside the rounding of the
// estimate that it is applied to. The same operations run on every backend, so that all choose the
// same steps.

#pragma once

#include "gs/quotients.h"

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
  const Real s = divide_ordinary(m - Real(1), m + Real(1));
  const Real log2x = fma(polynomial<kLog, kLogTerms>(s * s), s, k);

  const Real power = exponent * log2x;
  const Real rounded = power + Real(kRound);
  const Real r = power - (rounded - Real(kRound));
  const Real fraction = polynomial<kExp, kExpTerms>(r);
  const Bits scale = bit_cast<Bits>(rounded) << Bits(kMantissaBits);
  const Real out = bit_cast<Real>(bit_cast<Bits>(fraction) + scale);
  return select(undefined, x, out);
}

#if GS_REAL_BITS == 64

namespace power_detail {

// log2(1 + z) = sum_k kSeedLog[k] z^(k+1) to 3e-7 for sqrt(1/2) <= 1 + z < sqrt(2), and
// 2^r = sum_k kSeedExp[k] r^k to 9e-7 for |r| <= 3/4: the least largest errors of these degrees.
constexpr float kSeedLog[7] = {1.44269967f,  -0.721375883f, 0.480465025f, -0.35896185f,
                               0.297262639f, -0.272698015f, 0.170634434f};
constexpr float kSeedExp[6] = {1.00000083f,   0.693147719f,   0.24019888f,
                               0.0554983355f, 0.00974882767f, 0.00135060819f};
constexpr float kSeedRound = 12582912.0f;           // 1.5 * 2^23
constexpr uint32_t kSeedIntegerBits = 0x4b000000u;  // of 2^23: its last bit counts ones
constexpr int kDoubleBias = 1023, kFloatBias = 127, kDoubleMore = 29;  // bits of a mantissa

template <int Terms>
GS_FN F32 seed_polynomial(const float (&coefficients)[Terms], F32 x) {
  F32 out(coefficients[Terms - 1]);
  for (int i = Terms - 2; i >= 0; --i) out = fma(out, x, F32(coefficients[i]));
  return out;
}

// x^(-1/N) to about 1e-6, in single precision, which costs a GPU less than it would in double; the
// exponent of x is taken apart from it, so that all of double's range is there.
template <int N>
GS_FN F64 inverse_root_seed(F64 x) {
  const U64 bits = bit_cast<U64>(x);
  const U64 biased = (bits + U64(kOne - kSqrtHalf)) >> U64(kMantissaBits);
  const U64 m_bits = bits - ((biased - U64(kDoubleBias)) << U64(kMantissaBits));
  const U32 rebias(static_cast<uint32_t>(kDoubleBias - kFloatBias) << 23);
  const F32 z = bit_cast<F32>(convert<U32>(m_bits >> U64(kDoubleMore)) - rebias) - F32(1.0f);
  const F32 k = bit_cast<F32>(convert<U32>(biased) | U32(kSeedIntegerBits)) -
                F32(8388608.0f + static_cast<float>(kDoubleBias));
  const F32 log2m = z * seed_polynomial(kSeedLog, z);
  // -(k + log2m) / N is an integer and a rest; the integer's share of k is exact.
  const F32 rounded = fma(k, F32(-1.0f / N), F32(kSeedRound));
  const F32 integer = rounded - F32(kSeedRound);
  const F32 rest = (fma(integer, F32(static_cast<float>(-N)), -k) - log2m) * F32(1.0f / N);
  const F32 fraction = seed_polynomial(kSeedExp, rest);
  const U64 widened = (convert<U64>(bit_cast<U32>(fraction)) << U64(kDoubleMore)) +
                      U64(static_cast<uint64_t>(kDoubleBias - kFloatBias) << kMantissaBits);
  const U64 scale = convert<U64>(bit_cast<U32>(rounded)) << U64(kMantissaBits);
  return bit_cast<F64>(widened + scale);
}

template <int N>
GS_FN F64 integer_power(F64 x) {
  if constexpr (N == 1) {
    return x;
  } else {
    const F64 half = integer_power<N / 2>(x);
    if constexpr (N % 2 == 0) return half * half;
    return half * half * x;
  }
}

}  // namespace power_detail

// x^(-1/N), the power of most controllers: that of an I controller, by the square of the error.
//
// With y near the root and e = 1 - x y^N the root is y (1 - e)^(-1/N), of whose series three terms
// are enough for N up to 20. To 3 units in the last place (a test compares); infinity gives zero,
// zero a large number.
template <int N>
GS_FN F64 inverse_root(F64 x) {
  static_assert(N >= 2 && N <= 20, "beyond this the next term of the series shows");
  const F64 y = power_detail::inverse_root_seed<N>(x);
  const F64 e = fma(-x, power_detail::integer_power<N>(y), F64(1));
  const F64 slope = fma(F64(0.5 * (N + 1) / (N * N)), e, F64(1.0 / N));
  const F64 out = fma(y * e, slope, y);
  return select(x < F64(kInfinity), out, select(x == x, F64(0), x));
}

#else

template <int N>
GS_FN F32 inverse_root(F32 x) {
  return power(x, F32(-1.0f / N));
}

#endif

}  // namespace gs
