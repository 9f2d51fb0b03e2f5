// The rows that a recording writes, one for each accepted step: the time at its end, and the state
// at its start if that is a checkpoint.
//
// Trajectories that reject steps at different times come to a row at different times. On a CPU each
// row is written at once. On a GPU that would touch memory in pieces of one number, each of which
// costs as much as the 32 bytes around it; so the latest rows wait in shared memory until all
// threads of the warp have come that far, and are then written side by side. A trajectory that is
// further ahead writes its oldest row alone.

#pragma once

#include "gs/arguments.h"
#include "gs/kept.h"
#include "gs/warp.h"

namespace gs {

// Stores a state, component by component, in block `row` of an array [rows][dim][ensemble].
template <int N>
GS_FN void store_state_rows(Mask where, Scalar* array, I32 row, const Lanes& lanes, const Real* y) {
  for_each<N>([&](auto c)
                  GS_LAMBDA { store_rows(where, array, row * I32(N) + I32(c), lanes, y[c]); });
}

// Rows of N + 1 numbers that wait for others, in as much shared memory as leaves room for other
// blocks; 0 if that is none. The host asks for the memory: gradsolve/_fused/cuda.py.
template <int N>
constexpr int rows_that_wait() {
  constexpr int bytes = (N + 1) * int(sizeof(Scalar)) * kMaxBlock;
  return 8 * bytes <= 32768 ? 8 : 4 * bytes <= 32768 ? 4 : 0;
}

struct RowsOnce {
  Scalar* times;
  Scalar* checkpoints;
  int32_t every;
  Lanes lanes;
  I32 next_saved, block;

  template <class Arguments>
  GS_FN RowsOnce(const Arguments& a, const Lanes& where)
      : times(a.times),
        checkpoints(a.checkpoints),
        every(static_cast<int32_t>(a.checkpoint_every)),
        lanes(where),
        next_saved(0),
        block(0) {}

  // Whether any trajectory goes on.
  GS_FN bool advance(Mask running, I32) { return any(running); }

  // Row `row` of the trajectories that have accepted a step from y to the time `to`.
  template <int N>
  GS_FN void add(Mask accepted, I32 row, Real to, const Real* y) {
    if (checkpoints != nullptr) {
      const Mask save = accepted & (row == next_saved);
      store_state_rows<N>(save, checkpoints, block, lanes, y);
      block = block + convert<I32>(save);
      next_saved = next_saved + select(save, I32(every), I32(0));
    }
    store_rows(accepted, times, row + convert<I32>(accepted), lanes, to);
  }
};

#if GS_CUDA
extern __shared__ Scalar waiting_rows[];

template <int N>
struct RowsTogether {
  static constexpr int kept = rows_that_wait<N>();
  Scalar* times;
  Scalar* checkpoints;
  int32_t every;
  Lanes lanes;
  int32_t written;  // rows below are written, by all threads of the warp
  int32_t own;      // or by this one

  template <class Arguments>
  GS_FN RowsTogether(const Arguments& a, const Lanes& where)
      : times(a.times),
        checkpoints(a.checkpoints),
        every(static_cast<int32_t>(a.checkpoint_every)),
        lanes(where),
        written(0),
        own(0) {}

  GS_FN bool advance(bool running, int32_t rows) {
    const bool any_running = __any_sync(kWholeWarp, running);
    const int32_t complete =
        any_running ? lowest_in_warp(running ? rows : 0x7fffffff) : highest_in_warp(rows);
    for (; written < complete; ++written) {
      if (written >= own && written < rows) write(written);
    }
    return any_running;
  }

  template <int>
  GS_FN void add(bool accepted, int32_t row, Scalar to, const Scalar* y) {
    if (!accepted) return;
    const int32_t oldest = own > written ? own : written;
    if (row - oldest == kept) {
      write(oldest);
      own = oldest + 1;
    }
    Scalar* const at = place(row);
    at[0] = to;
    if (checkpoints == nullptr) return;
    for_each<N>([&](auto c) GS_LAMBDA { at[(c + 1) * blockDim.x] = y[c]; });
  }

 private:
  GS_FN Scalar* place(int32_t row) const {
    return waiting_rows + (row % kept) * (N + 1) * blockDim.x + threadIdx.x;
  }
  GS_FN void write(int32_t row) const {
    const Scalar* const at = place(row);
    store(times, row + 1, lanes, at[0]);
    if (checkpoints == nullptr || row % every != 0) return;
    const int64_t first = static_cast<int64_t>(row / every) * N;
    for_each<N>([&](auto c)
                    GS_LAMBDA { store(checkpoints, first + c, lanes, at[(c + 1) * blockDim.x]); });
  }
};

template <bool Together, int N>
struct ChosenRows {
  using type = RowsOnce;
};
template <int N>
struct ChosenRows<true, N> {
  using type = RowsTogether<N>;
};
template <int N>
using MeshRows = typename ChosenRows<(rows_that_wait<N>() > 0), N>::type;
#else
template <int N>
using MeshRows = RowsOnce;
#endif

}  // namespace gs
