// Sparse linear systems that are too large for registers: the same decomposition as in linear.h, in
// loops over lists of the entries that can be non-zero. Its matrix is in memory, so that rows may
// be addressed by a computed number.

#pragma once

#include "gs/linear_structure.h"

#if GS_CUDA
#define GS_UNROLL_4 _Pragma("unroll 4")
#else
#define GS_UNROLL_4
#endif

namespace gs {

// For each row of a table the columns that are set, in increasing order.
template <int N>
struct Lists {
  short count[N] = {};
  short entry[N][N] = {};

  constexpr explicit Lists(const bool (&table)[N][N]) {
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < N; ++j) {
        if (table[i][j]) entry[i][count[i]++] = static_cast<short>(j);
      }
    }
  }
};

// f(each number of a list), of which no call needs the result of another.
template <int N, class F>
GS_FN void for_list(const Lists<N>& lists, int list, F&& f) {
  const int count = lists.count[list];
  GS_UNROLL_4
  for (int m = 0; m < count; ++m) f(static_cast<int>(lists.entry[list][m]));
}

template <int N, class Pattern>
struct Factors<N, Pattern, false> {
  // From temporary structures: a member would be put into every kernel's constants.
  static constexpr Lists<N> rows{Structure<N, Pattern>{}.candidate};
  static constexpr Lists<N> columns{Structure<N, Pattern>{}.upper};
  static constexpr Lists<N> used{Structure<N, Pattern>{}.used};

  Real lu[N][N];  // other entries than the used ones are not set, so that they take no cache
  Real inverse[N];
  I32 pivot[N];

  template <class F>
  GS_FN void factorise(const F& fill) {
    fill(Index<false>{});
    for (int k = 0; k < N; ++k) {
      Real largest = abs(lu[k][k]);
      I32 chosen(k);
      for_list(rows, k, [&](int i) GS_LAMBDA {
        const Real size = abs(lu[i][k]);
        const Mask larger = size > largest;
        largest = select(larger, size, largest);
        chosen = select(larger, I32(i), chosen);
      });
      pivot[k] = chosen;
      for_pivot_row(k, [&](int i, Mask here) GS_LAMBDA {
        exchange(here, lu[k][k], lu[i][k]);
        for_list(columns, k, [&](int j) GS_LAMBDA { exchange(here, lu[k][j], lu[i][j]); });
      });
      const Real inverted = Real(1) / lu[k][k];
      inverse[k] = inverted;
      const int count = rows.count[k];
      for (int m = 0; m < count; ++m) {
        const int i = rows.entry[k][m];
        const Real factor = lu[i][k] * inverted;
        lu[i][k] = factor;
        for_list(columns, k, [&](int j) GS_LAMBDA { lu[i][j] = fma(-factor, lu[k][j], lu[i][j]); });
      }
    }
  }

  GS_FN void solve(Real* x) const {
    for (int k = 0; k < N; ++k) {
      for_pivot_row(k, [&](int i, Mask here) GS_LAMBDA { exchange(here, x[k], x[i]); });
      const Real known = x[k];
      for_list(rows, k, [&](int i) GS_LAMBDA { x[i] = fma(-lu[i][k], known, x[i]); });
    }
    for (int k = N - 1; k >= 0; --k) {
      Real sum = x[k];
      for_list(columns, k, [&](int j) GS_LAMBDA { sum = fma(-lu[k][j], x[j], sum); });
      x[k] = sum * inverse[k];
    }
  }

  GS_FN void solve_transposed(Real* x) const {
    for (int k = 0; k < N; ++k) {
      const Real known = x[k] * inverse[k];
      x[k] = known;
      for_list(columns, k, [&](int j) GS_LAMBDA { x[j] = fma(-lu[k][j], known, x[j]); });
    }
    for (int k = N - 1; k >= 0; --k) {
      Real sum = x[k];
      for_list(rows, k, [&](int i) GS_LAMBDA { sum = fma(-lu[i][k], x[i], sum); });
      x[k] = sum;
      for_pivot_row(k, [&](int i, Mask here) GS_LAMBDA { exchange(here, x[k], x[i]); });
    }
  }

 private:
  GS_FN static void exchange(Mask here, Real& upper, Real& lower) {
    const Real above = upper, below = lower;
    upper = select(here, below, above);
    lower = select(here, above, below);
  }

  // f(i, lanes) for every row i that some lanes exchange with row k.
  template <class F>
  GS_FN void for_pivot_row(int k, F&& f) const {
#if GS_LANES == 1
    if (pivot[k] != k) f(pivot[k], true);
#else
    if (all(pivot[k] == I32(k))) return;
    const int count = rows.count[k];
    for (int m = 0; m < count; ++m) {
      const int i = rows.entry[k][m];
      const Mask here = pivot[k] == I32(i);
      if (any(here)) f(i, here);
    }
#endif
  }
};

}  // namespace gs
