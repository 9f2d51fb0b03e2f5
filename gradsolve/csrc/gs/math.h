// Elementary functions of lane types, with the special values of JAX.
//
// Functions that vector instructions compute well are written for packs in math_packs.h, and in
// sigmoid.h for all; the others call a scalar function lane by lane.

#pragma once

#include "gs/lanes.h"
#include "gs/math_parts.h"
#include "gs/sigmoid.h"

namespace gs {

// ---- Scalars -----------------------------------------------------------------------------------

namespace scalar {

#define GS_LIBM1(name)                              \
  GS_FN double name(double x) { return ::name(x); } \
  GS_FN float name(float x) { return ::name##f(x); }
#define GS_LIBM2(name)                                           \
  GS_FN double name(double x, double y) { return ::name(x, y); } \
  GS_FN float name(float x, float y) { return ::name##f(x, y); }

GS_LIBM1(acos)
GS_LIBM1(acosh)
GS_LIBM1(asin)
GS_LIBM1(asinh)
GS_LIBM1(atan)
GS_LIBM1(atanh)
GS_LIBM1(cbrt)
GS_LIBM1(ceil)
GS_LIBM1(cos)
GS_LIBM1(cosh)
GS_LIBM1(erf)
GS_LIBM1(erfc)
GS_LIBM1(exp)
GS_LIBM1(exp2)
GS_LIBM1(expm1)
GS_LIBM1(log)
GS_LIBM1(log1p)
GS_LIBM1(rint)
GS_LIBM1(round)
GS_LIBM1(sin)
GS_LIBM1(sinh)
GS_LIBM1(sqrt)
GS_LIBM1(tan)
GS_LIBM2(atan2)
GS_LIBM2(fmod)
GS_LIBM2(nextafter)
GS_LIBM2(pow)

#undef GS_LIBM1
#undef GS_LIBM2

GS_FN double fabs(double x) { return ::fabs(x); }
GS_FN float fabs(float x) { return ::fabsf(x); }

// The function of the C library also stores a sign in a global variable, which threads share.
#if defined(__GLIBC__) && !GS_CUDA
GS_FN double lgamma(double x) {
  int sign;
  return ::lgamma_r(x, &sign);
}
GS_FN float lgamma(float x) {
  int sign;
  return ::lgammaf_r(x, &sign);
}
#else
GS_FN double lgamma(double x) { return ::lgamma(x); }
GS_FN float lgamma(float x) { return ::lgammaf(x); }
#endif

template <class T>
struct FloatTraits;
template <>
struct FloatTraits<double> {
  using Bits = uint64_t;
  static constexpr int mantissa = 52;
  static constexpr int exponent = 11;
};
template <>
struct FloatTraits<float> {
  using Bits = uint32_t;
  static constexpr int mantissa = 23;
  static constexpr int exponent = 8;
};

template <class T>
GS_FN typename FloatTraits<T>::Bits to_bits(T x) {
  return __builtin_bit_cast(typename FloatTraits<T>::Bits, x);
}
template <class T>
GS_FN T from_bits(typename FloatTraits<T>::Bits bits) {
  return __builtin_bit_cast(T, bits);
}

template <class T>
GS_FN T infinity() {
  using Traits = FloatTraits<T>;
  using Bits = typename Traits::Bits;
  return from_bits<T>(((Bits(1) << Traits::exponent) - 1) << Traits::mantissa);
}
template <class T>
GS_FN T quiet_nan() {
  using Traits = FloatTraits<T>;
  using Bits = typename Traits::Bits;
  return from_bits<T>(((Bits(1) << (Traits::exponent + 1)) - 1) << (Traits::mantissa - 1));
}

// The logarithmic derivative of the gamma function. With the reflection formula
// psi(1 - x) - psi(x) = pi / tan(pi x) for x < 1/2, the recurrence psi(x) = psi(x + 1) - 1 / x up
// to x >= 10, and there the asymptotic series log(x) - 1/(2x) - sum B_2k / (2k x^2k), whose first
// omitted term is 4e-17.
template <class T>
GS_FN T digamma(T x) {
  if (x != x || x == -infinity<T>()) return quiet_nan<T>();
  T sum = 0;
  if (x < T(0.5)) {
    const T r = x - rint(x);
    if (r == T(0)) return quiet_nan<T>();  // a pole
    const T pi = T(3.14159265358979323846);
    sum = fabs(r) == T(0.5) ? T(0) : -pi / tan(pi * r);
    x = T(1) - x;
  }
  while (x < T(10)) {
    sum -= T(1) / x;
    x += T(1);
  }
  if (x == infinity<T>()) return x;
  const T z = T(1) / (x * x);
  T series = T(3617.0 / 8160);
  series = series * -z + T(1.0 / 12);
  series = series * -z + T(691.0 / 32760);
  series = series * -z + T(1.0 / 132);
  series = series * -z + T(1.0 / 240);
  series = series * -z + T(1.0 / 252);
  series = series * -z + T(1.0 / 120);
  series = series * -z + T(1.0 / 12);
  return sum + (log(x) - T(0.5) / x - z * series);
}

// M. Giles, Approximating the erfinv function (2010), gives seven digits.
GS_FN float erf_inv(float x) {
  float w = -log1p(-x * x);
  float p;
  if (w < 5.0f) {
    w = w - 2.5f;
    p = 2.81022636e-08f;
    p = p * w + 3.43273939e-07f;
    p = p * w + -3.5233877e-06f;
    p = p * w + -4.39150654e-06f;
    p = p * w + 0.00021858087f;
    p = p * w + -0.00125372503f;
    p = p * w + -0.00417768164f;
    p = p * w + 0.246640727f;
    p = p * w + 1.50140941f;
  } else {
    w = sqrt(w) - 3.0f;
    p = -0.000200214257f;
    p = p * w + 0.000100950558f;
    p = p * w + 0.00134934322f;
    p = p * w + -0.00367342844f;
    p = p * w + 0.00573950773f;
    p = p * w + -0.0076224613f;
    p = p * w + 0.00943887047f;
    p = p * w + 1.00167406f;
    p = p * w + 2.83297682f;
  }
  return fabs(x) == 1.0f ? x * infinity<float>() : p * x;
}

// Halley's iteration on erf(y) = x, or on erfc(y) = 1 - x where that is small: with the Newton
// step u = (erf(y) - x) / erf'(y), y -= u / (1 + y u). It triples the correct digits: those of the
// starting value, which are seven, and in the far tail (by one step of the asymptotic series of
// erfc) at least one.
GS_FN double erf_inv(double x) {
  const double size = fabs(x);
  if (!(size < 1.0)) return size == 1.0 ? x * infinity<double>() : quiet_nan<double>();
  const double tail = 1.0 - size;
  double y;
  int steps = 2;
  if (tail > 1e-6) {
    y = fabs(static_cast<double>(erf_inv(static_cast<float>(size))));
  } else {
    const double l = -log(tail * 1.7724538509055160273);  // sqrt(pi)
    y = sqrt(l - 0.5 * log(l));
    steps = 3;
  }
  for (int step = 0; step < steps; ++step) {
    const double miss = size > 0.5 ? tail - erfc(y) : erf(y) - size;
    const double u = miss * exp(y * y) * 0.88622692545275801365;  // sqrt(pi) / 2
    y -= u / (1.0 + y * u);
  }
  return x < 0.0 ? -y : (x == 0.0 ? x : y);
}

// Integers as in XLA: x / 0 is -1 (all bits set), x % 0 is x, and the smallest number by -1 is
// itself. Nothing traps.
template <class T>
GS_FN T divide(T x, T y) {
  if (y == T(0)) return T(-1);
  if (T(-1) < T(0) && y == T(-1)) return T(0) - x;
  return x / y;
}
template <class T>
GS_FN T remainder(T x, T y) {
  if (y == T(0)) return x;
  if (T(-1) < T(0) && y == T(-1)) return T(0);
  return x % y;
}
GS_FN int32_t divide(int32_t x, int32_t y) {
  if (y == -1) return static_cast<int32_t>(0u - static_cast<uint32_t>(x));
  return y == 0 ? -1 : x / y;
}
GS_FN int64_t divide(int64_t x, int64_t y) {
  if (y == -1) return static_cast<int64_t>(uint64_t(0) - static_cast<uint64_t>(x));
  return y == 0 ? -1 : x / y;
}

#if GS_CUDA
GS_FN int clz(uint32_t x) { return __clz(static_cast<int>(x)); }
GS_FN int clz(uint64_t x) { return __clzll(static_cast<long long>(x)); }
GS_FN int population_count(uint32_t x) { return __popc(x); }
GS_FN int population_count(uint64_t x) { return __popcll(x); }
#else
GS_FN int clz(uint32_t x) { return x == 0 ? 32 : __builtin_clz(x); }
GS_FN int clz(uint64_t x) { return x == 0 ? 64 : __builtin_clzll(x); }
GS_FN int population_count(uint32_t x) { return __builtin_popcount(x); }
GS_FN int population_count(uint64_t x) { return __builtin_popcountll(x); }
#endif

GS_FN uint32_t mulhi(uint32_t x, uint32_t y) {
  return static_cast<uint32_t>((static_cast<uint64_t>(x) * y) >> 32);
}
GS_FN int32_t mulhi(int32_t x, int32_t y) {
  return static_cast<int32_t>((static_cast<int64_t>(x) * y) >> 32);
}
GS_FN uint64_t mulhi(uint64_t x, uint64_t y) {
  const uint64_t xl = x & 0xffffffffu, xh = x >> 32, yl = y & 0xffffffffu, yh = y >> 32;
  const uint64_t middle = xh * yl + ((xl * yl) >> 32);
  return xh * yh + (middle >> 32) + (((middle & 0xffffffffu) + xl * yh) >> 32);
}
GS_FN int64_t mulhi(int64_t x, int64_t y) {
  const uint64_t high = mulhi(static_cast<uint64_t>(x), static_cast<uint64_t>(y));
  return static_cast<int64_t>(high - (x < 0 ? static_cast<uint64_t>(y) : 0) -
                              (y < 0 ? static_cast<uint64_t>(x) : 0));
}

// The number of a narrower format that is nearest, ties to even; too large ones become infinite,
// too small ones zero.
template <int Exponent, int Mantissa, class T>
GS_FN T reduce_precision(T x) {
  using Traits = FloatTraits<T>;
  using Bits = typename Traits::Bits;
  if (x != x) return x;
  const Bits sign_mask = Bits(1) << (8 * sizeof(T) - 1);
  Bits bits = to_bits(x);
  const Bits sign = bits & sign_mask;
  bits &= ~sign_mask;
  constexpr int dropped = Traits::mantissa - Mantissa;
  if constexpr (dropped > 0) {
    const Bits last = (bits >> dropped) & 1;
    bits += (Bits(1) << (dropped - 1)) - 1 + last;
    bits &= ~((Bits(1) << dropped) - 1);
  }
  if constexpr (Exponent < Traits::exponent) {
    const Bits bias = (Bits(1) << (Traits::exponent - 1)) - 1;
    const Bits reduced_bias = (Bits(1) << (Exponent - 1)) - 1;
    const Bits exponent = bits >> Traits::mantissa;
    if (exponent > bias + reduced_bias) bits = to_bits(infinity<T>());
    if (exponent <= bias - reduced_bias) bits = 0;
  }
  return from_bits<T>(bits | sign);
}

}  // namespace scalar

// ---- Lane by lane ------------------------------------------------------------------------------

#define GS_FLOAT1(name)                                                \
  GS_FN F32 name(F32 x) {                                              \
    return map([](float a) GS_LAMBDA { return scalar::name(a); }, x);  \
  }                                                                    \
  GS_FN F64 name(F64 x) {                                              \
    return map([](double a) GS_LAMBDA { return scalar::name(a); }, x); \
  }
#define GS_FLOAT2(name)                                                                \
  GS_FN F32 name(F32 x, F32 y) {                                                       \
    return map([](float a, float b) GS_LAMBDA { return scalar::name(a, b); }, x, y);   \
  }                                                                                    \
  GS_FN F64 name(F64 x, F64 y) {                                                       \
    return map([](double a, double b) GS_LAMBDA { return scalar::name(a, b); }, x, y); \
  }

GS_FLOAT1(acos)
GS_FLOAT1(acosh)
GS_FLOAT1(asin)
GS_FLOAT1(asinh)
GS_FLOAT1(atan)
GS_FLOAT1(atanh)
GS_FLOAT1(cbrt)
GS_FLOAT1(ceil)
GS_FLOAT1(cosh)
GS_FLOAT1(digamma)
GS_FLOAT1(erf)
GS_FLOAT1(erf_inv)
GS_FLOAT1(erfc)
GS_FLOAT1(exp2)
GS_FLOAT1(lgamma)
GS_FLOAT1(sinh)
GS_FLOAT1(tan)
GS_FLOAT2(atan2)
GS_FLOAT2(nextafter)

#if GS_LANES == 1
GS_FLOAT1(cos)
GS_FLOAT1(exp)
GS_FLOAT1(expm1)
GS_FLOAT1(log)
GS_FLOAT1(log1p)
GS_FLOAT1(sin)
GS_FLOAT2(pow)
#else
}  // namespace gs
#define GS_WITHIN_MATH
#include "gs/math_packs.h"
#undef GS_WITHIN_MATH
namespace gs {
#if !GS_EXACT_FMA
GS_FLOAT2(pow)
#endif
#endif

#undef GS_FLOAT1
#undef GS_FLOAT2

GS_FN F32 round_away(F32 x) {
  return map([](float a) GS_LAMBDA { return scalar::round(a); }, x);
}
GS_FN F64 round_away(F64 x) {
  return map([](double a) GS_LAMBDA { return scalar::round(a); }, x);
}
GS_FN F32 round_even(F32 x) {
  return map([](float a) GS_LAMBDA { return scalar::rint(a); }, x);
}
GS_FN F64 round_even(F64 x) {
  return map([](double a) GS_LAMBDA { return scalar::rint(a); }, x);
}

#define GS_INTEGERS(define) define(I32) define(I64) define(U32) define(U64)
#define GS_ALL_NUMBERS(define) GS_INTEGERS(define) define(F32) define(F64)

#define GS_DIVIDE(T)                                                              \
  GS_FN T divide(T x, T y) {                                                      \
    using S = scalar_of<T>;                                                       \
    return map([](S a, S b) GS_LAMBDA { return scalar::divide(a, b); }, x, y);    \
  }                                                                               \
  GS_FN T remainder(T x, T y) {                                                   \
    using S = scalar_of<T>;                                                       \
    return map([](S a, S b) GS_LAMBDA { return scalar::remainder(a, b); }, x, y); \
  }                                                                               \
  GS_FN T mulhi(T x, T y) {                                                       \
    using S = scalar_of<T>;                                                       \
    return map([](S a, S b) GS_LAMBDA { return scalar::mulhi(a, b); }, x, y);     \
  }
GS_INTEGERS(GS_DIVIDE)
#undef GS_DIVIDE

// The sign is that of the dividend.
GS_FN F32 remainder(F32 x, F32 y) {
  return map([](float a, float b) GS_LAMBDA { return scalar::fmod(a, b); }, x, y);
}
GS_FN F64 remainder(F64 x, F64 y) {
  return map([](double a, double b) GS_LAMBDA { return scalar::fmod(a, b); }, x, y);
}

#define GS_BITS(T, Unsigned)                                                               \
  GS_FN T clz(T x) {                                                                       \
    using S = scalar_of<T>;                                                                \
    return map([](S a) GS_LAMBDA { return S(scalar::clz(Unsigned(a))); }, x);              \
  }                                                                                        \
  GS_FN T population_count(T x) {                                                          \
    using S = scalar_of<T>;                                                                \
    return map([](S a) GS_LAMBDA { return S(scalar::population_count(Unsigned(a))); }, x); \
  }
GS_BITS(I32, uint32_t)
GS_BITS(U32, uint32_t)
GS_BITS(I64, uint64_t)
GS_BITS(U64, uint64_t)
#undef GS_BITS

template <int Exponent, int Mantissa, class T>
GS_FN T reduce_precision(T x) {
  using S = scalar_of<T>;
  return map([](S a) GS_LAMBDA { return scalar::reduce_precision<Exponent, Mantissa>(a); }, x);
}

// ---- By operations on all lanes ----------------------------------------------------------------

template <class T>
GS_FN T infinity() {
  return T(scalar::infinity<scalar_of<T>>());
}
template <class T>
GS_FN T quiet_nan() {
  return T(scalar::quiet_nan<scalar_of<T>>());
}

GS_FN F32 rsqrt(F32 x) { return F32(1.0f) / sqrt(x); }
GS_FN F64 rsqrt(F64 x) { return F64(1.0) / sqrt(x); }

// nan and zeros of either sign are their own signs.
#define GS_SIGN(T) \
  GS_FN T sign(T x) { return select(x > T(0), T(1), select(x < T(0), T(-1), x)); }
GS_SIGN(F32)
GS_SIGN(F64)
GS_SIGN(I32)
GS_SIGN(I64)
#undef GS_SIGN
GS_FN U32 sign(U32 x) { return select(x > U32(0), U32(1), x); }
GS_FN U64 sign(U64 x) { return select(x > U64(0), U64(1), x); }

// The integer towards zero; numbers out of range become the nearest integer, and nan becomes 0.
template <class To, class From>
GS_FN To truncate(From x) {
  using S = scalar_of<To>;
  using R = scalar_of<From>;
  constexpr int bits = 8 * sizeof(S);
  constexpr bool is_signed = S(-1) < S(0);
  // Powers of two, which floats of either width represent.
  constexpr R limit = static_cast<R>(uint64_t(1) << (bits - 1)) * (is_signed ? R(1) : R(2));
  constexpr S largest =
      static_cast<S>(is_signed ? (~uint64_t(0) >> (65 - bits)) : (~uint64_t(0) >> (64 - bits)));
  constexpr S smallest = is_signed ? static_cast<S>(-largest - 1) : S(0);
  const Mask above = x >= From(limit);
  const Mask below = is_signed ? x < From(-limit) : x <= From(R(-1));
  const From inside = select(above | below | (x != x), From(R(0)), x);
  return select(above, To(largest), select(below, To(smallest), convert<To>(inside)));
}

// Shifts by as many bits as there are, or more, move everything out.
#define GS_SHIFTS(T, Unsigned, Signed)                                           \
  GS_FN T shift_left(T x, T n) {                                                 \
    constexpr int bits = 8 * sizeof(scalar_of<T>);                               \
    const Mask less = convert<Unsigned>(n) < Unsigned(bits);                     \
    const Unsigned count = select(less, convert<Unsigned>(n), Unsigned(0));      \
    return convert<T>(select(less, convert<Unsigned>(x) << count, Unsigned(0))); \
  }                                                                              \
  GS_FN T shift_right_logical(T x, T n) {                                        \
    constexpr int bits = 8 * sizeof(scalar_of<T>);                               \
    const Mask less = convert<Unsigned>(n) < Unsigned(bits);                     \
    const Unsigned count = select(less, convert<Unsigned>(n), Unsigned(0));      \
    return convert<T>(select(less, convert<Unsigned>(x) >> count, Unsigned(0))); \
  }                                                                              \
  GS_FN T shift_right_arithmetic(T x, T n) {                                     \
    constexpr int bits = 8 * sizeof(scalar_of<T>);                               \
    const Mask less = convert<Unsigned>(n) < Unsigned(bits);                     \
    const Signed count = select(less, convert<Signed>(n), Signed(bits - 1));     \
    return convert<T>(convert<Signed>(x) >> count);                              \
  }
GS_SHIFTS(I32, U32, I32)
GS_SHIFTS(U32, U32, I32)
GS_SHIFTS(I64, U64, I64)
GS_SHIFTS(U64, U64, I64)
#undef GS_SHIFTS
#undef GS_INTEGERS
#undef GS_ALL_NUMBERS

// The order of all floats, -nan < -inf < ... < -0 < 0 < ... < inf < nan: that of their bits, after
// those below the sign of negative numbers are flipped.
namespace detail {
GS_FN I64 order(F64 x) {
  const I64 bits = bit_cast<I64>(x);
  return bits ^ ((bits >> I64(63)) & I64(0x7fffffffffffffffll));
}
GS_FN I32 order(F32 x) {
  const I32 bits = bit_cast<I32>(x);
  return bits ^ ((bits >> I32(31)) & I32(0x7fffffff));
}
}  // namespace detail

template <class T>
GS_FN Mask total_equal(T x, T y) {
  return detail::order(x) == detail::order(y);
}
template <class T>
GS_FN Mask total_less(T x, T y) {
  return detail::order(x) < detail::order(y);
}
template <class T>
GS_FN Mask total_less_equal(T x, T y) {
  return detail::order(x) <= detail::order(y);
}

// ---- Tables ------------------------------------------------------------------------------------

// An entry of a table of constants, one per lane.
template <class T, class S, class I>
GS_FN T lookup(const S* table, I entry) {
  T out;
  for (int l = 0; l < GS_LANES; ++l) set_lane(out, l, scalar_of<T>(table[lane(entry, l)]));
  return out;
}

}  // namespace gs
