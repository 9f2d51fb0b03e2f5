// The discrete adjoint: the recorded steps backwards, each transposed.
//
// The lanes of a pack, or of a warp, walk the rows of the mesh downwards together, so that what
// they read lies side by side in memory; a lane with fewer steps waits. A lane takes part in a row
// only if it recorded that step and a cotangent has reached it: where it failed, the field's
// derivative may be infinite, and zero times that is not zero. A waiting lane of a pack is computed
// with the others, and stands at its initial state meanwhile: from any other place a loop inside
// the field might not come back.

#pragma once

#include "gs/attempts.h"
#include "gs/mesh.h"
#include "gs/record.h"
#include "gs/warp.h"

namespace gs {

// The trajectories `lanes`, whose states lie in the columns `columns`. Cotangents that they share
// with others are to be summed by the caller; those of leaves with an entry per lane are stored.
template <class P>
GS_FN void adjoint(const AdjointArguments<P::num_leaves, P::num_wanted>& a, const Lanes& lanes,
                   const Lanes& columns, Real* ct_p) {
  using Method = typename P::Method;
  constexpr int dim = P::dim;
  const typename P::Parameters p(a.leaves.leaf, lanes);
  const Mesh mesh(a, lanes);
  [[maybe_unused]] const int32_t every = static_cast<int32_t>(a.checkpoint_every);
  const OutputTimes outputs{
      {a.ts, lanes}, static_cast<int32_t>(a.num_outputs), lanes, mesh.direction};

  Real ct[dim];
  for_each<dim>([&](auto c) GS_LAMBDA { ct[c] = Real(0); });
  if constexpr (P::with_end) {
    load_state<dim>(a.ct_y1, lanes, ct);
    for_each<dim>([&](auto c) GS_LAMBDA { ct[c] = select(mesh.succeeded, ct[c], Real(0)); });
  }
  for_each<P::num_cotangents>([&](auto e) GS_LAMBDA { ct_p[e] = Real(0); });
  Real ct_t0(0), ct_t1(0);

  // The latest output that was reached, -1 for none.
  I32 last_output(-1);
  Real last_time(kInfinity);
  if constexpr (P::with_outputs) {
    const Real end = mesh.direction * mesh.end;
    for (int32_t m = 0; m < outputs.count; ++m) {
      const Mask reached = (outputs.forward(I32(m)) <= end) & (mesh.num_steps > I32(0));
      last_output = select(reached, I32(m), last_output);
      if (P::with_output_times) store(a.ct_ts, m, lanes, Real(0));
    }
    if (outputs.count > 0) last_time = outputs.forward(last_output);
  }

  [[maybe_unused]] Real initial[dim];
  if constexpr (GS_LANES > 1) {
    for_each<dim>([&](auto c) GS_LAMBDA { initial[c] = load<Real>(a.checkpoints, c, columns); });
  }
  // The state before step `row`, which lies in block `block` of each lane.
  const auto checkpoint = [&](int32_t row, I32 block, Real* y) GS_LAMBDA {
    for_each<dim>([&](auto c) GS_LAMBDA {
      y[c] = load_rows<Real>(a.checkpoints, block, columns, dim, c);
      if constexpr (GS_LANES > 1) y[c] = select(mesh.takes(row), y[c], initial[c]);
    });
  };
  const bool by_attempts = a.taken != nullptr;
  I32 attempts(0);
  if (by_attempts) attempts = mesh.num_steps + load<I32>(a.num_rejected, 0, lanes);
  AttemptReader taken_attempts(a.taken, attempts, lanes);
  I32 block(0);  // of the row that is read ahead

  const int32_t rows = highest_in_warp(mesh.num_steps);
  // States of the rows from here on need no segment any more.
  [[maybe_unused]] int32_t segment_end = rows;
  // What the next row needs is read one row ahead, while the present one is computed: into
  // registers, or where the stages need those, into the nearest cache.
  constexpr bool ahead_in_cache = !P::with_segments && Method::fill_registers();
  constexpr bool ahead_in_registers = !P::with_segments && !Method::fill_registers();
  Real ahead_from, ahead_to(0);
  [[maybe_unused]] Real ahead_y[dim];
  const auto read_ahead = [&](int32_t row) GS_LAMBDA {
    ahead_from = mesh.start(row);
    if constexpr (!P::with_segments) {
      block = by_attempts ? taken_attempts.previous(mesh.takes(row)) : I32(row);
    }
    if constexpr (ahead_in_registers) checkpoint(row, block, ahead_y);
    if constexpr (ahead_in_cache) {
      for_each<dim>([&](auto c) GS_LAMBDA { prefetch(a.checkpoints, block, columns, dim, c); });
    }
  };
  if (rows > 0) {
    ahead_to = mesh.finish(rows - 1);
    read_ahead(rows - 1);
  }
  for (int32_t row = rows - 1; row >= 0; --row) {
    const Mask taken = mesh.takes(row);
    const Real from = ahead_from, to = ahead_to;
    Real y[dim];
    if constexpr (ahead_in_cache) checkpoint(row, block, y);
    if constexpr (ahead_in_registers) {
      for_each<dim>([&](auto c) GS_LAMBDA { y[c] = ahead_y[c]; });
    }
    ahead_to = from;  // where one step starts, the one before ends
    if (row > 0) read_ahead(row - 1);
    if constexpr (P::with_segments) {
      const int32_t first = row / every * every;
      if (first < segment_end) {
        // Re-integrates the steps after a checkpoint.
        segment_end = first;
        Real k[Method::all_stages][dim];
        checkpoint(first, I32(first / every), y);
        for (int32_t inner = first; inner <= row; ++inner) {
          for_each<dim>([&](auto c) GS_LAMBDA {
            store(a.segment, static_cast<int64_t>(inner - first) * dim + c, columns, y[c]);
          });
          if (inner < row && any(mesh.takes(inner))) {
            const Real begin = mesh.start(inner), end = mesh.finish(inner);
            Real y1[dim];
            Method::first_stage(p, begin, y, k[0]);
            Method::step(p, begin, end, y, k, y1);
            const Mask moves = mesh.takes(inner);
            for_each<dim>([&](auto c) GS_LAMBDA { y[c] = select(moves, y1[c], y[c]); });
          }
        }
      }
      for_each<dim>([&](auto c) GS_LAMBDA {
        y[c] = load<Real>(a.segment, static_cast<int64_t>(row - first) * dim + c, columns);
        if constexpr (GS_LANES > 1) y[c] = select(lanes.valid, y[c], initial[c]);
      });
    }

    Mask live(false);
    for_each<dim>([&](auto c) GS_LAMBDA { live = live | (ct[c] != Real(0)); });
    const Real begin = mesh.direction * from;
    Mask due(false);
    if constexpr (P::with_outputs) {
      due = taken & (last_output >= I32(0)) & ((last_time > begin) | Mask(row == 0));
    }
    live = taken & (live | due);
    if (!any(live)) continue;
    const bool outputs_here = any(due);

    // Apart from `step`: a loop over the stages addresses them by number, so that they are in
    // memory with all that is one object with them.
    Real k[Method::all_stages][dim];
    typename Method::Linearised step;
    Method::adj_forward(p, from, to, y, outputs_here, k, step);

#if GS_LANES == 1
    Real* const lambda = ct;
#else
    Real lambda[dim];
    for_each<dim>([&](auto c) GS_LAMBDA { lambda[c] = ct[c]; });
#endif
    typename Method::OutputCotangents from_outputs;
    if constexpr (P::with_outputs) {
      if (outputs_here) from_outputs.clear();
      while (any(due)) {
        const Real t = select(due, mesh.direction * last_time, to);
        const Mask at_end = t == to;
        const I32 index = max(last_output, I32(0));
        Real c_m[dim];
        for_each<dim>([&](auto c) GS_LAMBDA {
          const Real ct_out = load_rows<Real>(a.ct_ys, index, lanes, dim, c);
          c_m[c] = select(due, ct_out, Real(0));
          lambda[c] = lambda[c] + select(at_end, c_m[c], Real(0));
        });
        const Real u = Method::adj_output(from, to, k, t, c_m, at_end, from_outputs);
        if constexpr (P::with_output_times) store_rows(due, a.ct_ts, index, lanes, u);
        last_output = last_output - convert<I32>(due);
        last_time = outputs.forward(last_output);
        due = due & (last_output >= I32(0)) & ((last_time > begin) | Mask(row == 0));
      }
    }

    Real step_t0, step_t1;
#if GS_LANES == 1
    Method::adj_step(p, from, to, y, k, step, outputs_here, &from_outputs, lambda, step_t0, step_t1,
                     ct_p);
#else
    Real of_step[P::num_cotangents > 0 ? P::num_cotangents : 1];
    for_each<P::num_cotangents>([&](auto e) GS_LAMBDA { of_step[e] = Real(0); });
    Method::adj_step(p, from, to, y, k, step, outputs_here, &from_outputs, lambda, step_t0, step_t1,
                     of_step);
    for_each<P::num_cotangents>(
        [&](auto e) GS_LAMBDA { ct_p[e] = ct_p[e] + select(live, of_step[e], Real(0)); });
    for_each<dim>([&](auto c) GS_LAMBDA { ct[c] = select(live, lambda[c], ct[c]); });
#endif
    if constexpr (P::with_times) {
      if (row == 0) ct_t0 = select(live, step_t0, ct_t0);
      const Mask last = live & mesh.succeeded & (mesh.num_steps == I32(row + 1));
      ct_t1 = select(last, step_t1, ct_t1);
    }
  }

  if (a.ct_y0 != nullptr) store_state<dim>(a.ct_y0, lanes, ct);
  if constexpr (P::with_times) {
    if (a.ct_t0 != nullptr) store(a.ct_t0, 0, lanes, ct_t0);
    if (a.ct_t1 != nullptr) store(a.ct_t1, 0, lanes, ct_t1);
  }
  static_for<P::num_wanted>([&](auto leaf) GS_LAMBDA {
    constexpr int L = decltype(leaf)::value;
    constexpr int begin = P::wanted_begin[L], size = P::wanted_begin[L + 1] - begin;
    if (a.ct_leaves.leaf[L].per_lane) {
      Scalar* out = static_cast<Scalar*>(a.ct_leaves.leaf[L].data);
      for_each<size>([&](auto e) GS_LAMBDA { store(out, e, lanes, ct_p[begin + e]); });
    }
  });
}

}  // namespace gs
