// What a stage of a Rosenbrock method is told by the stages after it, in the adjoint of a step
// (rosenbrock.h):
//
//   h sum_{j>i} a_ji w_j + M^T sum_{j>i} C_ji v_j,
//
// and what all of them tell the Jacobian: h sum_i v_i k_i^T. The stages come from the last to the
// first; of each, v_i is known first and then w_i.

#pragma once

#include "gs/lanes.h"

namespace gs {

// Where stages are unrolled, each adds to the sums of those before it as soon as it is known: all
// sums are in registers, and neither v nor w is kept.
template <class R, bool Unrolled = R::unrolled>
class LaterStages {
  using T = typename R::T;
  static constexpr int dim = R::dim;

 public:
  GS_FN explicit LaterStages(Real (*ct_jacobian)[dim]) {
    for_each<dim>([&](auto c) GS_LAMBDA {
      R::for_columns(c, [&](auto j) GS_LAMBDA { ct_jacobian[c][j] = Real(0); });
      static_for<R::stages>([&](auto j) GS_LAMBDA { sums_[j][c] = Real(0); });
    });
  }

  template <class I>
  GS_FN void sum(I i, Real* out) const {
    for_each<dim>([&](auto c) GS_LAMBDA { out[c] = sums_[i][c]; });
  }

  template <class I>
  GS_FN void add_solution(I i, const Real* v, Real h, const Real (*k)[dim],
                          Real (*ct_jacobian)[dim]) {
    const auto weight = [&](auto j) GS_LAMBDA { return T::C[i][j]; };
    if constexpr (R::with_mass) {
      Real moved[dim];
      R::times_transposed_mass(v, moved);
      add(i, moved, weight);
    } else {
      add(i, v, weight);
    }
    for_each<dim>([&](auto r) GS_LAMBDA {
      const Real scaled = h * v[r];
      R::for_columns(r, [&](auto c) GS_LAMBDA {
        ct_jacobian[r][c] = fma(scaled, k[i][c], ct_jacobian[r][c]);
      });
    });
  }

  // h w_i.
  template <class I>
  GS_FN void add_pulled(I i, const Real* w) {
    add(i, w, [&](auto j) GS_LAMBDA { return T::a[i][j]; });
  }

  GS_FN void finish(Real, const Real (*)[dim], Real (*)[dim]) const {}

 private:
  template <class I, class Weight>
  GS_FN void add(I i, const Real* x, const Weight& weight) {
    for_below(i, [&](auto j) GS_LAMBDA {
      const Scalar factor = weight(j);
      if (factor != 0) {
        for_each<dim>([&](auto c)
                          GS_LAMBDA { sums_[j][c] = fma(Real(factor), x[c], sums_[j][c]); });
      }
    });
  }

  Real sums_[R::stages][dim];
};

// Where they are a loop, stages are in memory, and writing costs most there: what a stage tells is
// written once, and summed up when it is asked for.
template <class R>
class LaterStages<R, false> {
  using T = typename R::T;
  static constexpr int dim = R::dim, stages = R::stages;

 public:
  GS_FN explicit LaterStages(Real (*)[dim]) {}

  GS_FN void sum(int i, Real* out) const {
    for_each<dim>([&](auto c) GS_LAMBDA { out[c] = Real(0); });
    if constexpr (R::with_mass) {
      Real of_solutions[dim];
      for_each<dim>([&](auto c) GS_LAMBDA { of_solutions[c] = Real(0); });
      add_later<true, false>(i, of_solutions);
      R::times_transposed_mass(of_solutions, out);
      add_later<false, true>(i, out);
    } else {
      add_later<true, true>(i, out);
    }
  }

  GS_FN void add_solution(int i, const Real* v, Real, const Real (*)[dim], Real (*)[dim]) {
    for_each<dim>([&](auto c) GS_LAMBDA { solutions_[i][c] = v[c]; });
  }
  GS_FN void add_pulled(int i, const Real* w) {
    if (i == 0) return;
    for_each<dim>([&](auto c) GS_LAMBDA { pulled_[i][c] = w[c]; });
  }

  GS_FN void finish(Real h, const Real (*k)[dim], Real (*ct_jacobian)[dim]) const {
    for_each<dim>([&](auto r) GS_LAMBDA {
      Real scaled[stages];
      static_for<stages>([&](auto i) GS_LAMBDA { scaled[i] = h * solutions_[i][r]; });
      R::for_columns(r, [&](auto c) GS_LAMBDA {
        Real sum(0);
        static_for_down<stages>([&](auto i) GS_LAMBDA { sum = fma(scaled[i], k[i][c], sum); });
        ct_jacobian[r][c] = sum;
      });
    });
  }

 private:
  template <bool Solutions, bool Pulled>
  GS_FN void add_later(int i, Real* out) const {
    R::for_components([&](auto first, auto width) GS_LAMBDA {
      constexpr int W = decltype(width)::value;
      Real sum[W];
      static_for<W>([&](auto q) GS_LAMBDA { sum[q] = out[first + q]; });
      for (int j = stages - 1; j > i; --j) {
        const Scalar of_solution = T::C[j][i], of_pulled = T::a[j][i];
        if (Solutions && of_solution != 0) {
          R::template add<W>(Real(of_solution), solutions_[j] + first, sum);
        }
        if (Pulled && of_pulled != 0 && !R::repeats.stage[j]) {
          R::template add<W>(Real(of_pulled), pulled_[j] + first, sum);
        }
      }
      static_for<W>([&](auto q) GS_LAMBDA { out[first + q] = sum[q]; });
    });
  }

  Real solutions_[stages][dim];  // v_i
  Real pulled_[stages][dim];     // h w_i
};

}  // namespace gs
