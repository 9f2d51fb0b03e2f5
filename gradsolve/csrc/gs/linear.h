// Small linear systems in registers: LU decomposition with partial pivoting by selection.
//
// Nothing is addressed by a computed number: rows are compared with the row of the pivot one after
// the other, and exchanged by selection. Loops over up to kMaxUnrolled rows are unrolled.

#pragma once

#include "gs/lanes.h"

namespace gs {

template <int N>
struct Factors {
  Real lu[N][N];                                // U and, below its diagonal, L without its ones
  Mask exchanged[N > 1 ? N * (N - 1) / 2 : 1];  // for each pair of rows k < i, in order

  GS_FN static constexpr int pair(int k, int i) { return k * (2 * N - k - 1) / 2 + i - k - 1; }

  // Decomposes what is in `lu`. A singular matrix leaves zeros on the diagonal, so that solutions
  // are not finite.
  GS_FN void factorise() {
    for_each<N>([&](auto k) GS_LAMBDA {
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i <= k) return;
        const Mask larger = abs(lu[i][k]) > abs(lu[k][k]);
        exchanged[pair(k, i)] = larger;
        for_each<N>([&](auto j) GS_LAMBDA {
          const Real upper = lu[k][j], lower = lu[i][j];
          lu[k][j] = select(larger, lower, upper);
          lu[i][j] = select(larger, upper, lower);
        });
      });
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i <= k) return;
        const Real factor = lu[i][k] / lu[k][k];
        lu[i][k] = factor;
        for_each<N>([&](auto j) GS_LAMBDA {
          if (j > k) lu[i][j] = fma(-factor, lu[k][j], lu[i][j]);
        });
      });
    });
  }

  // x becomes A^-1 x.
  GS_FN void solve(Real* x) const {
    for_each<N>([&](auto k) GS_LAMBDA {
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i > k) exchange(k, i, x);
      });
    });
    for_each<N>([&](auto k) GS_LAMBDA {
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i > k) x[i] = fma(-lu[i][k], x[k], x[i]);
      });
    });
    for_each<N>([&](auto r) GS_LAMBDA {
      const int k = N - 1 - r;
      x[k] = x[k] / lu[k][k];
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i < k) x[i] = fma(-lu[i][k], x[k], x[i]);
      });
    });
  }

  // x becomes A^-T x.
  GS_FN void solve_transposed(Real* x) const {
    for_each<N>([&](auto k) GS_LAMBDA {
      x[k] = x[k] / lu[k][k];
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i > k) x[i] = fma(-lu[k][i], x[k], x[i]);
      });
    });
    for_each<N>([&](auto r) GS_LAMBDA {
      const int k = N - 1 - r;
      for_each<N>([&](auto i) GS_LAMBDA {
        if (i < k) x[i] = fma(-lu[k][i], x[k], x[i]);
      });
    });
    for_each<N>([&](auto r) GS_LAMBDA {
      const int k = N - 1 - r;
      for_each<N>([&](auto s) GS_LAMBDA {
        const int i = N - 1 - s;
        if (i > k) exchange(k, i, x);
      });
    });
  }

 private:
  GS_FN void exchange(int k, int i, Real* x) const {
    const Mask flag = exchanged[pair(k, i)];
    const Real upper = x[k], lower = x[i];
    x[k] = select(flag, lower, upper);
    x[i] = select(flag, upper, lower);
  }
};

}  // namespace gs
