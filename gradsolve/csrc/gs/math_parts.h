// What elementary functions are made of: polynomials, roundings, powers of two, quotients.

#pragma once

#include "gs/lanes.h"

namespace gs {

#if GS_CUDA || defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
#define GS_EXACT_FMA 1
#else
#define GS_EXACT_FMA 0  // fma() rounds twice; what relies on the exact product is left to libm
#endif

// Of packs a call costs less than what these functions compute, and keeps large fields small.
#if GS_LANES == 1
#define GS_PACK_FN GS_FN
#else
#define GS_PACK_FN inline GS_NOINLINE
#endif

namespace detail {

template <class T, class C>
GS_FN T horner(T, C last) {
  return T(last);
}
// first + x * (second + x * (...)).
template <class T, class C, class... Rest>
GS_FN T horner(T x, C first, Rest... rest) {
  return fma(x, horner(x, rest...), T(first));
}

GS_FN F64 copy_sign(F64 size, F64 sign) {
  const U64 bit = bit_cast<U64>(sign) & U64(0x8000000000000000ull);
  return bit_cast<F64>(bit_cast<U64>(size) | bit);
}
GS_FN F32 copy_sign(F32 size, F32 sign) {
  const U32 bit = bit_cast<U32>(sign) & U32(0x80000000u);
  return bit_cast<F32>(bit_cast<U32>(size) | bit);
}

// The nearest integer, as a number and as an integer: adding 1.5 * 2^52 leaves no bits below one.
GS_FN F64 nearest(F64 x, I64& integer) {
  const F64 shifted = x + F64(6755399441055744.0);
  integer = bit_cast<I64>(shifted) - I64(0x4338000000000000ll);
  return shifted - F64(6755399441055744.0);
}
GS_FN F32 nearest(F32 x, I32& integer) {
  const F32 shifted = x + F32(12582912.0f);
  integer = bit_cast<I32>(shifted) - I32(0x4b400000);
  return shifted - F32(12582912.0f);
}

GS_FN F64 power_of_two(I64 n) { return bit_cast<F64>((n + I64(1023)) << I64(52)); }
GS_FN F32 power_of_two(I32 n) { return bit_cast<F32>((n + I32(127)) << I32(23)); }

// p 2^n in two steps, since 2^n itself may be out of range.
GS_FN F64 scale(F64 p, I64 n) {
  const I64 half = bit_cast<I64>(bit_cast<U64>(n + I64(2048)) >> U64(1)) - I64(1024);
  return p * power_of_two(half) * power_of_two(n - half);
}
GS_FN F32 scale(F32 p, I32 n) {
  const I32 half = bit_cast<I32>(bit_cast<U32>(n + I32(256)) >> U32(1)) - I32(128);
  return p * power_of_two(half) * power_of_two(n - half);
}

template <class T>
GS_FN T clamped(T x, double low, double high) {
  using S = scalar_of<T>;
  return select(x > T(S(high)), T(S(high)), select(x < T(S(low)), T(S(low)), x));
}

// 1 / x but for a few units of the last place, of a number that is neither subnormal nor so large
// that its reciprocal is. A GPU divides with branches, for the others, and they would keep
// functions side by side from overlapping.
#if GS_LANES == 1
GS_FN double reciprocal(double x) {
#if GS_CUDA
  double first;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(first) : "d"(x));
#else
  // As many digits as a GPU's first guess has, so that what follows is tested here, too.
  const double first = bit_cast<double>(bit_cast<uint64_t>(1.0 / x) & 0xffffffff00000000ull);
#endif
  const double miss = fma(-x, first, 1.0);
  return fma(first, fma(miss, miss, miss), first);
}
GS_FN float reciprocal(float x) {
#if GS_CUDA
  float first;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(first) : "f"(x));
  return first;
#else
  return 1.0f / x;
#endif
}
#else
GS_FN F64 reciprocal(F64 x) { return F64(1.0) / x; }
GS_FN F32 reciprocal(F32 x) { return F32(1.0f) / x; }
#endif

// A number in two parts, of which the second is below the last place of the first.
template <class T>
struct Parts {
  T high;
  T low;
};

// The quotient, of a divisor as reciprocal() takes it.
template <class T>
GS_FN T quotient(Parts<T> x, Parts<T> y) {
  const T inverse = reciprocal(y.high), first = x.high * inverse;
  const T miss = fma(-first, y.high, x.high) + fma(-first, y.low, x.low);
  return fma(miss, inverse, first);
}

}  // namespace detail
}  // namespace gs
