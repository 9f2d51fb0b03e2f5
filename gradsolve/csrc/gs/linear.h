// Small sparse linear systems in registers: LU decomposition with partial pivoting by selection.
//
// Which entries can be non-zero is known while compiling, and so is the fill-in, whatever rows are
// exchanged: the rows that can be the pivot of a column get the union of their patterns (George and
// Ng, SIAM J. Sci. Stat. Comput. 8, 1987). Nothing is addressed by a computed number: a row is
// compared with the number of the pivot, and exchanged by selection. The pivots are kept inverted,
// so that a decomposition has one division for each, and a solution none.

#pragma once

#include "gs/lanes.h"

namespace gs {

// The pattern of a matrix that is full.
struct Full {
  static constexpr bool entry(int, int) { return true; }
};

// Where the factors of a matrix can be non-zero. candidate[i][k]: row i > k can be the pivot of
// column k, and is reduced by it. upper[k][j]: row k can have an entry in column j > k when it is
// the pivot.
template <int N, class Pattern>
struct Structure {
  bool candidate[N][N] = {};
  bool upper[N][N] = {};

  constexpr Structure() {
    bool now[N][N] = {};
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < N; ++j) now[i][j] = i == j || Pattern::entry(i, j);
    }
    for (int k = 0; k < N; ++k) {
      for (int i = k + 1; i < N; ++i) candidate[i][k] = now[i][k];
      for (int j = k + 1; j < N; ++j) {
        upper[k][j] = now[k][j];
        for (int i = k + 1; i < N; ++i) upper[k][j] = upper[k][j] || (now[i][k] && now[i][j]);
      }
      for (int i = k + 1; i < N; ++i) {
        for (int j = k + 1; j < N; ++j) now[i][j] = now[i][j] || (candidate[i][k] && upper[k][j]);
      }
    }
  }
};

template <int N, class Pattern = Full>
struct Factors {
  static constexpr Structure<N, Pattern> structure{};

  // U and, below its diagonal, the factors of the elimination, each in the row that it reduced;
  // rows that are exchanged later do not take theirs along.
  Real lu[N][N];
  Real inverse[N];  // of the pivots
  I32 pivot[N];     // the row that was exchanged with row k

  // Decomposes what is in `lu`. A singular matrix has an infinite inverse pivot, so that solutions
  // are not finite.
  GS_FN void factorise() {
    each([&](auto k) GS_LAMBDA {
      Real largest = abs(lu[k][k]);
      pivot[k] = I32(k);
      candidates(k, [&](auto i) GS_LAMBDA {
        const Real size = abs(lu[i][k]);
        const Mask larger = size > largest;
        largest = select(larger, size, largest);
        pivot[k] = select(larger, I32(i), pivot[k]);
      });
      candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, lu[k][k], lu[i][k]); });
      columns(k, [&](auto j) GS_LAMBDA {
        candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, lu[k][j], lu[i][j]); });
      });
      inverse[k] = Real(1) / lu[k][k];
      candidates(k, [&](auto i) GS_LAMBDA {
        const Real factor = lu[i][k] * inverse[k];
        lu[i][k] = factor;
        columns(k, [&](auto j) GS_LAMBDA { lu[i][j] = fma(-factor, lu[k][j], lu[i][j]); });
      });
    });
  }

  // x becomes A^-1 x.
  GS_FN void solve(Real* x) const {
    each([&](auto k) GS_LAMBDA {
      candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, x[k], x[i]); });
      candidates(k, [&](auto i) GS_LAMBDA { x[i] = fma(-lu[i][k], x[k], x[i]); });
    });
    each_down([&](auto k) GS_LAMBDA {
      columns(k, [&](auto j) GS_LAMBDA { x[k] = fma(-lu[k][j], x[j], x[k]); });
      x[k] = x[k] * inverse[k];
    });
  }

  // x becomes A^-T x.
  GS_FN void solve_transposed(Real* x) const {
    each([&](auto k) GS_LAMBDA {
      x[k] = x[k] * inverse[k];
      columns(k, [&](auto j) GS_LAMBDA { x[j] = fma(-lu[k][j], x[k], x[j]); });
    });
    each_down([&](auto k) GS_LAMBDA {
      candidates(k, [&](auto i) GS_LAMBDA { x[k] = fma(-lu[i][k], x[i], x[k]); });
      candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, x[k], x[i]); });
    });
  }

 private:
  static constexpr bool unrolled = N <= kMaxUnrolled;

  // What was in row k comes from and goes to the pivot's row; for the others nothing happens. At
  // most one of the rows i is the pivot, so that these exchanges are in no order.
  template <class I>
  GS_FN void exchange(int k, I i, Real& upper, Real& lower) const {
    const Mask here = pivot[k] == I32(i);
    const Real above = upper, below = lower;
    upper = select(here, below, above);
    lower = select(here, above, below);
  }

  template <class F>
  GS_FN static void each(F&& f) {
    if constexpr (unrolled) {
      static_for<N>(f);
    } else {
      for (int k = 0; k < N; ++k) f(k);
    }
  }
  template <class F>
  GS_FN static void each_down(F&& f) {
    if constexpr (unrolled) {
      static_for_down<N>(f);
    } else {
      for (int k = N - 1; k >= 0; --k) f(k);
    }
  }
  // The rows that column k reduces.
  template <class K, class F>
  GS_FN static void candidates(K k, F&& f) {
    each([&](auto i) GS_LAMBDA {
      if constexpr (unrolled) {
        constexpr int I = decltype(i)::value;
        if constexpr (I > K::value && structure.candidate[I][K::value]) f(i);
      } else {
        if (i > k && structure.candidate[i][k]) f(i);
      }
    });
  }
  // The entries of row k to the right of its pivot.
  template <class K, class F>
  GS_FN static void columns(K k, F&& f) {
    each([&](auto j) GS_LAMBDA {
      if constexpr (unrolled) {
        constexpr int J = decltype(j)::value;
        if constexpr (J > K::value && structure.upper[K::value][J]) f(j);
      } else {
        if (j > k && structure.upper[k][j]) f(j);
      }
    });
  }
};

}  // namespace gs
