// Trajectories that run in lockstep: the lanes of a pack, and on a GPU the threads of a warp.
//
// On a GPU all threads of the warp must take part.

#pragma once

#include "gs/lanes.h"

namespace gs {

#if GS_CUDA
constexpr uint32_t kWholeWarp = 0xffffffffu;
#endif

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

}  // namespace gs
