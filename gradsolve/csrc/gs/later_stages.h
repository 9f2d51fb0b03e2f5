// What a stage of a Rosenbrock method is told by the stages after it, in the adjoint of a step
// (rosenbrock.h):
//
//   h sum_{j>i} a_ji w_j + M^T sum_{j>i} C_ji v_j,
//
// where y1 is one stage more, with its cotangent in the place of w_j. The stages come from the last
// to the first; of each, v_i is known first and then w_i. Arguments that go on from each other
// (chains.h) hand their cotangents on: the stages before a chain are told the sum of its w_j.

#pragma once

#include "gs/chains.h"
#include "gs/lanes.h"

namespace gs {

// Where stages are unrolled, each adds to the sums of those before it as soon as it is known: all
// sums are in registers, and neither v nor w is kept.
template <class R, bool Unrolled = R::unrolled>
class LaterStages {
  using T = typename R::T;
  static constexpr int dim = R::dim;

 public:
  GS_FN LaterStages() {
    for_each<dim>([&](auto c) GS_LAMBDA {
      static_for<R::stages>([&](auto j) GS_LAMBDA { sums_[j][c] = Real(0); });
    });
  }

  template <class I>
  GS_FN void sum(I i, Real, const Real (*)[dim], Real* out) const {
    for_each<dim>([&](auto c) GS_LAMBDA { out[c] = sums_[i][c]; });
  }

  template <class I>
  GS_FN void add_solution(I i, const Real* v, Real (*)[dim]) {
    const auto weight = [&](auto j) GS_LAMBDA { return Real(T::C[i][j]); };
    const auto used = [&](auto j) GS_LAMBDA { return T::C[i][j] != 0; };
    if constexpr (R::with_mass) {
      Real moved[dim];
      R::times_transposed_mass(v, moved);
      add(i, moved, used, weight);
    } else {
      add(i, v, used, weight);
    }
  }

  // w_i becomes what it is where it reaches stages before i.
  template <class I>
  GS_FN void add_pulled(I i, Real h, Real* w) {
    for_each<dim>([&](auto c) GS_LAMBDA {
      if (R::chains.goes_on[i + 1]) w[c] = w[c] + chain_[c];
      chain_[c] = w[c];
    });
    const auto used = [&](auto j) GS_LAMBDA { return R::chains.added[i][j] != 0; };
    add(i, w, used, [&](auto j) GS_LAMBDA { return h * Real(R::chains.added[i][j]); });
  }

 private:
  template <class I, class Used, class Weight>
  GS_FN void add(I i, const Real* x, const Used& used, const Weight& weight) {
    for_below(i, [&](auto j) GS_LAMBDA {
      if (used(j)) {
        for_each<dim>([&](auto c) GS_LAMBDA { sums_[j][c] = fma(weight(j), x[c], sums_[j][c]); });
      }
    });
  }

  Real sums_[R::stages][dim];
  Real chain_[dim];  // the sum of w_j in the present chain
};

// Where they are a loop, stages are in memory, and writing costs most there: what a stage tells is
// written once, and summed up when it is asked for. v_i takes the place of k_i, so that what a step
// needs stays in the nearest cache.
template <class R>
class LaterStages<R, false> {
  using T = typename R::T;
  static constexpr int dim = R::dim, stages = R::stages;

 public:
  GS_FN void sum(int i, Real h, const Real (*k)[dim], Real* out) const {
    for_each<dim>([&](auto c) GS_LAMBDA { out[c] = Real(0); });
    if constexpr (R::with_mass) {
      Real of_solutions[dim];
      for_each<dim>([&](auto c) GS_LAMBDA { of_solutions[c] = Real(0); });
      add_later<true, false>(i, h, k, of_solutions);
      R::times_transposed_mass(of_solutions, out);
      add_later<false, true>(i, h, k, out);
    } else {
      add_later<true, true>(i, h, k, out);
    }
  }

  GS_FN void add_solution(int i, const Real* v, Real (*k)[dim]) {
    for_each<dim>([&](auto c) GS_LAMBDA { k[i][c] = v[c]; });
  }

  GS_FN void add_pulled(int i, Real, Real* w) {
    Real* const chain = pulled_[R::chains.chain[i]];
    for_each<dim>([&](auto c) GS_LAMBDA {
      if (R::chains.goes_on[i + 1]) w[c] = w[c] + chain[c];
      chain[c] = w[c];
    });
  }

 private:
  template <bool Solutions, bool Pulled>
  GS_FN void add_later(int i, Real h, const Real (*k)[dim], Real* out) const {
    R::for_components([&](auto first, auto width) GS_LAMBDA {
      constexpr int W = decltype(width)::value;
      Real sum[W];
      static_for<W>([&](auto q) GS_LAMBDA { sum[q] = out[first + q]; });
      for (int j = stages - 1; Solutions && j > i; --j) {
        const Scalar weight = T::C[j][i];
        if (weight != 0) R::template add<W>(Real(weight), k[j] + first, sum);
      }
      for (int j = R::chains.count - 1; Pulled && j >= R::chains.chain[i + 1]; --j) {
        const Scalar weight = R::chains.told[j][i];
        if (weight != 0) R::template add<W>(h * Real(weight), pulled_[j] + first, sum);
      }
      static_for<W>([&](auto q) GS_LAMBDA { out[first + q] = sum[q]; });
    });
  }

  Real pulled_[R::chains.count][dim];  // the sums of w_i of each chain
};

}  // namespace gs
