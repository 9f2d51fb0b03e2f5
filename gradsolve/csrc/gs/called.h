// Functions of gs/math.h that are called instead of inlined, for a field that has one of them many
// times: the layer of a network would repeat its activation for every neuron, and compilers take
// minutes for that.

#pragma once

#include "gs/math.h"

namespace gs {
namespace called {

#define GS_CALLED1(name)    \
  template <class T>        \
  GS_NOINLINE T name(T x) { \
    return gs::name(x);     \
  }
#define GS_CALLED2(name)         \
  template <class T>             \
  GS_NOINLINE T name(T x, T y) { \
    return gs::name(x, y);       \
  }

GS_CALLED1(acos)
GS_CALLED1(acosh)
GS_CALLED1(asin)
GS_CALLED1(asinh)
GS_CALLED1(atan)
GS_CALLED1(atanh)
GS_CALLED1(cbrt)
GS_CALLED1(cos)
GS_CALLED1(cosh)
GS_CALLED1(digamma)
GS_CALLED1(erf)
GS_CALLED1(erf_inv)
GS_CALLED1(erfc)
GS_CALLED1(exp)
GS_CALLED1(exp2)
GS_CALLED1(expm1)
GS_CALLED1(lgamma)
GS_CALLED1(log)
GS_CALLED1(log1p)
GS_CALLED1(logistic)
GS_CALLED1(sin)
GS_CALLED1(sinh)
GS_CALLED1(tan)
GS_CALLED1(tanh)
GS_CALLED2(atan2)
GS_CALLED2(pow)

#undef GS_CALLED1
#undef GS_CALLED2

}  // namespace called
}  // namespace gs
