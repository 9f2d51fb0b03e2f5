// Quotients and square roots of doubles, with fewer branches.
//
// On a GPU a division of doubles is a dozen instructions, each of which waits for the one before,
// and a branch, for operands and results near the ends of the range. The branch keeps the compiler
// from doing anything else while it waits. The steps of the compiler can be taken without it, and
// where they may be wrong be noted. Whether they were is asked once: at the end of a function that
// is written for either way of dividing, `Quick` or `Exact`, which is then computed again; or after
// several quotients (`Quotients`, `Roots`), which are then divided again. So the results are the
// same bits. A CPU divides in one instruction, and needs no second way.

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
  double rounded;  // correctly, if it is ordinary
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

GS_FN float upper(double x) { return __int_as_float(__double2hiint(x)); }

// Whether a quotient is neither near the ends of the range nor of zero. Comparisons of the upper
// halves as floats: the exponents of doubles reach further, but their bits are ordered alike.
GS_FN bool ordinary(double a, double b, double rounded) {
  const bool exact_remainder = !(::fabsf(upper(a)) < 6.5827683646048100446e-37f);
  // The sum is nan if b has one of the largest exponents or is nan.
  const float sum = ::fmaf(0.0f, upper(b), upper(rounded));
  const bool normal = ::fabsf(sum) > 1.469367938527859385e-39f;
  return exact_remainder & normal;
}

// A step of third order for 1 / sqrt(x), and one correction of the root, by its remainder.
GS_FN double root(double x) {
  double inverse;
  asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(x));
  const double rest = ::fma(x, -(inverse * inverse), 1.0);
  inverse = ::fma(::fma(rest, 0.375, 0.5), inverse * rest, inverse);
  const double first = x * inverse;
  return ::fma(::fma(first, -first, x), 0.5 * inverse, first);
}

// Whether the root is right.
GS_FN bool ordinary(double x) {
  return static_cast<uint32_t>(__double2hiint(x)) - 0x03500000u < 0x7ca00000u;
}

template <int N>
GS_FN void move_up(double (&numbers)[N], double last) {
  static_for<N - 1>([&](auto i) GS_LAMBDA { numbers[i] = numbers[i + 1]; });
  numbers[N - 1] = last;
}

}  // namespace detail

// The quotient of numbers that are known not to be near the ends of the range.
GS_FN double divide_ordinary(double a, double b) { return detail::divided(a, b).rounded; }

// Zeros are frequent, and no reason to compute a whole function again.
struct Quick {
  bool failed = false;

  GS_FN double divide(double a, double b) {
    const auto quotient = detail::divided(a, b);
    // Of zero all steps leave zero, unless b is out of range: then they leave nan.
    const bool zero = a == 0.0 && quotient.first == 0.0;
    failed = failed | !(detail::ordinary(a, b, quotient.rounded) | zero);
    return zero ? quotient.first : quotient.rounded;
  }

  GS_FN double sqrt(double x) {
    const double root = detail::root(x);
    const bool zero = x == 0.0;
    failed = failed | !(detail::ordinary(x) | zero);
    return zero ? x : root;
  }
};

#else

GS_FN F64 divide_ordinary(F64 a, F64 b) { return a / b; }

using Quick = Exact;  // named, but not used

#endif

GS_FN F32 divide_ordinary(F32 a, F32 b) { return a / b; }

// Quotients that do not need each other. Where one has to be divided again, all are, by one
// division that they pass in turn, in registers: that is seldom, and text takes time to compile.
template <int N>
class Quotients {
 public:
  GS_FN Quotients(const F64 (&a)[N], const F64 (&b)[N]) {
#if GS_CUDA
    bool ordinary = true;
    static_for<N>([&](auto i) GS_LAMBDA {
      values_[i] = detail::divided(a[i], b[i]).rounded;
      ordinary = ordinary & detail::ordinary(a[i], b[i], values_[i]);
    });
    if (!ordinary && !or_zeros(a, b)) exactly(a, b);
#else
    static_for<N>([&](auto i) GS_LAMBDA { values_[i] = a[i] / b[i]; });
#endif
  }

  GS_FN F64 operator[](int i) const { return values_[i]; }

 private:
#if GS_CUDA
  // Whether zeros are all that is not ordinary: those of a species that is not there, for instance.
  GS_FN bool or_zeros(const double (&a)[N], const double (&b)[N]) {
    bool all = true;
    static_for<N>([&](auto i) GS_LAMBDA {
      const double product = a[i] * b[i];  // nan if b is infinite or nan; of the quotient's sign
      const bool zero = a[i] == 0.0 && b[i] != 0.0 && product == 0.0;
      all = all & (zero | detail::ordinary(a[i], b[i], values_[i]));
      if (zero) values_[i] = product;
    });
    return all;
  }

  GS_FN void exactly(const double (&a)[N], const double (&b)[N]) {
    double divisors[N];
    static_for<N>([&](auto i) GS_LAMBDA { values_[i] = a[i], divisors[i] = b[i]; });
#pragma unroll 1
    for (int i = 0; i < N; ++i) {
      detail::move_up(values_, values_[0] / divisors[0]);
      detail::move_up(divisors, divisors[0]);
    }
  }
#endif

  F64 values_[N];
};

// Square roots that do not need each other.
template <int N>
class Roots {
 public:
  GS_FN explicit Roots(const F64 (&x)[N]) {
#if GS_CUDA
    bool ordinary = true;
    static_for<N>([&](auto i) GS_LAMBDA {
      values_[i] = detail::root(x[i]);
      ordinary = ordinary & detail::ordinary(x[i]);
    });
    if (!ordinary && !or_zeros(x)) exactly(x);
#else
    static_for<N>([&](auto i) GS_LAMBDA { values_[i] = gs::sqrt(x[i]); });
#endif
  }

  GS_FN F64 operator[](int i) const { return values_[i]; }

 private:
#if GS_CUDA
  GS_FN bool or_zeros(const double (&x)[N]) {
    bool all = true;
    static_for<N>([&](auto i) GS_LAMBDA {
      const bool zero = x[i] == 0.0;
      all = all & (zero | detail::ordinary(x[i]));
      if (zero) values_[i] = x[i];
    });
    return all;
  }

  GS_FN void exactly(const double (&x)[N]) {
    static_for<N>([&](auto i) GS_LAMBDA { values_[i] = x[i]; });
#pragma unroll 1
    for (int i = 0; i < N; ++i) detail::move_up(values_, gs::sqrt(values_[0]));
  }
#endif

  F64 values_[N];
};

}  // namespace gs
