"""The discrete adjoint: the recorded steps backwards, each transposed."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .. import _results as codes
from .._custom_types import (
    LaneCount,
    LaneFlag,
    LaneState,
    LaneTime,
    Leaf,
    MeshTimes,
    OutputStates,
    OutputTimes,
    SharedOrLaneTime,
    SharedOrLaneTimes,
)
from .._ensemble.batching import MadeBefore
from .._ensemble.field import EnsembleField
from .._ensemble.program import Program
from .._step_control import forward_times
from .checkpoints import Checkpoints, checkpoint_spacing, load_checkpoint
from .lanes import one_per_lane
from .outputs import owns_output, pull_outputs
from .replay import mesh_rows

# Shared leaves of at most this many numbers in total get one cotangent per lane, summed once at
# the end, instead of a sum over all lanes in every stage of every step. Larger ones (the weights
# of a network) are contracted stage by stage, which needs no memory per lane.
_FEW = 64


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which inputs need a cotangent."""

    leaves: tuple[int, ...]
    y0: bool
    t0: bool
    t1: bool
    ts: bool


class AdjointInputs(NamedTuple):
    """Per-lane inputs of the backward pass."""

    y0: LaneState
    t0: SharedOrLaneTime
    t1: SharedOrLaneTime
    ts: SharedOrLaneTimes | None
    times: MeshTimes
    num_steps: LaneCount
    status: LaneCount
    checkpoints: MadeBefore
    ct_y1: LaneState | None
    ct_ys: OutputStates | None


class Cotangents(NamedTuple):
    """Per-lane cotangents."""

    y0: LaneState | None
    t0: LaneTime | None
    t1: LaneTime | None
    ts: OutputTimes | None


class _Point(NamedTuple):
    """Where a row's step starts, with the idle lanes at a safe point."""

    start: LaneTime
    end: LaneTime
    taken: LaneFlag
    y: LaneState
    memo: Any


class _Carry(NamedTuple):
    row: Leaf
    point: _Point
    ct_y: LaneState
    ct_memo: Any
    leaves: list[Leaf]
    last_output: LaneCount
    t0: LaneTime | None
    t1: LaneTime | None
    ts: OutputTimes | None


def _lift_few_shared(
    leaves: list[Leaf], is_lane: tuple[bool, ...], wanted: tuple[int, ...], lanes: int
) -> tuple[list[Leaf], tuple[bool, ...]]:
    shared = [index for index in wanted if not is_lane[index]]
    if sum(leaves[index].size for index in shared) > _FEW:
        return leaves, is_lane
    leaves, flags = list(leaves), list(is_lane)
    for index in shared:
        leaf = leaves[index]
        leaves[index] = jnp.broadcast_to(leaf[..., None], (*leaf.shape, lanes))
        flags[index] = True
    return leaves, tuple(flags)


def adjoint(
    program: Program,
    wanted: Wanted,
    is_lane: tuple[bool, ...],
    leaves: list[Leaf],
    inputs: AdjointInputs,
) -> tuple[Cotangents, None, list[Leaf | None]]:
    """Pulls the cotangents of the outputs back to the inputs.

    A lane takes part in a row only if it recorded that step. Idle lanes compute a step too, since
    all lanes run in lockstep; they do so at a point where the field is known to be finite and with
    a cotangent of zero, so that they contribute exactly zero even to shared parameters. A lane is
    idle, too, while no cotangent has reached it: where it failed, the field's derivative may be
    infinite, and zero times that is not zero.
    """
    inputs = one_per_lane(inputs)
    integrator = program.integrator
    saved: Checkpoints = inputs.checkpoints.value
    every = checkpoint_spacing(inputs.checkpoints, inputs.times.shape[0] - 1, program.adjoint)
    y0 = inputs.y0
    direction, t0, t1, ts = forward_times(inputs.t0, inputs.t1, inputs.ts)
    rows = mesh_rows(direction, t0, t1, inputs.times, inputs.num_steps, inputs.status)
    num_rows = jnp.max(inputs.num_steps)
    num_lanes = t0.shape[0]
    succeeded = inputs.status == codes.SUCCESSFUL
    want_time = wanted.t0 or wanted.t1

    # A lane without any step has no safe point of its own: it borrows everything from a lane that
    # has one.
    has_steps = inputs.num_steps > 0
    donor = jnp.argmax(has_steps)
    borrow = lambda leaf: jnp.where(has_steps, leaf, leaf[..., donor][..., None])
    leaves = [borrow(leaf) if lane else leaf for leaf, lane in zip(leaves, is_lane, strict=True)]
    safe_y, safe_t, safe_direction = borrow(y0), borrow(t0), borrow(direction)
    all_leaves, flags = _lift_few_shared(leaves, is_lane, wanted.leaves, num_lanes)
    field = program.field(all_leaves, flags, safe_direction)
    start, end, _ = rows.step(jnp.zeros((), jnp.int32))
    first_start, first_end = borrow(start), borrow(end)
    safe_memo = integrator.start(field, first_start, first_end, safe_y)

    ct_y = jnp.zeros_like(y0)
    if inputs.ct_y1 is not None:
        ct_y = jnp.where(succeeded, inputs.ct_y1, 0)
    ct_memo = None
    if integrator.carries_memo:
        ct_memo = jtu.tree_map(jnp.zeros_like, eqx.filter(safe_memo, eqx.is_inexact_array))
    outputs = ts is not None and inputs.ct_ys is not None
    last_output = jnp.full((num_lanes,), -1, jnp.int32)
    if outputs:
        assert ts is not None
        reached = jnp.sum(ts <= rows.end, axis=0) - 1
        last_output = jnp.where(has_steps, reached, -1).astype(jnp.int32)
    needed = jnp.any(ct_y != 0, axis=0)
    if outputs:
        assert ts is not None
        assert inputs.ct_ys is not None
        valid = jnp.arange(ts.shape[0])[:, None] <= last_output
        needed = needed | jnp.any(valid & jnp.any(inputs.ct_ys != 0, axis=1), axis=0)
    zero_time = jnp.zeros_like(t0)
    # Cotangents of large shared leaves are summed over the lanes inside the field's own VJP, where
    # no mask can reach. There idle lanes repeat the step of a lane that takes part.
    contracted = any(not flags[index] for index in wanted.leaves)

    def follow_a_taken_lane(point: _Point) -> tuple[_Point, EnsembleField]:
        taken = point.taken
        donor = jnp.argmax(taken)
        follow = lambda leaf: jnp.where(taken, leaf, leaf[..., donor][..., None])
        followed = [
            follow(leaf) if lane else leaf for leaf, lane in zip(all_leaves, flags, strict=True)
        ]
        start, end, y = follow(point.start), follow(point.end), follow(point.y)
        memo = jtu.tree_map(follow, point.memo)
        return (
            point._replace(start=start, end=end, y=y, memo=memo),
            program.field(followed, flags, follow(safe_direction)),
        )

    def point_at(row: Leaf, state: Any, ct_y: LaneState, last_output: LaneCount) -> _Point:
        y, memo = state
        start, end, taken = rows.step(row)
        taken = taken & needed
        if not integrator.carries_memo:
            live = jnp.any(ct_y != 0, axis=0)
            if outputs:
                assert ts is not None
                live = live | owns_output(taken, row == 0, start, ts, last_output)
            taken = taken & live
        start = jnp.where(taken, start, safe_t)
        end = jnp.where(taken, end, safe_t)
        y = jnp.where(taken, y, safe_y)
        if integrator.carries_memo:
            memo = jtu.tree_map(lambda m, s: jnp.where(taken, m, s), memo, safe_memo)
        return _Point(start, end, taken, y, memo if integrator.carries_memo else None)

    def transposed_step(carry: _Carry, load: Callable[[Leaf], Any]) -> _Carry:
        point, field_here = carry.point, field
        if contracted:
            point, field_here = follow_a_taken_lane(point)
        start, end, taken, y, memo = point
        ct_y1 = jnp.where(taken, carry.ct_y, 0)
        transposed = integrator.transpose(
            field_here, wanted.leaves, want_time, outputs, start, end, y, memo
        )
        from_outputs, last_output, ct_ts = None, carry.last_output, carry.ts
        live = jnp.any(ct_y1 != 0, axis=0)
        if outputs:
            assert ts is not None
            assert inputs.ct_ys is not None
            from_outputs, last_output, ct_y1, ct_ts, touched = pull_outputs(
                transposed,
                taken,
                carry.row == 0,
                start,
                end,
                ts,
                last_output,
                inputs.ct_ys,
                ct_y1,
                ct_ts,
            )
            live = live | touched
        pulled = transposed.pull(from_outputs, ct_y1, carry.ct_memo)
        live = taken if integrator.carries_memo else taken & live
        total = [
            a + jnp.where(live if flags[index] else jnp.any(taken), b, 0)
            for index, a, b in zip(wanted.leaves, carry.leaves, pulled.leaves, strict=True)
        ]
        ct_t0, ct_t1 = carry.t0, carry.t1
        if ct_t0 is not None and ct_t1 is not None:
            assert pulled.t0 is not None
            assert pulled.t1 is not None
            ct_t0 = jnp.where(live & (carry.row == 0), pulled.t0, ct_t0)
            last = live & succeeded & (carry.row == inputs.num_steps - 1)
            ct_t1 = jnp.where(last, pulled.t1, ct_t1)
        keep = lambda new, old: jnp.where(live, new, old)
        ct_memo = jtu.tree_map(keep, pulled.memo, carry.ct_memo)
        ct_y = keep(pulled.y0, carry.ct_y)
        # The next point is loaded here, not where it is used: XLA would repeat the loading in every
        # operation of the step.
        row = carry.row - 1
        return _Carry(
            row=row,
            point=point_at(row, load(jnp.maximum(row, 0)), ct_y, last_output),
            ct_y=ct_y,
            ct_memo=ct_memo,
            leaves=total,
            last_output=last_output,
            t0=ct_t0,
            t1=ct_t1,
            ts=ct_ts,
        )

    def advance(row: Leaf, state: Any) -> Any:
        y, memo = state
        start, end, taken = rows.step(row)
        step = integrator.step(field, start, end, y, memo)
        keep = lambda new, old: jnp.where(taken, new, old)
        return keep(step.y1, y), jtu.tree_map(keep, step.memo, memo)

    def resume(segment: Leaf) -> Any:
        y, memo = load_checkpoint(saved, segment)
        if not integrator.carries_memo:
            start, end, _ = rows.step(segment * every)
            memo = integrator.start(field, start, end, y)
        return y, memo

    def one_segment(carry: _Carry) -> _Carry:
        """Re-integrates the steps after a checkpoint, then transposes them."""
        segment = carry.row // every
        first_row = segment * every
        length = carry.row - first_row
        state = resume(segment)
        states = jtu.tree_map(
            lambda leaf: jnp.zeros((every, *leaf.shape), leaf.dtype).at[0].set(leaf), state
        )

        def forward(inner: Any) -> Any:
            offset, state, states = inner
            state = advance(first_row + offset, state)
            offset = offset + 1
            states = jtu.tree_map(lambda buffer, leaf: buffer.at[offset].set(leaf), states, state)
            return offset, state, states

        zero = jnp.zeros((), jnp.int32)
        _, _, states = jax.lax.while_loop(
            lambda inner: inner[0] < length, forward, (zero, state, states)
        )

        def load_inside(row: Leaf) -> Any:
            return load_checkpoint(states, jnp.maximum(row - first_row, 0))

        return jax.lax.while_loop(
            lambda carry: carry.row >= first_row,
            lambda carry: transposed_step(carry, load_inside),
            carry._replace(
                point=point_at(carry.row, load_inside(carry.row), carry.ct_y, carry.last_output)
            ),
        )

    def load(row: Leaf) -> Any:
        return load_checkpoint(saved, row // every)

    def one_step(carry: _Carry) -> _Carry:
        return transposed_step(carry, load)

    last_row = jnp.maximum(num_rows - 1, 0)
    init = _Carry(
        row=num_rows - 1,
        point=point_at(last_row, load(last_row), ct_y, last_output),
        ct_y=ct_y,
        ct_memo=ct_memo,
        leaves=[jnp.zeros_like(all_leaves[index]) for index in wanted.leaves],
        last_output=last_output,
        t0=zero_time if want_time else None,
        t1=zero_time if want_time else None,
        ts=jnp.zeros_like(ts) if wanted.ts and ts is not None else None,
    )
    final = jax.lax.while_loop(
        lambda carry: carry.row >= 0, one_step if every == 1 else one_segment, init
    )

    totals = final.leaves
    ct_y0, ct_t0, ct_t1 = final.ct_y, final.t0, final.t1
    if integrator.carries_memo:
        more = integrator.pull_start(
            field, wanted.leaves, first_start, first_end, safe_y, final.ct_memo
        )
        if more is not None:
            totals = [a + b for a, b in zip(totals, more.leaves, strict=True)]
            ct_y0 = ct_y0 + jnp.where(has_steps, more.y0, 0)
            if ct_t0 is not None and ct_t1 is not None:
                assert more.t0 is not None
                assert more.t1 is not None
                ct_t0 = ct_t0 + jnp.where(has_steps, more.t0, 0)
                # The first step ends at an interior time of the mesh unless it is the only one.
                only = succeeded & (inputs.num_steps == 1)
                ct_t1 = ct_t1 + jnp.where(only, more.t1, 0)
    leaf_cotangents: list[Leaf | None] = [None] * len(leaves)
    for index, total in zip(wanted.leaves, totals, strict=True):
        lifted = flags[index] and not is_lane[index]
        leaf_cotangents[index] = total.sum(-1) if lifted else total
    turn = lambda ct, want: direction * ct if want and ct is not None else None
    cotangents = Cotangents(
        ct_y0 if wanted.y0 else None,
        turn(ct_t0, wanted.t0),
        turn(ct_t1, wanted.t1),
        turn(final.ts, wanted.ts),
    )
    return cotangents, None, leaf_cotangents
