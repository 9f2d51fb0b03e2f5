// Products of matrices that are too large to be written out, such as the layers of a network.
//
// An operand has entries (row, k), where k is summed over: the product of M rows and N columns is
// out[i][j] = sum over k of left(i, k) * right(j, k), from the first k to the last, each product
// but the first joined to its sum in one rounding. Columns are taken a few at a time, so that a
// number of the left operand is read once for all of them.

#pragma once

#include "gs/lanes.h"

namespace gs {

// Numbers that the field has computed: an array of rows of K.
template <int K, class T>
struct Computed {
  const T* entries;

  GS_FN T operator()(int row, int k) const { return entries[row * K + k]; }
};

template <int K, class T>
GS_FN Computed<K, T> computed(const T* entries) {
  return {entries};
}

// A matrix that lies in a leaf, from its entry Start on, at these distances.
template <int Start, int Row, int Column, class T, class S>
struct InLeaf {
  const LeafView<T, S>& leaf;

  GS_FN T operator()(int row, int k) const { return leaf[Start + row * Row + k * Column]; }
};

template <int Start, int Row, int Column, class T, class S>
GS_FN InLeaf<Start, Row, Column, T, S> in_leaf(const LeafView<T, S>& leaf) {
  return {leaf};
}

#if GS_LANES > 1
// The same where it is known that all trajectories share the leaf.
template <int Start, int Row, int Column, class T, class S>
struct InSharedLeaf {
  const S* data;

  GS_FN T operator()(int row, int k) const {
    return T(static_cast<scalar_of<T>>(data[Start + row * Row + k * Column]));
  }
};
#endif

// Calls f with the operand, for which the question whether a leaf is shared is decided.
template <class Operand, class F>
GS_FN void decided(const Operand& operand, F&& f) {
  f(operand);
}
#if GS_LANES > 1
template <int Start, int Row, int Column, class T, class S, class F>
GS_FN void decided(const InLeaf<Start, Row, Column, T, S>& operand, F&& f) {
  if (operand.leaf.per_lane) {
    f(operand);
  } else {
    f(InSharedLeaf<Start, Row, Column, T, S>{operand.leaf.data});
  }
}
#endif

constexpr int kColumnsAtOnce = 8;

// Calls f(entry of the product, value) for `Columns` columns from `column` on, of one row.
template <int Columns, int N, int K, class T, class Left, class Right, class F>
GS_FN void some_columns(const Left& left, const Right& right, int row, int column, F&& f) {
  T sum[Columns];
  const T first = left(row, 0);
  static_for<Columns>([&](auto c) GS_LAMBDA { sum[c] = first * right(column + c, 0); });
#if GS_CUDA
#pragma unroll 4
#endif
  for (int k = 1; k < K; ++k) {
    const T factor = left(row, k);
    static_for<Columns>([&](auto c)
                            GS_LAMBDA { sum[c] = fma(right(column + c, k), factor, sum[c]); });
  }
  static_for<Columns>([&](auto c) GS_LAMBDA { f(row * N + column + c, sum[c]); });
}

template <int M, int N, int K, class T, class Left, class Right, class F>
GS_FN void each_product(const Left& left, const Right& right, F&& f) {
  constexpr int whole = N / kColumnsAtOnce * kColumnsAtOnce, rest = N - whole;
  for (int row = 0; row < M; ++row) {
    for (int column = 0; column < whole; column += kColumnsAtOnce) {
      some_columns<kColumnsAtOnce, N, K, T>(left, right, row, column, f);
    }
    if constexpr (rest > 0) some_columns<rest, N, K, T>(left, right, row, whole, f);
  }
}

// out = the product.
template <int M, int N, int K, class T, class Left, class Right>
GS_NOINLINE void product(const Left& left, const Right& right, T* out) {
  decided(left, [&](const auto& l) GS_LAMBDA {
    decided(right, [&](const auto& r) GS_LAMBDA {
      each_product<M, N, K, T>(l, r, [&](int entry, T sum) GS_LAMBDA { out[entry] = sum; });
    });
  });
}

// out += the product.
template <int M, int N, int K, class T, class Left, class Right>
GS_NOINLINE void add_product(const Left& left, const Right& right, T* out) {
  decided(left, [&](const auto& l) GS_LAMBDA {
    decided(right, [&](const auto& r) GS_LAMBDA {
      each_product<M, N, K, T>(l, r,
                               [&](int entry, T sum) GS_LAMBDA { out[entry] = out[entry] + sum; });
    });
  });
}

}  // namespace gs
