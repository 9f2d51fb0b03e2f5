"""From checked arguments to flat arrays and back: what runs inside one compiled function."""

import collections
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from . import _results as codes
from ._adjoint import DiscreteAdjoint
from ._array_leaves import array_leaves
from ._backends import AbstractRunner
from ._checks import check_field_output
from ._controllers import AbstractController
from ._custom_types import Array, Leaf, PyTree
from ._discrete_map import MapInputs, replay_map, solve_map
from ._ensemble.field import FieldJaxpr
from ._ensemble.layout import StateLayout
from ._ensemble.program import Program
from ._in_axes import Axes, lane_last, one_lane_shape
from ._integrators import AbstractIntegrator, AbstractRosenbrock
from ._mass_matrix import mass_matrix
from ._mesh import Mesh
from ._results import RESULTS

TRACE_COUNTS: collections.Counter[str] = collections.Counter()
"""How often each core function has been traced, which is how often it has been compiled."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Everything about a solve that is not an array; hashable."""

    layout: StateLayout
    axes: Axes
    lanes: int
    adjoint: DiscreteAdjoint
    max_steps: int
    capacity: int


class Arguments(NamedTuple):
    """The user's arrays, with the ensemble axes where the user has them."""

    system: PyTree
    y0: PyTree
    t0: Array
    t1: Array
    ts: Array | None


class SolveOutput(NamedTuple):
    """Results in the user's shapes."""

    ys: PyTree
    mesh: Mesh
    num_accepted: Array
    num_rejected: Array
    num_steps: Array
    status: Array
    result: Any
    summary: Any  # unfinished?, the most accepted steps, failed?: what the host needs to know


def _field(
    request: Request, system: PyTree, integrator: AbstractIntegrator
) -> tuple[FieldJaxpr, list[str], list[Leaf], list[bool]]:
    """The field of one trajectory as a jaxpr; its leaves: names, arrays, which have lanes.

    Arrays that the vector field closes over become leaves too, so that they may be traced values
    of a surrounding transformation and are differentiated if that asks for it.
    """
    layout = request.layout
    named_leaves = jtu.tree_flatten_with_path(system)[0]
    arrays, axes, rebuild = array_leaves(system, request.axes.system)

    def flat_field(arrays: list[Leaf], t: Array, y: Array) -> Array:
        dy = rebuild(arrays).vector_field(t, layout.unflatten(y))
        check_field_output(layout, dy)
        return layout.flatten(dy)

    structs = [
        jax.ShapeDtypeStruct(one_lane_shape(leaf, axis), leaf.dtype)
        for leaf, axis in zip(arrays, axes, strict=True)
    ]
    t_struct = jax.ShapeDtypeStruct((), layout.dtype)
    y_struct = jax.ShapeDtypeStruct((layout.dim,), layout.dtype)
    closed = jax.make_jaxpr(flat_field)(structs, t_struct, y_struct)
    captured = [jnp.asarray(const) for const in closed.consts]
    mass = mass_matrix(system, request.axes.system, layout)
    if mass is not None and not isinstance(integrator, AbstractRosenbrock):
        raise ValueError(
            f"`{type(integrator).__name__}` solves dy/dt = f(t, y), and `{type(system).__name__}`"
            " has a mass matrix. Use a Rosenbrock method, such as `integrator=gradsolve.Rodas5P()`."
        )
    field = FieldJaxpr(closed.jaxpr, len(arrays), integrator.evaluations, mass)
    lane_leaves = [lane_last(leaf, axis) for leaf, axis in zip(arrays, axes, strict=True)]
    is_lane = [axis is not None for axis in axes]
    names = [jtu.keystr(path) for path, leaf in named_leaves if eqx.is_array(leaf)]
    names += [f"captured{i}" for i in range(len(captured))]
    return field, names, [*lane_leaves, *captured], [*is_lane, *[False] * len(captured)]


def _lanes_of(leaf: Array, axis: int | None, lanes: int) -> Array:
    """A leaf with the ensemble axis last, broadcast if it is shared."""
    if axis is not None:
        return lane_last(leaf, axis)
    return jnp.broadcast_to(leaf[..., None], (*leaf.shape, lanes))


def _shared_or_lanes(times: Array, axis: int | None) -> Array:
    """Times with the ensemble axis last, which has the size one if all trajectories share them."""
    return times[..., None] if axis is None else lane_last(times, axis)


def _flat_state(request: Request, y0: PyTree) -> Array:
    layout, lanes = request.layout, request.lanes
    leaves = [
        _lanes_of(jnp.asarray(leaf), axis, lanes).reshape(-1, lanes)
        for leaf, axis in zip(jtu.tree_leaves(y0), request.axes.y0, strict=True)
    ]
    return jnp.concatenate(leaves).astype(layout.dtype)


def _map_inputs(request: Request, arguments: Arguments, field_leaves: list[Leaf]) -> MapInputs:
    axes = request.axes
    return MapInputs(
        field_leaves,
        _flat_state(request, arguments.y0),
        _shared_or_lanes(arguments.t0, axes.t0[0]),
        _shared_or_lanes(arguments.t1, axes.t1[0]),
        None if arguments.ts is None else _shared_or_lanes(arguments.ts, axes.ts[0]),
    )


def _to_user(request: Request, y1: Array, ys: Array | None) -> PyTree:
    """States in the user's structure; the ensemble axis first, then output times."""
    flat = jnp.moveaxis(y1 if ys is None else ys, -1, 0)
    if not request.axes.ensemble:
        flat = flat[0]
    return request.layout.unflatten(flat)


def _per_trajectory(request: Request, value: Array) -> Array:
    return value if request.axes.ensemble else value[..., 0]


def _program(
    request: Request,
    field: FieldJaxpr,
    names: list[str],
    integrator: AbstractIntegrator,
    controller: AbstractController | None,
) -> tuple[Program, list[Leaf], list[bool]]:
    arrays, static = eqx.partition(controller, eqx.is_array)
    named_leaves, treedef = jtu.tree_flatten_with_path(arrays)
    leaves = [leaf for _, leaf in named_leaves]
    axes = request.axes.controller if controller is not None else ()
    leaves = [lane_last(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
    is_lane = [axis is not None for axis in axes]
    program = Program(
        dtype=request.layout.dtype,
        leaf_names=(*names, *[f"controller{jtu.keystr(path)}" for path, _ in named_leaves]),
        field_jaxpr=field,
        num_field_leaves=len(names),
        integrator=integrator,
        controller_static=static,
        controller_treedef=treedef,
        max_steps=request.max_steps,
        capacity=request.capacity,
        adjoint=request.adjoint,
    )
    return program, leaves, is_lane


def trace_program(
    request: Request,
    system: PyTree,
    integrator: AbstractIntegrator,
    controller: AbstractController | None,
) -> tuple[Program, list[jax.ShapeDtypeStruct]]:
    """The program without running anything, and the leaves of one trajectory."""
    traced: list[Any] = []

    def trace(system: PyTree, controller: AbstractController | None) -> None:
        field, names, field_leaves, field_is_lane = _field(request, system, integrator)
        program, leaves, is_lane = _program(request, field, names, integrator, controller)
        leaves, is_lane = [*field_leaves, *leaves], [*field_is_lane, *is_lane]
        structs = [
            jax.ShapeDtypeStruct(leaf.shape[:-1] if lane else leaf.shape, leaf.dtype)
            for leaf, lane in zip(leaves, is_lane, strict=True)
        ]
        traced.append((program, structs))

    eqx.filter_eval_shape(trace, system, controller)
    return traced[0]


@eqx.filter_jit
def run_solve(
    request: Request,
    arguments: Arguments,
    dt0: Array | None,
    controller: AbstractController,
    integrator: AbstractIntegrator,
    backend: AbstractRunner,
) -> SolveOutput:
    """Records a mesh of at most `request.capacity` steps; differentiable."""
    TRACE_COUNTS["solve"] += 1
    field, names, field_leaves, field_is_lane = _field(request, arguments.system, integrator)
    program, controller_leaves, controller_is_lane = _program(
        request, field, names, integrator, controller
    )
    inputs = _map_inputs(request, arguments, field_leaves)
    if dt0 is not None:
        dt0 = _shared_or_lanes(dt0, request.axes.dt0[0])
        dt0 = eqxi.nondifferentiable(dt0, name="`dt0`")
    controller_leaves = eqxi.nondifferentiable(controller_leaves, name="`controller`")
    is_lane = (*field_is_lane, *controller_is_lane)
    out = solve_map(inputs, program, backend, is_lane, controller_leaves, dt0)
    rows = jnp.arange(out.times.shape[0])[:, None]
    last = jnp.take_along_axis(out.times, out.num_accepted[None], axis=0)
    times = jnp.where(rows <= out.num_accepted, out.times, last)
    times = eqxi.nondifferentiable_backward(times, name="`mesh.times`")
    return SolveOutput(
        _to_user(request, out.y1, out.ys),
        Mesh(_per_trajectory(request, times), _per_trajectory(request, out.num_accepted)),
        _per_trajectory(request, out.num_accepted),
        _per_trajectory(request, out.num_rejected),
        _per_trajectory(request, out.num_accepted + out.num_rejected),
        _per_trajectory(request, out.status),
        _result(_per_trajectory(request, out.status)),
        jnp.stack(
            [
                jnp.any(out.unfinished).astype(jnp.int32),
                jnp.max(out.num_accepted),
                jnp.any(out.status != codes.SUCCESSFUL).astype(jnp.int32),
            ]
        ),
    )


def _result(status: Array) -> Any:
    """The `RESULTS` member behind each code."""

    def one(status: Array) -> Any:
        result = RESULTS.successful
        for code, member in enumerate(codes.MEMBERS):
            result = RESULTS.where(status == code, member, result)
        return result

    return one(status) if status.ndim == 0 else jax.vmap(one)(status)


@eqx.filter_jit
def run_replay(
    request: Request,
    arguments: Arguments,
    mesh: Mesh,
    status: Array,
    integrator: AbstractIntegrator,
    backend: AbstractRunner,
) -> PyTree:
    """Takes the steps of a mesh; differentiable."""
    TRACE_COUNTS["replay"] += 1
    return _replay(request, arguments, mesh, status, integrator, backend)


def _replay(
    request: Request,
    arguments: Arguments,
    mesh: Mesh,
    status: Array,
    integrator: AbstractIntegrator,
    backend: AbstractRunner,
) -> PyTree:
    field, names, field_leaves, field_is_lane = _field(request, arguments.system, integrator)
    times, num_steps = mesh.times, mesh.num_steps
    if not request.axes.ensemble:
        times, num_steps, status = times[:, None], num_steps[None], status[None]
    program, _, _ = _program(request, field, names, integrator, None)
    inputs = _map_inputs(request, arguments, field_leaves)
    times = jax.lax.stop_gradient(times)  # interior mesh times are constants
    y1, ys = replay_map(inputs, program, backend, tuple(field_is_lane), times, num_steps, status)
    return _to_user(request, y1, ys)


@eqx.filter_jit
def linearise_replay(
    names: tuple[str, ...],
    request: Request,
    arguments: Arguments,
    mesh: Mesh,
    status: Array,
    integrator: AbstractIntegrator,
    backend: AbstractRunner,
) -> tuple[PyTree, Any]:
    """A replay, and the function that pulls cotangents back to the arguments named.

    The same as `jax.vjp` of `run_replay`, but traced once: differentiating a compiled function from
    Python costs JAX some milliseconds in every call.
    """
    TRACE_COUNTS["gradient"] += 1
    chosen = {name: getattr(arguments, name) for name in names}
    moving, fixed = eqx.partition(chosen, eqx.is_inexact_array)

    def run(moving: dict[str, PyTree]) -> PyTree:
        moved = arguments._replace(**eqx.combine(moving, fixed))
        return _replay(request, moved, mesh, status, integrator, backend)

    return jax.vjp(run, moving)


@eqx.filter_jit
def pull_back(pullback: Any, ct_ys: PyTree) -> dict[str, PyTree]:
    """Applies the pullback of `linearise_replay`."""
    return pullback(ct_ys)[0]


@eqx.filter_jit
def trim_mesh(times: Array, rows: int) -> Array:
    """The first `rows` rows of a mesh."""
    return times[:rows]
