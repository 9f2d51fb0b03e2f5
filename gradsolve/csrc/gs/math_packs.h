// Elementary functions of packs: the same operations for all lanes, without branches.
//
// Included by math.h if GS_LANES > 1. Each result is within two units of the last place, subnormal
// numbers and special values included (tests/test_lowering_math.py). The constants are those of
// fdlibm (Sun Microsystems, 1993) and of its successors for floats. Where the arguments of some
// lane are extreme, the functions of the C library take over, lane by lane.

// A part of math.h, in its middle: whoever includes this file gets the whole.
#ifndef GS_WITHIN_MATH
#include "gs/math.h"
#else

namespace gs {
namespace detail {

// Shifts that fill with zeros and conversions by addition: AVX2 has no others for 64 bits.
GS_FN F64 number_of(U64 small) {
  return bit_cast<F64>(small | U64(0x4330000000000000ull)) - F64(4503599627370496.0);
}
GS_FN F32 number_of(U32 small) { return convert<F32>(bit_cast<I32>(small)); }

// exp(x) = 2^n (1 + high + low), where low is below the last place of high.
template <class T, class I>
struct Exponential {
  I n;
  T high;
  T low;
};

// x = n log(2) + r + r_low with |r| <= log(2) / 2, and exp(r) - 1 = r + r^2 (1/2 + r/6 + ...): the
// Taylor series to the term that is below a hundredth of a unit of the last place.
GS_FN Exponential<F64, I64> exponential(F64 x) {
  Exponential<F64, I64> out;
  const F64 n = nearest(x * F64(1.44269504088896338700e+00), out.n);
  const F64 a = fma(n, F64(-6.93147180369123816490e-01), x);  // exact
  const F64 r = fma(n, F64(-1.90821492927058770002e-10), a);
  const F64 r_low = fma(n, F64(-1.90821492927058770002e-10), a - r);
  const F64 q =
      horner(r, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
             1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0);
  const F64 rest = r * r * q;
  out.high = r + rest;
  out.low = ((r - out.high) + rest) + r_low;
  return out;
}
GS_FN Exponential<F32, I32> exponential(F32 x) {
  Exponential<F32, I32> out;
  const F32 n = nearest(x * F32(1.44269504f), out.n);
  const F32 a = fma(n, F32(-6.93145752e-01f), x);  // exact
  const F32 r = fma(n, F32(-1.42860677e-06f), a);
  const F32 r_low = fma(n, F32(-1.42860677e-06f), a - r);
  const F32 q = horner(r, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040);
  const F32 rest = r * r * q;
  out.high = r + rest;
  out.low = ((r - out.high) + rest) + r_low;
  return out;
}

// a + b and what that loses.
template <class T>
GS_FN Parts<T> add(T a, T b) {
  const T sum = a + b, back = sum - a;
  return {sum, (a - (sum - back)) + (b - back)};
}

// exp(x) - 1 = 2^n (high + low) + (2^n - 1), for |x| < 700.
template <class T>
GS_FN Parts<T> exp_minus_one(T x) {
  using S = scalar_of<T>;
  const auto e = exponential(x);
  const T power = power_of_two(e.n);
  Parts<T> sum = add(power - T(S(1)), power * e.high);
  sum.low = fma(power, e.low, sum.low);
  return sum;
}

}  // namespace detail

// Beyond these limits the result is infinite or zero, also by the formula.
GS_FN F64 exp(F64 x) {
  const auto e = detail::exponential(detail::clamped(x, -746.0, 710.0));
  return detail::scale(F64(1.0) + e.high, e.n);
}
GS_FN F32 exp(F32 x) {
  const auto e = detail::exponential(detail::clamped(x, -104.0, 89.0));
  return detail::scale(F32(1.0f) + e.high, e.n);
}

GS_PACK_FN F64 expm1(F64 x) {
  const auto sum = detail::exp_minus_one(detail::clamped(x, -40.0, 700.0));
  const F64 value = select(x > F64(700.0), exp(x), sum.high + sum.low);
  return select(x == F64(0.0), x, value);
}
GS_PACK_FN F32 expm1(F32 x) {
  const auto sum = detail::exp_minus_one(detail::clamped(x, -20.0, 80.0));
  const F32 value = select(x > F32(80.0f), exp(x), sum.high + sum.low);
  return select(x == F32(0.0f), x, value);
}

// ---- Logarithms --------------------------------------------------------------------------------

namespace detail {

// x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), of a positive finite number.
struct Split64 {
  F64 k;
  F64 f;
};
GS_FN Split64 split(F64 x) {
  const Mask tiny = x < F64(2.2250738585072014e-308);
  const U64 bits = bit_cast<U64>(select(tiny, x * F64(18014398509481984.0), x)) +
                   U64(0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
  Split64 out;
  out.k = number_of(bits >> U64(52)) - select(tiny, F64(1077.0), F64(1023.0));
  out.f =
      bit_cast<F64>((bits & U64(0x000fffffffffffffull)) + U64(0x3fe6a09e667f3bcdull)) - F64(1.0);
  return out;
}
struct Split32 {
  F32 k;
  F32 f;
};
GS_FN Split32 split(F32 x) {
  const Mask tiny = x < F32(1.17549435e-38f);
  const U32 bits =
      bit_cast<U32>(select(tiny, x * F32(33554432.0f), x)) + U32(0x3f800000u - 0x3f3504f3u);
  Split32 out;
  out.k = number_of(bits >> U32(23)) - select(tiny, F32(152.0f), F32(127.0f));
  out.f = bit_cast<F32>((bits & U32(0x007fffffu)) + U32(0x3f3504f3u)) - F32(1.0f);
  return out;
}

// log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)) with s = f / (2 + f); plus k log(2) in two parts.
GS_FN F64 log_finite(F64 x, F64 correction) {
  const Split64 parts = split(x);
  const F64 f = parts.f, s = f / (F64(2.0) + f), z = s * s, half = F64(0.5) * f * f;
  const F64 r =
      z * horner(z, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                 1.479819860511658591e-01);
  const F64 low = fma(parts.k, F64(1.90821492927058770002e-10), correction);
  return parts.k * F64(6.93147180369123816490e-01) - ((half - fma(s, half + r, low)) - f);
}
GS_FN F32 log_finite(F32 x, F32 correction) {
  const Split32 parts = split(x);
  const F32 f = parts.f, s = f / (F32(2.0f) + f), z = s * s, half = F32(0.5f) * f * f;
  const F32 r = z * horner(z, 0.66666662693f, 0.40000972152f, 0.28498786688f, 0.24279078841f);
  const F32 low = fma(parts.k, F32(9.0580006145e-06f), correction);
  return parts.k * F32(6.9313812256e-01f) - ((half - fma(s, half + r, low)) - f);
}

// The values of a logarithm at its ends: of zero, of negative numbers, of infinity and nan.
template <class T>
GS_FN T log_ends(T x, T value) {
  using S = scalar_of<T>;
  const T infinite = T(scalar::infinity<S>());
  const T ends = select(x == T(S(0)), -infinite, T(scalar::quiet_nan<S>()));
  return select(x > T(S(0)), select(x < infinite, value, x), ends);
}

}  // namespace detail

GS_FN F64 log(F64 x) { return detail::log_ends(x, detail::log_finite(x, F64(0.0))); }
GS_FN F32 log(F32 x) { return detail::log_ends(x, detail::log_finite(x, F32(0.0f))); }

// log(1 + x) = log(u) + (x - (u - 1)) / u, where u is 1 + x after rounding.
GS_PACK_FN F64 log1p(F64 x) {
  const F64 u = F64(1.0) + x;
  const F64 value =
      detail::log_ends(u, detail::log_finite(u, F64(0.0)) +
                              select(u > F64(1e300), F64(0.0), (x - (u - F64(1.0))) / u));
  return select(u == F64(1.0), x, value);
}
GS_PACK_FN F32 log1p(F32 x) {
  const F32 u = F32(1.0f) + x;
  const F32 value =
      detail::log_ends(u, detail::log_finite(u, F32(0.0f)) +
                              select(u > F32(1e30f), F32(0.0f), (x - (u - F32(1.0f))) / u));
  return select(u == F32(1.0f), x, value);
}

// ---- Powers ------------------------------------------------------------------------------------

#if GS_EXACT_FMA

namespace detail {

// exp(y log(x)) with log(x) in two parts, since |y log(x)| may be 745: with s = f / (2 + f),
// log(1 + f) = 2 s + 2/3 s^3 + 2/5 s^5 + ..., where the first two terms need both parts.
GS_PACK_FN F64 pow_positive(F64 x, F64 y) {
  const Split64 parts = split(x);
  const F64 f = parts.f, sum = F64(2.0) + f, sum_low = f - (sum - F64(2.0));
  const F64 s = f / sum, s_low = (fma(-s, sum, f) - s * sum_low) / sum;
  const F64 z = s * s, z_low = fma(s, s, -z) + F64(2.0) * s * s_low;
  const F64 cube = z * s, cube_low = fma(z, s, -cube) + (z * s_low + z_low * s);
  const F64 third = F64(2.0 / 3), third_low = F64(3.70074341541718826e-17);
  const F64 term = cube * third;
  const F64 term_low = fma(cube, third, -term) + (cube * third_low + cube_low * third);
  // 2/5 s^5 + 2/7 s^7 + ... with |s| <= 0.172, to below 2^-66 of the sum.
  const F64 rest = cube * z *
                   horner(z, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17,
                          2.0 / 19, 2.0 / 21, 2.0 / 23);
  const F64 scaled = parts.k * F64(6.93147180369123816490e-01);
  const F64 twice = F64(2.0) * s;
  const F64 inner = twice + term, inner_low = (twice - inner) + term;
  const Parts<F64> leading = add(scaled, inner);
  const F64 others = leading.low + (inner_low + (fma(F64(2.0), s_low, term_low) + rest) +
                                    parts.k * F64(1.90821492927058770002e-10));
  const F64 high = leading.high + others, low = (leading.high - high) + others;
  const F64 product = y * high;
  const F64 product_low = fma(y, high, -product) + y * low;
  const F64 inside = clamped(product, -746.0, 710.0);
  const auto e = exponential(inside);
  // exp(a + b) = exp(a) (1 + b) for the small part; where the product is clamped it means nothing.
  const F64 small = select(inside == product, product_low, F64(0.0));
  const F64 factor = F64(1.0) + e.high;
  return scale(factor + fma(factor, small, e.low), e.n);
}

GS_PACK_FN F64 pow_lanes(F64 x, F64 y) {
  return map([](double a, double b) GS_LAMBDA { return scalar::pow(a, b); }, x, y);
}
GS_PACK_FN F32 pow_lanes(F32 x, F32 y) {
  return map([](float a, float b) GS_LAMBDA { return scalar::pow(a, b); }, x, y);
}

}  // namespace detail

GS_FN F64 pow(F64 x, F64 y) {
  const Mask ordinary =
      (x > F64(0.0)) & (x < F64(scalar::infinity<double>())) & (abs(y) < F64(1e100));
  // Each lane by itself, so that its bits do not depend on its neighbours.
  const F64 out =
      detail::pow_positive(select(ordinary, x, F64(1.0)), select(ordinary, y, F64(1.0)));
  return all(ordinary) ? out : select(ordinary, out, detail::pow_lanes(x, y));
}
// Twice the precision makes one part enough.
GS_FN F32 pow(F32 x, F32 y) {
  const Mask ordinary =
      (x > F32(0.0f)) & (x < F32(scalar::infinity<float>())) & (abs(y) < F32(1e30f));
  const F64 wide = convert<F64>(select(ordinary, x, F32(1.0f)));
  const F32 out = convert<F32>(exp(convert<F64>(select(ordinary, y, F32(1.0f))) * log(wide)));
  return all(ordinary) ? out : select(ordinary, out, detail::pow_lanes(x, y));
}

#endif  // GS_EXACT_FMA

// ---- Sine and cosine ---------------------------------------------------------------------------

namespace detail {

GS_FN F64 sin_lanes(F64 x) {
  return map([](double a) GS_LAMBDA { return scalar::sin(a); }, x);
}
GS_FN F32 sin_lanes(F32 x) {
  return map([](float a) GS_LAMBDA { return scalar::sin(a); }, x);
}
GS_FN F64 cos_lanes(F64 x) {
  return map([](double a) GS_LAMBDA { return scalar::cos(a); }, x);
}
GS_FN F32 cos_lanes(F32 x) {
  return map([](float a) GS_LAMBDA { return scalar::cos(a); }, x);
}

#if GS_EXACT_FMA

// sin(x + quadrant pi/2): x = n pi/2 + r + r_low, where pi/2 is written in three parts. The first
// two products are exact; the rounding of the second difference is kept in r_low.
GS_FN F64 sin_shifted(F64 x, int64_t quadrant) {
  I64 n;
  const F64 turns = nearest(x * F64(6.36619772367581382433e-01), n);
  const F64 a = fma(-turns, F64(1.57079632679489655800e+00), x);
  const F64 r = fma(-turns, F64(6.12323399573676603587e-17), a);
  const F64 r_low = fma(-turns, F64(-1.4973849048591833e-33),
                        fma(-turns, F64(6.12323399573676603587e-17), a - r));
  const F64 z = r * r;
  const F64 sine_rest =
      horner(z, 8.33333333332248946124e-03, -1.98412698298579493134e-04, 2.75573137070700676789e-06,
             -2.50507602534068634195e-08, 1.58969099521155010221e-10);
  const F64 cube = z * r;
  const F64 sine = r - ((z * (F64(0.5) * r_low - cube * sine_rest) - r_low) -
                        cube * F64(-1.66666666666666324348e-01));
  const F64 cosine_rest = z * horner(z, 4.16666666666666019037e-02, -1.38888888888741095749e-03,
                                     2.48015872894767294178e-05, -2.75573143513906633035e-07,
                                     2.08757232129817482790e-09, -1.13596475577881948265e-11);
  const F64 half = F64(0.5) * z, w = F64(1.0) - half;
  const F64 cosine = w + (((F64(1.0) - w) - half) + (z * cosine_rest - r * r_low));
  const I64 q = n + I64(quadrant);
  const F64 value = select((q & I64(1)) != I64(0), cosine, sine);
  return select((q & I64(2)) != I64(0), -value, value);
}

#endif  // GS_EXACT_FMA

// Of a float, in twice the precision: two parts of pi/2 and four terms are enough.
GS_FN F32 sin_shifted(F32 x, int64_t quadrant) {
  I64 n;
  const F64 wide = convert<F64>(x);
  const F64 turns = nearest(wide * F64(6.36619772367581382433e-01), n);
  const F64 r =
      (wide - turns * F64(1.57079631090164184570e+00)) - turns * F64(1.58932547735281966916e-08);
  const F64 z = r * r;
  const F64 sine = r + r * z *
                           horner(z, -0.166666666416265235595, 0.0083333293858894631756,
                                  -0.000198393348360966317347, 0.0000027183114939898219064);
  const F64 cosine = F64(1.0) + z * horner(z, -0.499999997251031003120, 0.0416666233237390631894,
                                           -0.00138867637746099294692, 0.0000243904487962774090654);
  const I64 q = n + I64(quadrant);
  const F64 value = select((q & I64(1)) != I64(0), cosine, sine);
  return convert<F32>(select((q & I64(2)) != I64(0), -value, value));
}

}  // namespace detail

#if GS_EXACT_FMA
GS_PACK_FN F64 sin(F64 x) {
  const Mask large = abs(x) > F64(1e8);
  const F64 out = detail::sin_shifted(select(large, F64(1.0), x), 0);
  return select(large | (x == F64(0.0)), any(large) ? select(large, detail::sin_lanes(x), x) : x,
                out);
}
GS_PACK_FN F64 cos(F64 x) {
  const Mask large = abs(x) > F64(1e8);
  const F64 out = detail::sin_shifted(select(large, F64(1.0), x), 1);
  return any(large) ? select(large, detail::cos_lanes(x), out) : out;
}
#else
GS_FN F64 sin(F64 x) { return detail::sin_lanes(x); }
GS_FN F64 cos(F64 x) { return detail::cos_lanes(x); }
#endif
GS_PACK_FN F32 sin(F32 x) {
  const Mask large = abs(x) > F32(1e6f);
  const F32 out = detail::sin_shifted(select(large, F32(1.0f), x), 0);
  return select(large | (x == F32(0.0f)), any(large) ? select(large, detail::sin_lanes(x), x) : x,
                out);
}
GS_PACK_FN F32 cos(F32 x) {
  const Mask large = abs(x) > F32(1e6f);
  const F32 out = detail::sin_shifted(select(large, F32(1.0f), x), 1);
  return any(large) ? select(large, detail::cos_lanes(x), out) : out;
}

}  // namespace gs

#endif
