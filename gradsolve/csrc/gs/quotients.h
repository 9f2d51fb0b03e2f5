// Quotients and square roots of doubles, without branches.
//
// On a GPU a division of doubles is a dozen instructions, each of which waits for the one before,
// and a branch, for operands and results near the ends of the range. The branch keeps the compiler
// from doing anything else while it waits. A function is therefore written once for either way of
// dividing: `Quick` takes the steps of the compiler without a branch and notes where they may be
// wrong, and then the function is computed again, by `Exact`. So the results are the same bits.
// A CPU divides in one instruction, and needs no second way.

#pragma once

#include "gs/math.h"

namespace gs {

struct Exact {
  static constexpr bool failed = false;
  GS_FN static F64 divide(F64 a, F64 b) { return a / b; }
  GS_FN static F64 sqrt(F64 x) { return gs::sqrt(x); }
};

constexpr bool kQuickQuotients = GS_CUDA;

#if GS_CUDA

namespace detail {

struct Quotient {
  double first;    // before the correction
  double rounded;  // correctly, of numbers that are not near the ends of the range
};

// Newton's iteration for 1 / b, and one correction of the quotient, by its remainder.
GS_FN Quotient divided(double a, double b) {
  double inverse;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(b));
  inverse = __hiloint2double(__double2hiint(inverse), 1);
  double rest = ::fma(-b, inverse, 1.0);
  rest = ::fma(rest, rest, rest);
  inverse = ::fma(inverse, rest, inverse);
  inverse = ::fma(inverse, ::fma(-b, inverse, 1.0), inverse);
  const double first = a * inverse;
  return {first, ::fma(inverse, ::fma(-b, first, a), first)};
}

}  // namespace detail

// The quotient of numbers that are known not to be near the ends of the range.
GS_FN double divide_ordinary(double a, double b) { return detail::divided(a, b).rounded; }

struct Quick {
  bool failed = false;

  GS_FN double divide(double a, double b) {
    const auto quotient = detail::divided(a, b);
    // Comparisons of the upper halves as floats: the exponents of doubles reach further, but their
    // bits are ordered alike. The sum is nan if b has one of the largest exponents or is nan.
    const bool exact_remainder = !(::fabsf(upper(a)) < 6.5827683646048100446e-37f);
    const float sum = ::fmaf(0.0f, upper(b), upper(quotient.rounded));
    const bool normal = ::fabsf(sum) > 1.469367938527859385e-39f;
    // Of zero all steps leave zero, unless b is out of range: then they leave nan.
    const bool zero = a == 0.0 && quotient.first == 0.0;
    failed = failed | !((exact_remainder & normal) | zero);
    return zero ? quotient.first : quotient.rounded;
  }

  // A step of third order for 1 / sqrt(x), and one correction of the root, by its remainder.
  GS_FN double sqrt(double x) {
    double inverse;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(x));
    const double rest = ::fma(x, -(inverse * inverse), 1.0);
    inverse = ::fma(::fma(rest, 0.375, 0.5), inverse * rest, inverse);
    const double first = x * inverse;
    const double out = ::fma(::fma(first, -first, x), 0.5 * inverse, first);
    const bool zero = x == 0.0;
    const uint32_t above = static_cast<uint32_t>(__double2hiint(x)) - 0x03500000u;
    failed = failed | !((above < 0x7ca00000u) | zero);
    return zero ? x : out;
  }

 private:
  GS_FN static float upper(double x) { return __int_as_float(__double2hiint(x)); }
};

#else

GS_FN F64 divide_ordinary(F64 a, F64 b) { return a / b; }

using Quick = Exact;  // named, but not used

#endif

GS_FN F32 divide_ordinary(F32 a, F32 b) { return a / b; }

}  // namespace gs
