"""Fixed-mesh replay: exactly the recorded steps, row by row."""

from typing import Any, NamedTuple

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
    SharedOrLaneTime,
    SharedOrLaneTimes,
)
from .._ensemble.program import Program
from .._step_control import forward_times
from .checkpoints import Checkpoints, empty_checkpoints, save_checkpoint
from .lanes import one_per_lane
from .outputs import write_outputs
from .record import isolate


class ReplayInputs(NamedTuple):
    """Per-lane inputs of a replay. `times` are the interior mesh times; the ends are `t0`, `t1`."""

    y0: LaneState
    t0: SharedOrLaneTime
    t1: SharedOrLaneTime
    ts: SharedOrLaneTimes | None
    times: MeshTimes
    num_steps: LaneCount
    status: LaneCount


class Replayed(NamedTuple):
    """Per-lane results of a replay."""

    y1: LaneState
    ys: OutputStates | None
    checkpoints: Checkpoints | None


class Rows(NamedTuple):
    """The mesh of every lane in forward time, read row by row."""

    t0: LaneTime
    t1: LaneTime
    end: LaneTime  # where the last recorded step ends
    times: MeshTimes
    num_steps: LaneCount
    direction: LaneTime

    def step(self, row: Leaf) -> tuple[LaneTime, LaneTime, LaneFlag]:
        """Start and end of step `row` of every lane, and which lanes take it."""
        start = jnp.where(row == 0, self.t0, self._interior(row))
        start = jnp.where(row >= self.num_steps, self.end, start)
        end = jnp.where(row + 1 >= self.num_steps, self.end, self._interior(row + 1))
        return start, end, row < self.num_steps

    def _interior(self, row: Leaf) -> LaneTime:
        row = jnp.minimum(row, self.times.shape[0] - 1)
        return self.direction * self.times[row]


def mesh_rows(
    direction: LaneTime,
    t0: LaneTime,
    t1: LaneTime,
    times: MeshTimes,
    num_steps: LaneCount,
    status: LaneCount,
) -> Rows:
    """Puts `t0` and `t1` at the ends of the mesh, so that the ends move with them.

    A lane that failed keeps the last time it reached as its end.
    """
    lanes = jnp.arange(num_steps.shape[0])
    reached = direction * times[num_steps, lanes]
    end = jnp.where(status == codes.SUCCESSFUL, t1, jnp.where(num_steps == 0, t0, reached))
    return Rows(t0, t1, end, times, num_steps, direction)


def replay(
    program: Program,
    store_checkpoints: bool,
    is_lane: tuple[bool, ...],
    leaves: list[Leaf],
    inputs: ReplayInputs,
) -> tuple[Replayed, None, list[Leaf | None]]:
    """Takes the recorded steps."""
    inputs = one_per_lane(inputs)
    integrator = program.integrator
    y0 = inputs.y0
    direction, t0, t1, ts = forward_times(inputs.t0, inputs.t1, inputs.ts)
    field = program.field(leaves, is_lane, direction)
    rows = mesh_rows(direction, t0, t1, inputs.times, inputs.num_steps, inputs.status)
    num_rows = jnp.max(inputs.num_steps)

    first = rows.step(jnp.zeros((), jnp.int32))
    memo = integrator.start(field, first[0], first[1], y0)
    ys = None if ts is None else jnp.full((ts.shape[0], *y0.shape), jnp.nan, y0.dtype)
    checkpoints, every = None, 1
    if store_checkpoints:
        state = (y0, memo if integrator.carries_memo else None)
        capacity = inputs.times.shape[0] - 1
        checkpoints, every = empty_checkpoints(state, capacity, program.adjoint)

    def body(carry: Any) -> Any:
        row, (start, end, taken), y, memo, next_output, ys, checkpoints = carry
        step = isolate(integrator.step(field, *isolate((start, end, y, memo))))
        if checkpoints is not None:
            state = (y, memo if integrator.carries_memo else None)
            lane_row = jnp.broadcast_to(row, taken.shape)
            checkpoints = save_checkpoint(checkpoints, state, lane_row, taken, every)
        if ts is not None:
            next_output, ys = write_outputs(
                integrator, field, taken, start, end, step, ts, next_output, ys
            )
        keep = lambda new, old: jnp.where(taken, new, old)
        memo = jtu.tree_map(keep, step.memo, memo)
        # The times of the next row are read here, not where they are used: XLA would repeat the
        # reading in every operation of the step.
        row = row + 1
        return row, rows.step(row), keep(step.y1, y), memo, next_output, ys, checkpoints

    init = (
        jnp.zeros((), jnp.int32),
        first,
        y0,
        memo,
        jnp.zeros(t0.shape, jnp.int32),
        ys,
        checkpoints,
    )
    final = jax.lax.while_loop(lambda carry: carry[0] < num_rows, body, init)
    _, _, y, _, _, ys, checkpoints = final
    y1 = jnp.where(inputs.status == codes.SUCCESSFUL, y, jnp.nan)
    return Replayed(y1, ys, checkpoints), None, [None] * len(leaves)
