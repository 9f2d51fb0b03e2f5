"""Adaptive recording: every lane steps at its own pace until it is done or has failed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import _results as codes
from .._controllers import Window
from .._custom_types import (
    Array,
    Int,
    LaneCount,
    LaneFlag,
    LaneState,
    LaneTime,
    Leaf,
    MeshTimes,
    OutputStates,
    SharedOrLaneTime,
    SharedOrLaneTimes,
)
from .._ensemble.program import Program
from .._integrators import Step
from .._step_control import begin, forward_times, judge
from .checkpoints import Checkpoints, empty_checkpoints, save_checkpoint
from .lanes import one_per_lane
from .outputs import write_outputs


class RecordInputs(NamedTuple):
    """Per-lane inputs of a recording."""

    y0: LaneState
    t0: SharedOrLaneTime
    t1: SharedOrLaneTime
    ts: SharedOrLaneTimes | None
    dt0: SharedOrLaneTime | None


class Recording(NamedTuple):
    """Per-lane results of a recording. Rows of `times` past `num_accepted` are not defined."""

    y1: LaneState
    ys: OutputStates | None
    times: MeshTimes
    num_accepted: LaneCount
    num_rejected: LaneCount
    status: LaneCount
    unfinished: LaneFlag  # the capacity was too small, not `max_steps`
    checkpoints: Checkpoints | None


class _Carry(NamedTuple):
    attempts: Int[Array, ""]
    active: LaneFlag
    t: LaneTime
    t_next: LaneTime
    y: LaneState
    memo: Any
    controller: Any
    status: LaneCount
    num_accepted: LaneCount
    num_rejected: LaneCount
    next_output: LaneCount
    times: MeshTimes
    ys: OutputStates | None
    checkpoints: Checkpoints | None


def isolate(value: Any) -> Any:
    """Asks the compiler not to fuse a step with its surroundings, which differ in a replay.

    It is a request: what makes a replay round as its recording did is the form of the sums in the
    step (`_integrators/_stages.py`), and a test compares the bits of every method.
    """
    return jax.lax.optimization_barrier(value)


def record(
    program: Program,
    store_checkpoints: bool,
    is_lane: tuple[bool, ...],
    leaves: list[Leaf],
    inputs: RecordInputs,
) -> tuple[Recording, None, list[Leaf | None]]:
    """Solves adaptively and records the accepted times."""
    inputs = one_per_lane(inputs)
    integrator = program.integrator
    controller = program.controller(leaves, is_lane)
    error_order = integrator.error_order
    y0 = inputs.y0
    direction, t0, t1, ts = forward_times(inputs.t0, inputs.t1, inputs.ts)
    field = program.field(leaves, is_lane, direction)
    window = Window(t0, t1)
    lanes = jnp.arange(t0.shape[0])
    capacity = program.capacity
    t_next, floor, status, controller_state = begin(
        controller, field, error_order, window, inputs.dt0, y0, field(t0, y0)
    )

    zeros = jnp.zeros(t0.shape, jnp.int32)
    times = jnp.zeros((capacity + 1, *t0.shape), t0.dtype).at[0].set(t0)
    ys = None if ts is None else jnp.full((ts.shape[0], *y0.shape), jnp.nan, y0.dtype)
    memo = integrator.start(field, t0, t_next, y0)
    checkpoints, every = None, 1
    if store_checkpoints:
        state = (y0, memo if integrator.carries_memo else None)
        checkpoints, every = empty_checkpoints(state, capacity, program.adjoint)
    init = _Carry(
        attempts=jnp.zeros((), jnp.int32),
        active=status == codes.SUCCESSFUL,
        t=t0,
        t_next=t_next,
        y=y0,
        memo=memo,
        controller=controller_state,
        status=status,
        num_accepted=zeros,
        num_rejected=zeros,
        next_output=zeros,
        times=times,
        ys=ys,
        checkpoints=checkpoints,
    )

    def cond(carry: _Carry) -> Leaf:
        room = jnp.max(carry.num_accepted) < capacity
        return jnp.any(carry.active) & (carry.attempts < program.max_steps) & room

    def body(carry: _Carry) -> _Carry:
        t, attempted, y, memo = isolate((carry.t, carry.t_next, carry.y, carry.memo))
        step: Step = isolate(integrator.step(field, t, attempted, y, memo))
        verdict = judge(
            controller,
            error_order,
            window,
            floor,
            t,
            attempted,
            y,
            step.y1,
            step.error,
            step.solved,
            carry.controller,
        )
        accepted = carry.active & verdict.accepted
        rejected = carry.active & ~verdict.accepted
        status = jnp.where(carry.active, verdict.status, carry.status)

        num_accepted = carry.num_accepted + accepted.astype(jnp.int32)
        row = jnp.where(accepted, num_accepted, capacity + 1)  # past the end: not written
        times = carry.times.at[row, lanes].set(attempted, mode="drop", unique_indices=True)
        checkpoints = carry.checkpoints
        if checkpoints is not None:
            state = (y, memo if integrator.carries_memo else None)
            checkpoints = save_checkpoint(checkpoints, state, carry.num_accepted, accepted, every)
        next_output, ys = carry.next_output, carry.ys
        if ts is not None:
            assert ys is not None
            next_output, ys = write_outputs(
                integrator, field, accepted, t, attempted, step, ts, next_output, ys
            )

        keep = lambda new, old: jnp.where(accepted, new, old)
        advance = lambda new, old: jnp.where(carry.active, new, old)
        return _Carry(
            attempts=carry.attempts + 1,
            active=carry.active & ~verdict.done & (status == codes.SUCCESSFUL),
            t=keep(attempted, t),
            t_next=advance(verdict.t_next, carry.t_next),
            y=keep(step.y1, carry.y),
            memo=jax.tree_util.tree_map(keep, step.memo, carry.memo),
            controller=jax.tree_util.tree_map(advance, verdict.controller, carry.controller),
            status=status,
            num_accepted=num_accepted,
            num_rejected=carry.num_rejected + rejected.astype(jnp.int32),
            next_output=next_output,
            times=times,
            ys=ys,
            checkpoints=checkpoints,
        )

    final = jax.lax.while_loop(cond, body, init)
    out_of_steps = final.active & (final.attempts >= program.max_steps)
    status = jnp.where(out_of_steps, codes.MAX_STEPS_REACHED, final.status).astype(jnp.int32)
    unfinished = final.active & ~out_of_steps
    succeeded = status == codes.SUCCESSFUL
    recording = Recording(
        y1=jnp.where(succeeded, final.y, jnp.nan),
        ys=final.ys,
        times=direction * final.times,
        num_accepted=final.num_accepted,
        num_rejected=final.num_rejected,
        status=status,
        unfinished=unfinished,
        checkpoints=final.checkpoints,
    )
    return recording, None, [None] * len(leaves)
