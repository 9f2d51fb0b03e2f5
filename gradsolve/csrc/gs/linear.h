// Small sparse linear systems in registers: LU decomposition with partial pivoting by selection.
//
// Nothing is addressed by a computed number: a row is compared with the number of the pivot, and
// exchanged by selection. That takes longer than the elimination itself, and most systems need it
// never: in kinetics the diagonal of M / gamma - h J dominates its column. So the elimination first
// goes without, and is done again if a trajectory that runs in lockstep has a larger pivot. The
// pivots are kept inverted, so that a decomposition has one division for each, and a solution none.

#pragma once

#include "gs/linear_loops.h"
#include "gs/linear_structure.h"
#include "gs/warp.h"

namespace gs {

template <int N, class Pattern>
struct Factors<N, Pattern, true> {
  static constexpr Structure<N, Pattern> structure{};

  // U and, below its diagonal, the factors of the elimination, each in the row that it reduced;
  // rows that are exchanged later do not take theirs along.
  Real lu[N][N];
  Real inverse[N];  // of the pivots
  I32 pivot[N];     // the row that was exchanged with row k, if any was
  bool exchanges;   // whether any was, by a trajectory in lockstep

  // Decomposes what fill(again) puts into `lu`; it is called once more if rows have to be
  // exchanged. A singular matrix has an infinite inverse pivot, so that solutions are not finite.
  template <class F>
  GS_FN void factorise(const F& fill) {
    fill(Index<false>{});
    if constexpr (kAlways) {
      exchanges = true;
      eliminate<true>();
    } else {
      exchanges = any_in_lockstep(eliminate<false>());
      if (exchanges) {
        fill(Index<true>{});
        eliminate<true>();
      }
    }
  }

  // x becomes A^-1 x.
  GS_FN void solve(Real* x) const {
    if (exchanges) {
      solve<true>(x);
    } else {
      solve<false>(x);
    }
  }

  // x becomes A^-T x.
  GS_FN void solve_transposed(Real* x) const {
    if (exchanges) {
      solve_transposed<true>(x);
    } else {
      solve_transposed<false>(x);
    }
  }

 private:
  static constexpr int count_candidates() {
    int out = 0;
    for (int k = 0; k < N; ++k) {
      for (int i = 0; i < N; ++i) out += structure.candidate[k][i];
    }
    return out;
  }
  // A few exchanges take less time than a branch. Measured are 3, of 3 unknowns, and 8, of 8.
  static constexpr bool kAlways = GS_CUDA && count_candidates() <= 4;

  // Whether rows have to be exchanged. Without `Exchanges` none is, and what comes out is of no use
  // to a trajectory in which one has to be.
  template <bool Exchanges>
  GS_FN Mask eliminate() {
    Mask wanted(false);
    static_for<N>([&](auto k) GS_LAMBDA {
      Real largest = abs(lu[k][k]);
      if constexpr (Exchanges) pivot[k] = I32(k);
      candidates(k, [&](auto i) GS_LAMBDA {
        const Real size = abs(lu[i][k]);
        const Mask larger = size > largest;
        if constexpr (Exchanges) {
          largest = select(larger, size, largest);
          pivot[k] = select(larger, I32(i), pivot[k]);
        }
        wanted = wanted | larger;
      });
      if constexpr (Exchanges) {
        candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, lu[k][k], lu[i][k]); });
        columns(k, [&](auto j) GS_LAMBDA {
          candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, lu[k][j], lu[i][j]); });
        });
      }
      inverse[k] = Real(1) / lu[k][k];
      candidates(k, [&](auto i) GS_LAMBDA {
        const Real factor = lu[i][k] * inverse[k];
        lu[i][k] = factor;
        columns(k, [&](auto j) GS_LAMBDA { lu[i][j] = fma(-factor, lu[k][j], lu[i][j]); });
      });
    });
    return wanted;
  }

  template <bool Exchanges>
  GS_FN void solve(Real* x) const {
    static_for<N>([&](auto k) GS_LAMBDA {
      if constexpr (Exchanges) {
        candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, x[k], x[i]); });
      }
      candidates(k, [&](auto i) GS_LAMBDA { x[i] = fma(-lu[i][k], x[k], x[i]); });
    });
    static_for_down<N>([&](auto k) GS_LAMBDA {
      columns(k, [&](auto j) GS_LAMBDA { x[k] = fma(-lu[k][j], x[j], x[k]); });
      x[k] = x[k] * inverse[k];
    });
  }

  template <bool Exchanges>
  GS_FN void solve_transposed(Real* x) const {
    static_for<N>([&](auto k) GS_LAMBDA {
      x[k] = x[k] * inverse[k];
      columns(k, [&](auto j) GS_LAMBDA { x[j] = fma(-lu[k][j], x[k], x[j]); });
    });
    static_for_down<N>([&](auto k) GS_LAMBDA {
      candidates(k, [&](auto i) GS_LAMBDA { x[k] = fma(-lu[i][k], x[i], x[k]); });
      if constexpr (Exchanges) {
        candidates(k, [&](auto i) GS_LAMBDA { exchange(k, i, x[k], x[i]); });
      }
    });
  }

  // What was in row k comes from and goes to the pivot's row; for the others nothing happens. At
  // most one of the rows i is the pivot, so that these exchanges are in no order.
  template <class I>
  GS_FN void exchange(int k, I i, Real& upper, Real& lower) const {
    const Mask here = pivot[k] == I32(i);
    const Real above = upper, below = lower;
    upper = select(here, below, above);
    lower = select(here, above, below);
  }

  // The rows that column k reduces.
  template <int K, class F>
  GS_FN static void candidates(Index<K>, F&& f) {
    static_for<N>([&](auto i) GS_LAMBDA {
      constexpr int I = decltype(i)::value;
      if constexpr (I > K && structure.candidate[K][I]) f(i);
    });
  }
  // The entries of row k to the right of its pivot.
  template <int K, class F>
  GS_FN static void columns(Index<K>, F&& f) {
    static_for<N>([&](auto j) GS_LAMBDA {
      constexpr int J = decltype(j)::value;
      if constexpr (J > K && structure.upper[K][J]) f(j);
    });
  }
};

}  // namespace gs
