// What the kernels are given: plain structures of pointers and counts, laid out as the host packs
// them. States at the ends are stored trajectory by trajectory, [ensemble][dim], as users have
// them; of all other arrays the ensemble is the last axis. Times that a user gives are one for all
// or one per trajectory. A pointer is null where there is no array.

#pragma once

#include "gs/lanes.h"

namespace gs {

// The codes of gradsolve/_results.py; a test compares them.
enum Status : int32_t {
  kSuccessful = 0,
  kMaxStepsReached = 1,
  kStepSizeUnderflow = 2,
  kNonfinite = 3,
  kEvent = 4,
};

template <int NumLeaves>
struct LeafArguments {
  LeafArgument leaf[NumLeaves > 0 ? NumLeaves : 1];
};

template <int NumLeaves>
struct RecordArguments {
  int64_t lanes;
  int64_t max_steps;
  int64_t capacity;  // accepted steps that `times` has rows for
  int64_t num_outputs;
  int64_t checkpoint_every;
  const Scalar* y0;
  LeafArgument t0;
  LeafArgument t1;
  LeafArgument ts;  // [num_outputs]
  LeafArgument dt0;
  Scalar* y1;
  Scalar* ys;     // [num_outputs][dim]
  Scalar* times;  // [capacity + 1]
  int32_t* num_accepted;
  int32_t* num_rejected;
  int32_t* status;
  uint8_t* unfinished;  // `capacity` was too small, not max_steps
  Scalar* checkpoints;  // [ceil(capacity / checkpoint_every)][dim]
  // Bits of the attempts, see attempts.h: [ceil(capacity / 32)]. Given where every state is stored,
  // which is then in the row of its attempt: `capacity` limits the attempts too.
  uint32_t* taken;
  LeafArguments<NumLeaves> leaves;
};

template <int NumLeaves>
struct ReplayArguments {
  int64_t lanes;
  int64_t ensemble;  // trajectories of one ensemble: a batch is several, one behind the other
  int64_t num_outputs;
  int64_t checkpoint_every;
  const Scalar* y0;
  LeafArgument t0;
  LeafArgument t1;
  LeafArgument ts;
  const Scalar* times;  // interior mesh times; the ends are t0 and t1
  const int32_t* num_steps;
  const int32_t* status;
  Scalar* y1;
  Scalar* ys;
  Scalar* checkpoints;
  // How far from a column of the checkpoints its trajectory lies; null where each has its own.
  int32_t* order;
  LeafArguments<NumLeaves> leaves;
};

template <int NumLeaves, int NumWanted>
struct AdjointArguments {
  int64_t lanes;
  int64_t num_outputs;
  int64_t checkpoint_every;
  LeafArgument t0;
  LeafArgument t1;
  LeafArgument ts;
  const Scalar* times;
  const int32_t* num_steps;
  const int32_t* status;
  const Scalar* checkpoints;
  // Of a recording that stored every state; null where checkpoints lie in the rows of steps.
  const uint32_t* taken;
  const int32_t* num_rejected;
  const int32_t* order;  // of a replay that has written checkpoints in columns of its own order
  const Scalar* ct_y1;
  const Scalar* ct_ys;
  Scalar* ct_y0;
  Scalar* ct_t0;
  Scalar* ct_t1;
  Scalar* ct_ts;    // [num_outputs]
  Scalar* segment;  // [checkpoint_every][dim]: states between two checkpoints
  Scalar* partial;  // [groups][entries]: sums of the cotangents of shared leaves
  LeafArguments<NumLeaves> leaves;
  LeafArguments<NumWanted> ct_leaves;  // cotangents of the wanted leaves, in their order
};

}  // namespace gs
