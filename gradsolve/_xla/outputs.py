"""Output times inside a step, and the transpose of writing them."""

from typing import Any

import jax
import jax.numpy as jnp

from .._custom_types import (
    Array,
    Bool,
    LaneCount,
    LaneFlag,
    LaneState,
    LaneTime,
    OutputStates,
    OutputTimes,
)
from .._ensemble.field import EnsembleField
from .._integrators import AbstractIntegrator, AbstractTransposedStep, OutputCotangents, Step


def _pick(ts: OutputTimes, index: LaneCount) -> LaneTime:
    index = jnp.clip(index, 0, ts.shape[0] - 1)
    return jnp.take_along_axis(ts, index[None], axis=0)[0]


def write_outputs(
    integrator: AbstractIntegrator,
    field: EnsembleField,
    taken: LaneFlag,
    t0: LaneTime,
    t1: LaneTime,
    step: Step,
    ts: OutputTimes,
    next_output: LaneCount,
    ys: OutputStates,
) -> tuple[LaneCount, OutputStates]:
    """Writes the outputs that fall into a step and moves each lane's output counter.

    An output time equal to the end of the step gets the step's end state itself.
    """
    lanes = jnp.arange(t0.shape[0])

    def is_due(next_output: LaneCount) -> LaneFlag:
        return taken & (next_output < ts.shape[0]) & (_pick(ts, next_output) <= t1)

    dense = integrator.complete_dense(field, t0, t1, step, jnp.any(is_due(next_output)))

    def body(carry: tuple[LaneCount, OutputStates]) -> tuple[LaneCount, OutputStates]:
        next_output, ys = carry
        due = is_due(next_output)
        t = jnp.where(due, _pick(ts, next_output), t1)
        y = jnp.where(t == t1, step.y1, integrator.interpolate(dense, t0, t1, t))
        row = jnp.where(due, next_output, ts.shape[0])  # past the end: not written
        ys = ys.at[row, :, lanes].set(y.T, mode="drop", unique_indices=True)
        return next_output + due.astype(jnp.int32), ys

    return jax.lax.while_loop(lambda carry: jnp.any(is_due(carry[0])), body, (next_output, ys))


def owns_output(
    taken: LaneFlag,
    first: Bool[Array, ""],
    t0: LaneTime,
    ts: OutputTimes,
    last_output: LaneCount,
) -> LaneFlag:
    """Whether the step that starts at `t0` contains output number `last_output`.

    The first step also owns an output at its very start.
    """
    return taken & (last_output >= 0) & ((_pick(ts, last_output) > t0) | first)


def pull_outputs(
    transposed: AbstractTransposedStep,
    taken: LaneFlag,
    first: Bool[Array, ""],
    t0: LaneTime,
    t1: LaneTime,
    ts: OutputTimes,
    last_output: LaneCount,
    ct_ys: OutputStates,
    ct_y1: LaneState,
    ct_ts: OutputTimes | None,
) -> tuple[OutputCotangents, LaneCount, LaneState, OutputTimes | None, LaneFlag]:
    """The transpose of `write_outputs`: walks the outputs of this step from the last to the first.

    The counter `last_output` is the latest output not yet pulled back, -1 for none. The last result
    says which lanes received a cotangent that is not zero.
    """
    lanes = jnp.arange(t0.shape[0])

    def is_due(last_output: LaneCount) -> LaneFlag:
        return owns_output(taken, first, t0, ts, last_output)

    def body(carry: Any) -> Any:
        so_far, last_output, ct_y1, ct_ts, touched = carry
        due = is_due(last_output)
        t = jnp.where(due, _pick(ts, last_output), t1)
        row = jnp.clip(last_output, 0, ts.shape[0] - 1)
        ct = jnp.where(due, ct_ys[row, :, lanes].T, 0)
        at_end = t == t1
        # Outputs at the end of the step are the end state: their cotangents join its cotangent.
        ct_y1 = ct_y1 + jnp.where(at_end, ct, 0)
        so_far, ct_t = transposed.pull_output(so_far, t, ct, at_end)
        if ct_ts is not None:
            write = jnp.where(due, row, ts.shape[0])
            ct_ts = ct_ts.at[write, lanes].set(ct_t, mode="drop", unique_indices=True)
        touched = touched | jnp.any(ct != 0, axis=0)
        return so_far, last_output - due.astype(jnp.int32), ct_y1, ct_ts, touched

    return jax.lax.while_loop(
        lambda carry: jnp.any(is_due(carry[1])),
        body,
        (transposed.zero_outputs(), last_output, ct_y1, ct_ts, jnp.zeros_like(taken)),
    )
