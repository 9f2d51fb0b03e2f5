// Fixed-mesh replay: exactly the recorded steps.

#pragma once

#include "gs/mesh.h"
#include "gs/record.h"
#include "gs/warp.h"

namespace gs {

// The trajectories `lanes`, whose checkpoints are written into the columns `columns`.
template <class P>
GS_FN void replay(const ReplayArguments<P::num_leaves>& a, const Lanes& lanes,
                  const Lanes& columns) {
  using Method = typename P::Method;
  constexpr int dim = P::dim;
  const typename P::Parameters p(a.leaves.leaf, lanes);
  const Mesh mesh(a, lanes);
  const int32_t every = static_cast<int32_t>(a.checkpoint_every);

  Real y[dim], k[Method::all_stages][dim];
  load_state<dim>(a.y0, lanes, y);
  store_initial<dim>(a.checkpoints, columns, y);
  I32 next_output(0);
  const OutputTimes outputs{
      {a.ts, lanes}, static_cast<int32_t>(a.num_outputs), lanes, mesh.direction};
  Real next_time(kInfinity);
  if (P::with_outputs && outputs.count > 0) next_time = outputs.forward(next_output);
  if constexpr (P::Tableau::fsal) Method::first_stage(p, mesh.start(0), y, k[0]);

  // Trajectories in lockstep write their checkpoints together, those with fewer steps too: a GPU's
  // memory writes 32 bytes at a time, and has to read them first where a neighbour left some out.
  const bool saving = a.checkpoints != nullptr;
  Scalar* next_checkpoint = a.checkpoints;
  const int32_t rows = saving ? highest_in_warp(mesh.num_steps) : highest(mesh.num_steps);
  // Times are read one row ahead.
  Real from = mesh.start(0), to = mesh.finish(0);
  const Scalar* times_ahead = mesh.times_of(2);
  int32_t next_saved = saving ? 0 : -1;
  for (int32_t row = 0; row < rows; ++row, times_ahead += lanes.total) {
    if (row == next_saved) {
      for_each<dim>([&](auto c) GS_LAMBDA { store(next_checkpoint, c, columns, y[c]); });
      next_checkpoint += dim * lanes.total;
      next_saved += every;
    }
    const Mask taken = mesh.takes(row);
    if (!any(taken)) continue;
    const Real ahead = mesh.finish(row + 1, times_ahead);
    if constexpr (!P::Tableau::fsal) Method::first_stage(p, from, y, k[0]);
    Real y1[dim];
    Method::step(p, from, to, y, k, y1);
    if constexpr (P::with_outputs) {
      write_outputs<P, Method>(p, outputs, a.ys, taken, from, to, y, k, y1, next_output, next_time);
    }
    for_each<dim>([&](auto c) GS_LAMBDA { y[c] = select(taken, y1[c], y[c]); });
    if constexpr (P::Tableau::fsal) {
      for_each<dim>([&](auto c)
                        GS_LAMBDA { k[0][c] = select(taken, k[Method::stages - 1][c], k[0][c]); });
    }
    from = to;
    to = ahead;
  }

  if constexpr (P::with_outputs) fill_outputs<P>(outputs, a.ys, next_output);
  for_each<dim>([&](auto c) GS_LAMBDA { y[c] = select(mesh.succeeded, y[c], Real(kNan)); });
  store_state<dim>(a.y1, lanes, y);
}

}  // namespace gs
