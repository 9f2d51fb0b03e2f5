// Which arguments of a Rosenbrock method's stages go on from the one before,
//
//   Y_i = y + h sum_{j<i} a_ij k_j = Y_{i-1} + h a_{i,i-1} k_{i-1},
//
// because the rows of a are otherwise the same: in stiffly accurate methods the last ones and y1,
// which counts as row `stages` with the weights b. Both ways of adding up round alike. Arguments
// that go on from each other are a chain. In the adjoint, where rows come from the last to the
// first, a stage before a chain is told the sum of its cotangents with one weight, and so is a
// stage within it, of those that came so far.

#pragma once

#include "gs/lanes.h"

namespace gs {

template <class T>
struct Chains {
  static constexpr int rows = T::stages + 1;
  // Whether a row goes on from the one before; nothing comes after y1.
  bool goes_on[rows + 1] = {};
  // The weights of the stages that are added to Y_{i-1}, or else to y.
  Scalar added[rows][T::stages] = {};
  // Whether the field is evaluated where it was for the stage before.
  bool repeats[T::stages] = {};
  // The number of each row's chain, and how many there are.
  int chain[rows] = {};
  int count = 0;
  // The weights with which each chain tells the stages.
  Scalar told[rows][T::stages] = {};

  constexpr Chains() {
    for (int i = 1; i < rows; ++i) {
      goes_on[i] = true;
      for (int j = 0; j < i - 1; ++j) goes_on[i] = goes_on[i] && weight(i, j) == weight(i - 1, j);
    }
    for (int i = 0; i < rows; ++i) {
      for (int j = goes_on[i] ? i - 1 : 0; j < i; ++j) added[i][j] = weight(i, j);
      if (!goes_on[i]) ++count;
      chain[i] = count - 1;
    }
    for (int i = 0; i < rows; ++i) {
      for (int j = goes_on[i] ? i - 1 : 0; j < i; ++j) told[chain[i]][j] = weight(i, j);
    }
    for (int i = 1; i < T::stages; ++i) {
      repeats[i] = goes_on[i] && added[i][i - 1] == 0 && T::c[i] == T::c[i - 1];
    }
  }

  static constexpr Scalar weight(int i, int j) { return i < T::stages ? T::a[i][j] : T::b[j]; }
};

}  // namespace gs
