"""The two differentiable maps of the library: solve and replay.

The derivative of both is the same discrete adjoint: the derivative of the map
`(system, y0, ts, t0, t1) -> ys` that takes exactly the recorded steps; interior mesh times are
constants, the first and last move with t0 and t1.
"""

from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax.tree_util as jtu

from ._backends import AbstractRunner
from ._custom_types import (
    LaneCount,
    LaneFlag,
    LaneState,
    Leaf,
    MeshTimes,
    OutputStates,
    SharedOrLaneTime,
    SharedOrLaneTimes,
)
from ._ensemble.batching import MadeBefore, num_lanes
from ._ensemble.program import Program
from ._xla.adjoint import AdjointInputs, Wanted
from ._xla.record import RecordInputs
from ._xla.replay import ReplayInputs


class MapInputs(NamedTuple):
    """What the maps can be differentiated by. `field_leaves` are the program's, see `Program`."""

    field_leaves: list[Leaf]
    y0: LaneState
    t0: SharedOrLaneTime
    t1: SharedOrLaneTime
    ts: SharedOrLaneTimes | None


class Solved(NamedTuple):
    """Flat results of a solve."""

    y1: LaneState
    ys: OutputStates | None
    times: MeshTimes
    num_accepted: LaneCount
    num_rejected: LaneCount
    status: LaneCount
    unfinished: LaneFlag


class _Recorded(NamedTuple):
    """What the backward pass needs beside the inputs."""

    times: MeshTimes
    num_steps: LaneCount
    status: LaneCount
    checkpoints: Any


def _record(
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    controller_leaves: list[Leaf],
    dt0: SharedOrLaneTime | None,
    store_checkpoints: bool,
) -> tuple[Solved, Any]:
    leaves = [*inputs.field_leaves, *controller_leaves]
    record_inputs = RecordInputs(inputs.y0, inputs.t0, inputs.t1, inputs.ts, dt0)
    out = backend.record(program, store_checkpoints, is_lane, leaves, record_inputs)
    return Solved(*out[:-1]), out.checkpoints


@eqx.filter_custom_vjp
def solve_map(
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    controller_leaves: list[Leaf],
    dt0: SharedOrLaneTime | None,
) -> Solved:
    """Solves adaptively; differentiable along the mesh that it records."""
    return _record(inputs, program, backend, is_lane, controller_leaves, dt0, False)[0]


@solve_map.def_fwd
def _solve_fwd(
    perturbed: Any,
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    controller_leaves: list[Leaf],
    dt0: SharedOrLaneTime | None,
) -> tuple[Solved, _Recorded]:
    del perturbed
    inputs = _first_order(inputs)
    out, checkpoints = _record(inputs, program, backend, is_lane, controller_leaves, dt0, True)
    return out, _Recorded(out.times, out.num_accepted, out.status, checkpoints)


@solve_map.def_bwd
def _solve_bwd(
    residuals: _Recorded,
    ct_out: Any,
    perturbed: Any,
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    controller_leaves: list[Leaf],
    dt0: SharedOrLaneTime | None,
) -> MapInputs:
    del dt0
    return _pull_back(
        residuals, ct_out, perturbed, inputs, program, backend, is_lane, controller_leaves
    )


@eqx.filter_custom_vjp
def replay_map(
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    times: MeshTimes,
    num_steps: LaneCount,
    status: LaneCount,
) -> tuple[LaneState, OutputStates | None]:
    """Takes the recorded steps: the end states and the outputs."""
    replay_inputs = ReplayInputs(*inputs[1:], times, num_steps, status)
    out = backend.replay(program, False, is_lane, inputs.field_leaves, replay_inputs)
    return out.y1, out.ys


@replay_map.def_fwd
def _replay_fwd(
    perturbed: Any,
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    times: MeshTimes,
    num_steps: LaneCount,
    status: LaneCount,
) -> tuple[Any, _Recorded]:
    del perturbed
    inputs = _first_order(inputs)
    replay_inputs = ReplayInputs(*inputs[1:], times, num_steps, status)
    out = backend.replay(program, True, is_lane, inputs.field_leaves, replay_inputs)
    return (out.y1, out.ys), _Recorded(times, num_steps, status, out.checkpoints)


@replay_map.def_bwd
def _replay_bwd(
    residuals: _Recorded,
    ct_out: Any,
    perturbed: Any,
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    times: MeshTimes,
    num_steps: LaneCount,
    status: LaneCount,
) -> MapInputs:
    del times, num_steps, status
    return _pull_back(residuals, ct_out, perturbed, inputs, program, backend, is_lane, [])


def _first_order(values: Any) -> Any:
    """The same values; differentiating them says what is not supported, and what to do."""
    return eqxi.nondifferentiable(
        values,
        msg="Second derivatives of a solve or a replay are not supported. Differentiate once with "
        "`jax.grad`, or use a Gauss-Newton approximation built from `jax.jacrev`.",
    )


def _pull_back(
    recorded: _Recorded,
    ct_out: Any,
    perturbed: Any,
    inputs: MapInputs,
    program: Program,
    backend: AbstractRunner,
    is_lane: tuple[bool, ...],
    other_leaves: list[Leaf],
) -> MapInputs:
    """The discrete adjoint, for exactly the inputs that are being differentiated."""
    recorded, ct_out, inputs = _first_order((recorded, ct_out, inputs))
    ct_y1, ct_ys = ct_out[0], ct_out[1]
    no_cotangents = jtu.tree_map(
        lambda _: None, MapInputs(*eqx.filter(inputs, eqx.is_inexact_array))
    )
    if ct_y1 is None and ct_ys is None:
        return no_cotangents
    leaves = [*inputs.field_leaves, *other_leaves]
    wanted = Wanted(
        leaves=tuple(i for i, flag in enumerate(perturbed.field_leaves) if flag),
        y0=bool(perturbed.y0),
        t0=bool(perturbed.t0),
        t1=bool(perturbed.t1),
        ts=bool(perturbed.ts),
    )
    adjoint_inputs = AdjointInputs(
        *inputs[1:],
        recorded.times,
        recorded.num_steps,
        recorded.status,
        MadeBefore(recorded.checkpoints, num_lanes(inputs.y0)),
        ct_y1,
        ct_ys,
    )
    cotangents, ct_leaves = backend.adjoint(program, wanted, is_lane, leaves, adjoint_inputs)
    # None for an input that is not differentiated.
    of_inputs = [_as_shared(ct, like) for ct, like in zip(cotangents, inputs[1:], strict=True)]
    return MapInputs._make((ct_leaves[: len(inputs.field_leaves)], *of_inputs))


def _as_shared(cotangent: Leaf | None, like: Leaf | None) -> Leaf | None:
    """Sums the trajectories' cotangents of what they share."""
    if cotangent is None or like is None or cotangent.shape == like.shape:
        return cotangent
    return cotangent.sum(-1, keepdims=True)
