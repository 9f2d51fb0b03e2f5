// Functions of gs/math.h that are called instead of inlined, for a field that has one of them many
// times: the layer of a network would repeat its activation for every neuron, and compilers take
// minutes for that.

#pragma once

#include "gs/math.h"

namespace gs {
namespace called {

// One is a chain of operations that each wait for the last, and a GPU's thread has nothing else to
// do meanwhile: four of them overlap, with the same results. A CPU overlaps calls by itself.
template <class T>
struct Four {
  T a, b, c, d;
};

#if GS_LANES == 1
#define GS_CALLED4(name)                                         \
  template <class T>                                             \
  GS_NOINLINE Four<T> name(T a, T b, T c, T d) {                 \
    return {gs::name(a), gs::name(b), gs::name(c), gs::name(d)}; \
  }
#else
#define GS_CALLED4(name)                         \
  template <class T>                             \
  GS_FN Four<T> name(T a, T b, T c, T d) {       \
    return {name(a), name(b), name(c), name(d)}; \
  }
#endif

#define GS_CALLED1(name)    \
  template <class T>        \
  GS_NOINLINE T name(T x) { \
    return gs::name(x);     \
  }                         \
  GS_CALLED4(name)
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
#undef GS_CALLED4

}  // namespace called
}  // namespace gs
