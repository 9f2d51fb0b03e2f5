// A few numbers that a trajectory keeps from one loop to the next.

#pragma once

#include "gs/lanes.h"

namespace gs {

// The most threads in a block.
constexpr int kMaxBlock = 128;

// N numbers of each trajectory. They take registers; on a GPU, where those are
// 255 of 32 bits, more than kInRegisters bytes take shared memory instead, as long as they fit: a
// spill to local memory would cost every row, and this costs only the rows that use it.
template <int N>
class Kept {
  static constexpr int kInRegisters = 192;
  static constexpr int kShared = 45 * 1024;  // of the 48 KiB that a block has without asking
  static constexpr int bytes = N * static_cast<int>(sizeof(Scalar));

  static constexpr bool shared = GS_CUDA && bytes > kInRegisters && bytes * kMaxBlock <= kShared;
  Real own[shared ? 1 : N];

#if GS_CUDA
  // The numbers of neighbouring threads lie side by side: no two of a warp share a bank.
  GS_FN static Scalar& slot(int index) {
    __shared__ Scalar slots[shared ? N * kMaxBlock : 1];
    return slots[index * kMaxBlock + threadIdx.x];
  }
#endif

 public:
  GS_FN Real get(int index) const {
#if GS_CUDA
    if constexpr (shared) return slot(index);
#endif
    return own[shared ? 0 : index];
  }

  GS_FN void set(int index, Real value) {
#if GS_CUDA
    if constexpr (shared) {
      slot(index) = value;
      return;
    }
#endif
    own[shared ? 0 : index] = value;
  }
};

}  // namespace gs
