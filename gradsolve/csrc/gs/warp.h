// Trajectories that run in lockstep: the lanes of a pack, and on a GPU the threads of a warp.

#pragma once

#include "gs/lanes.h"

namespace gs {

#if GS_CUDA
constexpr uint32_t kWholeWarp = 0xffffffffu;
#endif

// On a GPU all threads of the warp must take part.
GS_FN int32_t highest_in_warp(I32 x) {
  int32_t out = highest(x);
#if GS_CUDA && __CUDA_ARCH__ >= 800
  out = __reduce_max_sync(kWholeWarp, out);
#elif GS_CUDA
  for (int offset = 16; offset > 0; offset /= 2) {
    const int32_t other = __shfl_xor_sync(kWholeWarp, out, offset);
    out = other > out ? other : out;
  }
#endif
  return out;
}

// On a GPU those threads of the warp take part that are here.
GS_FN bool any_in_lockstep(Mask m) {
#if GS_CUDA
  return __any_sync(__activemask(), m);
#else
  return any(m);
#endif
}

}  // namespace gs
