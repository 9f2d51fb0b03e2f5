// Entry points on a GPU: one thread per trajectory.

#pragma once

#include "gs/adjoint.h"
#include "gs/kept.h"
#include "gs/record.h"
#include "gs/replay.h"

namespace gs {

__device__ __forceinline__ Lanes lanes_of_this_thread(int64_t total) {
  return lanes_from(static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, total);
}

struct Rows {
  int32_t highest, sum;
};

// Over the threads of a warp.
__device__ __forceinline__ Rows rows_of_warp(int32_t own) {
  Rows out{own, own};
  for (int offset = 16; offset > 0; offset /= 2) {
    const int32_t other = __shfl_xor_sync(0xffffffffu, out.highest, offset);
    out.highest = other > out.highest ? other : out.highest;
    out.sum += __shfl_xor_sync(0xffffffffu, out.sum, offset);
  }
  return out;
}

// The trajectories of a block in the order of their numbers of steps, so that the threads of a warp
// have about equally many: a warp takes as long as its longest trajectory. Neighbours in memory
// stay together unless sorting is worth it, and whether it can be is asked first: sorting costs as
// much as a few steps.
__device__ __forceinline__ Lanes lanes_by_steps(const int32_t* num_steps, int64_t total) {
  if (blockDim.x <= 32) return lanes_of_this_thread(total);
  __shared__ int32_t steps[kMaxBlock], order[kMaxBlock], sorted_rows[kMaxBlock / 32];
  __shared__ Rows rows[kMaxBlock / 32];
  const int own_place = threadIdx.x, size = blockDim.x, warps = size / 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * size;
  const int32_t own = first + own_place < total ? num_steps[first + own_place] : 0;
  const Rows of_warp = rows_of_warp(own);
  steps[own_place] = own;
  if (own_place % 32 == 0) rows[own_place / 32] = of_warp;
  __syncthreads();
  // Rows that the warps walk as they are, and at the very least.
  int32_t walked = 0, needed = 0;
  for (int warp = 0; warp < warps; ++warp) {
    walked += rows[warp].highest;
    needed += rows[warp].sum;
  }
  if (8 * (needed / 32) >= 7 * walked) return lanes_from(first + own_place, total);

  int rank = 0;
  for (int place = 0; place < size; ++place) {
    const int32_t other = steps[place];
    rank += other > own || (other == own && place < own_place);
  }
  order[rank] = own_place;
  if (rank % 32 == 0) sorted_rows[rank / 32] = own;
  __syncthreads();
  int32_t sorted = 0;
  for (int warp = 0; warp < warps; ++warp) sorted += sorted_rows[warp];
  const bool worth_it = 8 * sorted < 7 * walked;
  return lanes_from(first + (worth_it ? order[own_place] : own_place), total);
}

// A batch may be taken apart or put together differently before its adjoint, ensemble by ensemble:
// trajectories of two must not be sorted together.
__device__ __forceinline__ bool block_in_one_ensemble(int64_t ensemble, int64_t total) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x, end = first + blockDim.x;
  return first / ensemble == ((end < total ? end : total) - 1) / ensemble;
}

// Threads past the end of the ensemble take part in everything, with nothing to do: a warp agrees
// and reduces as a whole.

template <class P>
__device__ __forceinline__ void record_on_gpu(const RecordArguments<P::num_leaves>& a) {
  record<P>(a, lanes_of_this_thread(a.lanes));
}

template <class P>
__device__ __forceinline__ void replay_on_gpu(const ReplayArguments<P::num_leaves>& a) {
  // Trajectories that are sorted have their checkpoints in that order too: where memory is touched
  // in pieces, that costs what sorting saves in steps.
  const Lanes columns = lanes_of_this_thread(a.lanes);
  const bool sorts = a.checkpoints == nullptr ||
                     (a.order != nullptr && block_in_one_ensemble(a.ensemble, a.lanes));
  const Lanes lanes = sorts ? lanes_by_steps(a.num_steps, a.lanes) : columns;
  if (a.order != nullptr) {
    store(a.order, 0, columns, static_cast<int32_t>(lanes.first - columns.first));
  }
  replay<P>(a, lanes, columns);
}

// The sum over the threads of a block, in one order; the result is that of thread 0.
__device__ __forceinline__ Scalar sum_over_block(Scalar x, Scalar* of_warps) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
  if (blockDim.x <= 32) return x;
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < static_cast<int>(blockDim.x / 32); ++warp) x += of_warps[warp];
  }
  __syncthreads();
  return x;
}

template <class P>
__device__ __forceinline__ void adjoint_on_gpu(
    const AdjointArguments<P::num_leaves, P::num_wanted>& a) {
  constexpr int entries = P::num_cotangents;
  __shared__ Scalar of_warps[32];
  Real ct_p[entries > 0 ? entries : 1];
  const Lanes columns = lanes_of_this_thread(a.lanes);
  Lanes lanes = columns;
  if (a.order != nullptr && columns.valid) {
    lanes = lanes_from(columns.first + load<I32>(a.order, 0, columns), a.lanes);
  }
  adjoint<P>(a, lanes, columns, ct_p);
  static_for<P::num_wanted>([&](auto leaf) GS_LAMBDA {
    constexpr int L = decltype(leaf)::value;
    constexpr int begin = P::wanted_begin[L], size = P::wanted_begin[L + 1] - begin;
    if (!a.ct_leaves.leaf[L].per_lane) {
      for_each<size>([&](auto e) GS_LAMBDA {
        const Scalar total = sum_over_block(ct_p[begin + e], of_warps);
        if (threadIdx.x == 0) {
          a.partial[static_cast<int64_t>(blockIdx.x) * entries + begin + e] = total;
        }
      });
    }
  });
}

// Sums the blocks' shares of the cotangents of shared leaves: one block per entry.
template <class P>
__device__ __forceinline__ void reduce_on_gpu(
    const AdjointArguments<P::num_leaves, P::num_wanted>& a, int64_t blocks) {
  constexpr int entries = P::num_cotangents;
  __shared__ Scalar of_warps[32];
  const int entry = blockIdx.x;
  Scalar total = 0;
  for (int64_t block = threadIdx.x; block < blocks; block += blockDim.x) {
    total += a.partial[block * entries + entry];
  }
  total = sum_over_block(total, of_warps);
  if (threadIdx.x != 0) return;
  static_for<P::num_wanted>([&](auto leaf) GS_LAMBDA {
    constexpr int L = decltype(leaf)::value;
    constexpr int begin = P::wanted_begin[L], end = P::wanted_begin[L + 1];
    if (entry >= begin && entry < end && !a.ct_leaves.leaf[L].per_lane) {
      static_cast<Scalar*>(a.ct_leaves.leaf[L].data)[entry - begin] = total;
    }
  });
}

}  // namespace gs
