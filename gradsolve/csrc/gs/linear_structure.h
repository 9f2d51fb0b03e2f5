// Which entries of a linear system and of its LU decomposition can be non-zero, known while
// compiling.

#pragma once

#include "gs/lanes.h"

namespace gs {

// The pattern of a matrix that is full.
struct Full {
  static constexpr bool entry(int, int) { return true; }
};

// Which component is which unknown of a linear system: that of elimination.py.
template <int N>
struct Order {
  int component[N] = {};  // of each unknown
  int unknown[N] = {};    // of each component
  bool natural = true;

  constexpr explicit Order(const int (&order)[N]) {
    for (int i = 0; i < N; ++i) {
      component[i] = order[i];
      unknown[order[i]] = i;
      natural = natural && order[i] == i;
    }
  }
};

// The fill-in is that of all pivots that can be chosen: the rows that can be the pivot of a column
// get the union of their patterns (George and Ng, SIAM J. Sci. Stat. Comput. 8, 1987).
// candidate[k][i]: row i > k can be the pivot of column k, and is reduced by it. upper[k][j]: row k
// can have an entry in column j > k when it is the pivot. used[i][j]: the entry is not always zero.
template <int N, class Pattern>
struct Structure {
  bool candidate[N][N] = {};
  bool upper[N][N] = {};
  bool used[N][N] = {};

  constexpr Structure() {
    bool now[N][N] = {};
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < N; ++j) now[i][j] = i == j || Pattern::entry(i, j);
    }
    for (int k = 0; k < N; ++k) {
      for (int i = k + 1; i < N; ++i) candidate[k][i] = now[i][k];
      for (int j = k + 1; j < N; ++j) {
        upper[k][j] = now[k][j];
        for (int i = k + 1; i < N; ++i) upper[k][j] = upper[k][j] || (now[i][k] && now[i][j]);
      }
      for (int i = k + 1; i < N; ++i) {
        for (int j = k + 1; j < N; ++j) now[i][j] = now[i][j] || (candidate[k][i] && upper[k][j]);
      }
    }
    for (int i = 0; i < N; ++i) {
      for (int j = 0; j < N; ++j) used[i][j] = now[i][j] || upper[i][j];
    }
  }
};

// An LU decomposition with partial pivoting. Of a small system it is in registers (linear.h), of a
// large one in memory (linear_loops.h).
template <int N, class Pattern = Full, bool InRegisters = (N <= kMaxUnrolled)>
struct Factors;

}  // namespace gs
