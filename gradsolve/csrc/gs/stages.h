// What methods with stages share: arguments of stages, errors, dense output, and its transpose.
//
//   Y_i = y + h sum_{j<i} a_ij k_j,  error = h sum_i b_error_i k_i,
//   y(t + theta h) = y + h sum_i b_i(theta) k_i
//
// A problem P supplies the dimension and a tableau: tables of constants, with the extra stages of
// the dense output behind the stages of the method. A stage is numbered by an Index where the loops
// over the stages are unrolled; then zero coefficients cost nothing.

#pragma once

#include "gs/kept.h"
#include "gs/lanes.h"

namespace gs {

template <class P>
struct Stages {
  using T = typename P::Tableau;
  static constexpr int dim = P::dim;
  static constexpr int stages = T::stages;
  static constexpr int all_stages = T::stages + T::extra;

  // t0 + c_i h; the end of the step is t1 itself, from which t0 + h may differ by rounding.
  template <class I>
  GS_FN static Real stage_time(I i, Real t0, Real t1) {
    const Scalar c = T::c[i];
    if (c == 0) return t0;
    if (c == 1) return t1;
    return fma(Real(c), t1 - t0, t0);
  }

  // Component `c` of y + h sum_j weight_j k_j, added up from y on.
  template <class I>
  GS_FN static Real argument(I i, const Real* y, Real h, const Real (*k)[dim], int c) {
    Real out = y[c];
    for_below(i, [&](auto j) GS_LAMBDA {
      const Scalar weight = T::a[i][j];
      if (weight != 0) out = fma(h * Real(weight), k[j][c], out);
    });
    return out;
  }

  template <class I>
  GS_FN static void stage_argument(I i, const Real* y, Real h, const Real (*k)[dim], Real* out) {
    for_each<dim>([&](auto c) GS_LAMBDA { out[c] = argument(i, y, h, k, c); });
  }

  // y + h sum_i b_i k_i, added up from y on.
  GS_FN static void end_state(const Real* y, Real h, const Real (*k)[dim], Real* y1) {
    for_each<dim>([&](auto c) GS_LAMBDA {
      Real out = y[c];
      static_for<stages>([&](auto j) GS_LAMBDA {
        constexpr Scalar weight = T::b[decltype(j)::value];
        if constexpr (weight != 0) out = fma(h * Real(weight), k[j][c], out);
      });
      y1[c] = out;
    });
  }

  // h sum_i weight_i k_i with the weights of the error.
  GS_FN static void error(Real h, const Real (*k)[dim], Real* out) {
    for_each<dim>([&](auto c) GS_LAMBDA {
      Real total(0);
      static_for<stages>([&](auto j) GS_LAMBDA {
        constexpr Scalar weight = T::b_error[decltype(j)::value];
        if constexpr (weight != 0) total = fma(Real(weight), k[j][c], total);
      });
      out[c] = h * total;
    });
  }

  // ---- Dense output ----------------------------------------------------------------------------

  // The fraction of the step at t; an empty window has one step of length zero.
  GS_FN static Real fraction(Real t0, Real t1, Real t) {
    const Real h = t1 - t0;
    const Mask empty = h == Real(0);
    return select(empty, Real(0), (t - t0) / select(empty, Real(1), h));
  }

  static constexpr bool in_dense_output(int i) {
    bool out = false;
    for (int p = 0; p < T::degree; ++p) out = out || T::dense[i][p] != 0;
    return out;
  }

  // b_i(theta), a polynomial without constant term.
  template <int I>
  GS_FN static Real weight(Real theta) {
    Real total(T::dense[I][T::degree - 1]);
    static_for_down<T::degree - 1>([&](auto p) GS_LAMBDA {
      total = fma(total, theta, Real(T::dense[I][decltype(p)::value]));
    });
    return total * theta;
  }

  // b_i'(theta).
  template <int I>
  GS_FN static Real slope(Real theta) {
    Real total(T::degree * T::dense[I][T::degree - 1]);
    static_for_down<T::degree - 1>([&](auto p) GS_LAMBDA {
      constexpr int power = decltype(p)::value;
      total = fma(total, theta, Real((power + 1) * T::dense[I][power]));
    });
    return total;
  }

  GS_FN static void interpolate(Real t0, Real t1, const Real* y, const Real (*k)[dim], Real t,
                                Real* out) {
    const Real h = t1 - t0;
    const Real theta = fraction(t0, t1, t);
    for_each<dim>([&](auto c) GS_LAMBDA { out[c] = y[c]; });
    static_for<all_stages>([&](auto i) GS_LAMBDA {
      constexpr int I = decltype(i)::value;
      if constexpr (in_dense_output(I)) {
        const Real factor = h * weight<I>(theta);
        for_each<dim>([&](auto c) GS_LAMBDA { out[c] = fma(factor, k[I][c], out[c]); });
      }
    });
  }

  // What the outputs inside a step leave behind. Since b_i(theta) = sum_p dense_ip theta^p, all
  // that y and the stages need of them is the moments sum_m theta_m^p c_m for p = 0, 1, ...,
  // degree: fewer numbers to keep than one cotangent for every stage.
  struct OutputCotangents {
    Kept<(T::degree + 1) * dim> moments;
    Real t0, t1;

    GS_FN void clear() {
      for_each<T::degree + 1>([&](auto p) GS_LAMBDA {
        for_each<dim>([&](auto c) GS_LAMBDA { moments.set(p * dim + c, Real(0)); });
      });
      t0 = t1 = Real(0);
    }

    GS_FN Real moment(int p, int c) const { return moments.get(p * dim + c); }

    GS_FN void add(int p, int c, Real x) { moments.set(p * dim + c, moment(p, c) + x); }

    // Component `c` of sum_m b_i(theta_m) c_m, added to `sum`.
    template <class I>
    GS_FN Real reach(I i, Real sum, int c) const {
      static_for<T::degree>([&](auto p) GS_LAMBDA {
        const Scalar weight = T::dense[i][p];
        if (weight != 0) sum = fma(Real(weight), moment(p + 1, c), sum);
      });
      return sum;
    }
  };

  // Adds the cotangent `ct` of the output at t; returns the cotangent of t. Where `at_end` holds
  // the output is the end state, whose cotangent reaches the stages with that of y1: only the
  // movement of the times is accounted for here.
  GS_FN static Real adj_output(Real t0, Real t1, const Real (*k)[dim], Real t, const Real* ct,
                               Mask at_end, OutputCotangents& so_far) {
    const Real theta = select(at_end, Real(1), fraction(t0, t1, t));
    Real inside[dim];
    for_each<dim>([&](auto c) GS_LAMBDA { inside[c] = select(at_end, Real(0), ct[c]); });
    Real power(1);
    for_each<T::degree + 1>([&](auto p) GS_LAMBDA {
      for_each<dim>([&](auto c) GS_LAMBDA { so_far.add(p, c, power * inside[c]); });
      power = power * theta;
    });
    Real u(0), ct_h(0);
    if constexpr (P::with_times) {
      static_for<all_stages>([&](auto i) GS_LAMBDA {
        constexpr int I = decltype(i)::value;
        if constexpr (in_dense_output(I)) {
          Real along(0), along_inside(0);
          for_each<dim>([&](auto c) GS_LAMBDA {
            along = fma(ct[c], k[I][c], along);
            along_inside = fma(inside[c], k[I][c], along_inside);
          });
          u = fma(slope<I>(theta), along, u);
          ct_h = fma(weight<I>(theta), along_inside, ct_h);
        }
      });
    }
    so_far.t0 = so_far.t0 - ct_h + (theta - Real(1)) * u;
    so_far.t1 = so_far.t1 + ct_h - theta * u;
    return u;
  }
};

}  // namespace gs
