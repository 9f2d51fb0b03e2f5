// Adaptive recording: every lane steps at its own pace until it is done or has failed.
//
// A problem P supplies `begin` and `judge`, generated from the step size controller. Inside, time
// runs forwards: a lane that integrates backwards has direction -1 and sees the times -t.

#pragma once

#include "gs/arguments.h"
#include "gs/attempts.h"
#include "gs/explicit_rk.h"
#include "gs/outputs.h"

namespace gs {

template <int N>
GS_FN Mask all_finite(const Real* x) {
  Mask out(true);
  for_each<N>([&](auto c) GS_LAMBDA { out = out & is_finite(x[c]); });
  return out;
}

// Stores a state, component by component, in block `row` of an array [rows][dim][ensemble].
template <int N>
GS_FN void store_state_rows(Mask where, Scalar* array, I32 row, const Lanes& lanes, const Real* y) {
  for_each<N>([&](auto c) GS_LAMBDA { store_rows(where, array, row, lanes, y[c], N, c); });
}

// The first checkpoint of a pack, of trajectories without a single step too: see adjoint.h.
template <int N>
GS_FN void store_initial(Scalar* checkpoints, const Lanes& lanes, const Real* y) {
  if (GS_LANES == 1 || checkpoints == nullptr) return;
  for_each<N>([&](auto c) GS_LAMBDA { store(checkpoints, c, lanes, y[c]); });
}

// Writes the outputs of one step and moves the output counter of each lane. An output time equal to
// the end of the step gets the step's end state itself.
template <class P, class Method>
GS_FN void write_outputs(const typename P::Parameters& p, const OutputTimes& outputs, Scalar* ys,
                         Mask taken, Real t0, Real t1, const Real* y, Real (*k)[P::dim],
                         const Real* y1, I32& next, Real& next_time) {
  const Real end = outputs.direction * t1;
  Mask due = taken & (next_time <= end);
  if (!any(due)) return;
  Method::extra_stages(p, t0, t1, y, k);
  do {
    const Real t = select(due, outputs.direction * next_time, t1);
    Real out[P::dim];
    Method::interpolate(t0, t1, y, k, t, out);
    for_each<P::dim>([&](auto c) GS_LAMBDA { out[c] = select(t == t1, y1[c], out[c]); });
    store_state_rows<P::dim>(due, ys, next, outputs.lanes, out);
    next = next + convert<I32>(due);
    next_time = outputs.forward(next);
    due = due & (next_time <= end);
  } while (any(due));
}

// The rows that were not reached.
template <class P>
GS_FN void fill_outputs(const OutputTimes& outputs, Scalar* ys, I32 next) {
  Real nothing[P::dim];
  for_each<P::dim>([&](auto c) GS_LAMBDA { nothing[c] = Real(kNan); });
  for (Mask left = next < I32(outputs.count); any(left); left = next < I32(outputs.count)) {
    store_state_rows<P::dim>(left, ys, next, outputs.lanes, nothing);
    next = next + I32(1);
  }
}

template <class P>
GS_FN void record(const RecordArguments<P::num_leaves>& a, const Lanes& lanes) {
  using Method = typename P::Method;
  constexpr int dim = P::dim;
  const typename P::Parameters p(a.leaves.leaf, lanes);

  Real y[dim], k[Method::all_stages][dim];
  load_state<dim>(a.y0, lanes, y);
  const Real t_begin = load_time(a.t0, lanes), t_end = load_time(a.t1, lanes);
  const Real direction = select(t_end < t_begin, Real(-1), Real(1));
  const Real t0 = direction * t_begin, t1 = direction * t_end;
  Method::first_stage(p, t_begin, y, k[0]);

  store_initial<dim>(a.checkpoints, lanes, y);
  Real t = t0, t_next, floor;
  I32 status;
  typename P::ControllerState controller;
  {
    Real f0[dim];
    for_each<dim>([&](auto c) GS_LAMBDA { f0[c] = direction * k[0][c]; });
    const Real dt0 = P::with_dt0 ? load_time(a.dt0, lanes) : Real(0);
    P::begin(p, direction, t0, t1, dt0, y, f0, t_next, floor, status, controller);
  }

  const int32_t capacity = static_cast<int32_t>(a.capacity);
  const int32_t max_steps = static_cast<int32_t>(a.max_steps);
  const int32_t every = static_cast<int32_t>(a.checkpoint_every);
  I32 accepted(0), attempts(0), next_output(0), next_saved(0), block(0);
  const bool every_state = a.taken != nullptr;
  const int32_t most_attempts = every_state && capacity < max_steps ? capacity : max_steps;
  AttemptWriter taken(a.taken, lanes);
  int32_t attempt = 0;  // of the lanes that are running
  const OutputTimes outputs{{a.ts, lanes}, static_cast<int32_t>(a.num_outputs), lanes, direction};
  Real next_time(kInfinity);
  if (P::with_outputs && outputs.count > 0) next_time = outputs.forward(next_output);
  store(a.times, 0, lanes, t_begin);

  Mask active = (status == I32(kSuccessful)) & lanes.valid;
  for (;; ++attempt) {
    const Mask running = active & (attempts < I32(most_attempts)) & (accepted < I32(capacity));
    if (!any(running)) break;
    const Real from = direction * t, to = direction * t_next;
    if constexpr (!P::Tableau::fsal) Method::first_stage(p, from, y, k[0]);
    Real y1[dim], error[dim];
    Method::step(p, from, to, y, k, y1);
    if constexpr (P::Tableau::adaptive) {
      Method::error(t_next - t, k, error);
      for_each<dim>([&](auto c) GS_LAMBDA { error[c] = direction * error[c]; });
    }

    Mask ok, done;
    Real t_after;
    I32 verdict;
    typename P::ControllerState state;
    P::judge(p, t0, t1, floor, t, t_next, y, y1, error, controller, ok, done, t_after, verdict,
             state);
    ok = ok & running;
    if (every_state) {
      for_each<dim>([&](auto c) GS_LAMBDA {
        store(a.checkpoints, static_cast<int64_t>(attempt) * dim + c, lanes, y[c]);
      });
      taken.note(attempt, ok);
    } else if (a.checkpoints != nullptr) {
      const Mask save = ok & (accepted == next_saved);
      store_state_rows<dim>(save, a.checkpoints, block, lanes, y);
      block = block + convert<I32>(save);
      next_saved = next_saved + select(save, I32(every), I32(0));
    }
    accepted = accepted + convert<I32>(ok);
    attempts = attempts + convert<I32>(running);
    store_rows(ok, a.times, accepted, lanes, to);
    if constexpr (P::with_outputs) {
      write_outputs<P, Method>(p, outputs, a.ys, ok, from, to, y, k, y1, next_output, next_time);
    }
    for_each<dim>([&](auto c) GS_LAMBDA { y[c] = select(ok, y1[c], y[c]); });
    if constexpr (P::Tableau::fsal) {
      for_each<dim>([&](auto c)
                        GS_LAMBDA { k[0][c] = select(ok, k[Method::stages - 1][c], k[0][c]); });
    }
    t = select(ok, t_next, t);
    t_next = select(running, t_after, t_next);
    status = select(running, verdict, status);
    controller = P::ControllerState::select(running, state, controller);
    active = active & !(running & (done | (status != I32(kSuccessful))));
    // Where a trajectory has come to its end, it stands while others in lockstep go on: from a step
    // that is not a number a loop inside the field might not come back.
    if constexpr (GS_LANES > 1) t_next = select(active, t_next, t);
  }

  if (every_state) taken.finish(attempt);
  const Mask out_of_steps = active & (attempts >= I32(max_steps));
  status = select(out_of_steps, I32(kMaxStepsReached), status);
  if constexpr (P::with_outputs) fill_outputs<P>(outputs, a.ys, next_output);
  const Mask succeeded = status == I32(kSuccessful);
  for_each<dim>([&](auto c) GS_LAMBDA { y[c] = select(succeeded, y[c], Real(kNan)); });
  store_state<dim>(a.y1, lanes, y);
  store(a.num_accepted, 0, lanes, accepted);
  store(a.num_rejected, 0, lanes, attempts - accepted);
  store(a.status, 0, lanes, status);
  store(a.unfinished, 0, lanes, convert<I32>(active & !out_of_steps));
}

}  // namespace gs
