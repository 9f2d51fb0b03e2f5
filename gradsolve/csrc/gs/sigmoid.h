// tanh and the logistic function, the activations of most networks: without branches, so that
// several of them overlap, and with one division.
//
// Each result is within two units of the last place, subnormal numbers and special values included
// (tests/test_lowering_math.py); where fma() rounds twice, tanh of a double within 2.3. No tanh is
// above one.

#pragma once

#include "gs/math_parts.h"

namespace gs {
namespace detail {

// x = n log(2) / 2 + h, and s = tanh(h): then exp(2 x) = 2^n (1 + s) / (1 - s).
template <class T, class I>
struct Halved {
  I n;
  T s;
};

// tanh(h) = h + h z P(z) with z = h^2, where P interpolates (tanh(h) / h - 1) / z at Chebyshev's
// nodes. The first product is exact, of a log(2) / 2 in two parts. Instead of the nearest n we take
// one that is lower by up to 0.0155, so that |s| <= 1/6 where n is one and s negative: see
// linear().
GS_FN Halved<F64, I64> halved(F64 x) {
  Halved<F64, I64> out;
  const F64 n = nearest(fma(x, F64(2.8853900817779268), F64(-0.0155)), out.n);
  const F64 h = fma(n, F64(-9.541074646352939e-11), fma(n, F64(-0.3465735901845619), x));
  const F64 z = h * h;
  const F64 p =
      horner(z, -0.3333333333333333, 0.1333333333333262, -0.05396825396467422, 0.0218694878623413,
             -0.008863175071914975, 0.0035893380527376563, -0.0013916921616794692);
  out.s = fma(h * z, p, h);
  return out;
}
GS_FN Halved<F32, I32> halved(F32 x) {
  Halved<F32, I32> out;
  const F32 n = nearest(fma(x, F32(2.88539f), F32(-0.0155f)), out.n);
  const F32 h = fma(n, F32(-7.143034e-07f), fma(n, F32(-0.34657288f), x));
  const F32 z = h * h;
  out.s = fma(h * z, horner(z, -0.3333333f, 0.13332103f, -0.05293622f), h);
  return out;
}

// a + b s, which is between half of a and twice a: so the difference below is exact.
template <class T>
GS_FN Parts<T> linear(T a, T b, T s) {
  const T high = fma(b, s, a);
  return {high, fma(b, s, a - high)};
}

// (exp(2 x) - 1) / (exp(2 x) + 1). Near zero n is zero, and this is s without any rounding.
template <class T>
GS_FN T tanh(T x, double saturated) {
  using S = scalar_of<T>;
  const T size = abs(x), one = T(S(1)), most = T(S(saturated));
  const auto e = halved(select(size > most, most, size));
  const T power = power_of_two(e.n), below = power - one, above = power + one;
  return copy_sign(quotient(linear(below, above, e.s), linear(above, below, e.s)), x);
}

// exp(x) / (exp(x) + 1). As with the formula 1 / (1 + exp(-x)), it is zero where exp(-x) is
// infinite.
template <class T>
GS_FN T logistic(T x, double smallest, double saturated) {
  using S = scalar_of<T>;
  const T one = T(S(1));
  const auto e = halved(T(S(0.5)) * clamped(x, smallest, saturated));
  const T power = power_of_two(e.n), below = power - one, above = power + one;
  const T value = quotient(linear(one, one, e.s), linear(above, below, e.s));
  return select(x < T(S(smallest)), T(S(0)), scale(value, e.n));
}

}  // namespace detail

GS_PACK_FN F64 tanh(F64 x) { return detail::tanh(x, 22.0); }
#if GS_CUDA
// CUDA's own has no branches either, and is shorter.
GS_FN float tanh(float x) { return ::tanhf(x); }
#else
GS_PACK_FN F32 tanh(F32 x) { return detail::tanh(x, 10.0); }
#endif

GS_PACK_FN F64 logistic(F64 x) { return detail::logistic(x, -709.0, 40.0); }
GS_PACK_FN F32 logistic(F32 x) { return detail::logistic(x, -88.0, 20.0); }

}  // namespace gs
