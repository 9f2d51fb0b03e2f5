"""Adaptive recording: every lane steps at its own pace until it is done or has failed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import _results as codes
from .._controllers import Decision, PIDController, Window
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
    OutputTimes,
)
from .._ensemble.program import Program
from .._integrators import Step
from .checkpoints import Checkpoints, empty_checkpoints, save_checkpoint
from .initial_step import initial_step
from .outputs import write_outputs


class RecordInputs(NamedTuple):
    """Per-lane inputs of a recording."""

    y0: LaneState
    t0: LaneTime
    t1: LaneTime
    ts: OutputTimes | None
    dt0: LaneTime | None


class Recording(NamedTuple):
    """Per-lane results of a recording. Rows of `times` past `num_accepted` are not defined."""

    y1: LaneState
    ys: OutputStates | None
    times: MeshTimes
    num_accepted: LaneCount
    num_rejected: LaneCount
    status: LaneCount
    unfinished: LaneFlag  # the mesh was too small, not `max_steps`
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


def forward_times(
    t0: LaneTime, t1: LaneTime, ts: OutputTimes | None
) -> tuple[LaneTime, LaneTime, LaneTime, OutputTimes | None]:
    """Direction of each lane, and its times turned so that they run forwards; padding is `inf`."""
    direction = jnp.where(t1 < t0, -1, 1).astype(t0.dtype)
    if ts is not None:
        ts = jnp.where(jnp.isinf(ts), jnp.inf, direction * ts)
    return direction, direction * t0, direction * t1, ts


def clip_floor(t1: LaneTime) -> LaneTime:
    """`t1` less 100 units in the last place: from there on a step goes to `t1` itself.

    Consecutive floating-point numbers of one sign are consecutive integers when their bits are
    read as such.
    """
    integer = jnp.int64 if t1.dtype == jnp.float64 else jnp.int32
    lowest = jnp.iinfo(integer).min
    bits = jax.lax.bitcast_convert_type(t1, integer)
    ordered = jnp.where(bits < 0, lowest - bits, bits) - 100
    return jax.lax.bitcast_convert_type(jnp.where(ordered < 0, lowest - ordered, ordered), t1.dtype)


def clip_to_end(
    t: LaneTime, t_next: LaneTime, t1: LaneTime, floor: LaneTime, accepted: LaneFlag
) -> LaneTime:
    """Ends the next step at `t1` if it would go past it, or nearly so.

    After a rejection half of the rest is taken, so that the step does get smaller.
    """
    clipped = jnp.where(accepted, t1, t + 0.5 * (t1 - t))
    return jnp.where(t_next > floor, clipped, t_next)


def isolate(value: Any) -> Any:
    """Asks the compiler not to fuse a step with its surroundings, which differ in a replay.

    It is a request: what makes a replay round as its recording did is the form of the sums in the
    step (`_integrators/_explicit.py`), and a test compares the bits of every method.
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
    integrator = program.integrator
    controller = program.controller(leaves, is_lane)
    y0 = inputs.y0
    direction, t0, t1, ts = forward_times(inputs.t0, inputs.t1, inputs.ts)
    field = program.field(leaves, is_lane, direction)
    window = Window(t0, t1)
    floor = clip_floor(t1)
    lanes = jnp.arange(t0.shape[0])
    capacity = program.capacity

    f0 = field(t0, y0)
    defined = jnp.all(jnp.isfinite(f0) & jnp.isfinite(y0), axis=0)
    dt0 = inputs.dt0
    if dt0 is None and isinstance(controller, PIDController):
        assert integrator.error_order is not None
        dt0 = initial_step(controller, field, window, y0, f0, integrator.error_order)
    t_next, controller_state = controller.init(window, dt0)
    t_next = jnp.minimum(t_next, t1)
    empty = t0 == t1  # one step of length zero, so that the window's ends have derivatives
    underflow = defined & ~empty & ~(t_next > t0)
    status = jnp.where(defined, codes.SUCCESSFUL, codes.NONFINITE)
    status = jnp.where(underflow, codes.STEP_SIZE_UNDERFLOW, status)

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
        status=status.astype(jnp.int32),
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
        finite = jnp.all(jnp.isfinite(step.y1), axis=0)
        if step.solved is not None:
            finite = finite & step.solved
        y1 = jnp.where(finite, step.y1, jnp.nan)
        decision: Decision = controller.adapt(
            window, t, attempted, y, y1, step.error, integrator.error_order, carry.controller
        )
        accepted = carry.active & decision.accept & finite
        rejected = carry.active & ~accepted
        t_new = jnp.where(accepted, attempted, t)
        t_next = clip_to_end(t_new, decision.t_next, t1, floor, accepted)
        done = accepted & (attempted >= t1)

        stuck = carry.active & ~done & (decision.underflow | ~(t_next > t_new))
        hopeless = rejected & (stuck | decision.forced)
        status = jnp.where(stuck, codes.STEP_SIZE_UNDERFLOW, carry.status)
        status = jnp.where(hopeless & ~finite, codes.NONFINITE, status).astype(jnp.int32)

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
            active=carry.active & ~done & (status == codes.SUCCESSFUL),
            t=t_new,
            t_next=advance(t_next, carry.t_next),
            y=keep(step.y1, carry.y),
            memo=jax.tree_util.tree_map(keep, step.memo, carry.memo),
            controller=jax.tree_util.tree_map(advance, decision.state, carry.controller),
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
