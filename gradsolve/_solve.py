"""`solve`: check, flatten, run, report."""

import collections
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from . import _results as codes
from ._adjoint import DiscreteAdjoint
from ._backends import AbstractBackend, Auto
from ._checks import check_system, check_values, is_concrete, state_layout
from ._controllers import AbstractController, ConstantStep, PIDController, StepTo
from ._core import Arguments, Request, SolveOutput, run_solve, trim_mesh
from ._custom_types import Array, ArrayLike, Float, PyTree, validates_input
from ._ensemble.layout import StateLayout
from ._in_axes import Axes, InAxes, resolve_axes
from ._integrators import AbstractIntegrator, FromDiffrax, Tsit5
from ._mesh import Mesh
from ._results import RESULTS, SolveError
from ._system import ODESystem
from ._trajectory import Stats, Trajectory

_DEFAULT_INTEGRATOR = Tsit5()
_DEFAULT_CONTROLLER = PIDController(rtol=1e-6, atol=1e-9)
_DEFAULT_ADJOINT = DiscreteAdjoint()
_DEFAULT_BACKEND = Auto()

# The first guess of a mesh's capacity takes about this much memory; it grows by this factor.
_FIRST_MESH_BYTES = 2**24
_GROWTH = 8
# Up to this size rows are not worth saving.
_SMALL_MESH_BYTES = 2**20


@validates_input
def solve(
    system: ODESystem,
    y0: PyTree,
    *,
    t0: Float[ArrayLike, "*#lanes"],
    t1: Float[ArrayLike, "*#lanes"],
    ts: Float[ArrayLike, "*lanes_and_times"] | None = None,
    integrator: AbstractIntegrator = _DEFAULT_INTEGRATOR,
    controller: AbstractController = _DEFAULT_CONTROLLER,
    dt0: Float[ArrayLike, "*#lanes"] | None = None,
    in_axes: InAxes | None = None,
    max_steps: int = 4096,
    adjoint: DiscreteAdjoint = _DEFAULT_ADJOINT,
    backend: AbstractBackend = _DEFAULT_BACKEND,
    throw: bool = True,
) -> Trajectory:
    """Solves `dy/dt = system.vector_field(t, y)` for one trajectory or an ensemble.

    Every trajectory of an ensemble has its own step size, its own clock and its own status. The
    accepted steps are recorded as a mesh, which the result can replay and differentiate. `solve`
    is a pure function of its arrays: it works under `jax.jit`, `jax.vmap`, `jax.grad` and their
    Equinox counterparts. Its derivative is that of the discrete map
    `(system, y0, ts, t0, t1) -> ys` that takes exactly the recorded steps; interior mesh times are
    constants, the first and last move with t0 and t1.

    **Arguments:**

    - `system`: the model.
    - `y0`: the state at `t0`, any pytree of arrays of one floating-point dtype. That dtype decides
        the precision: parameters must have it, times are converted to it.
    - `t0`, `t1`: start and end; `t1 < t0` integrates backwards.
    - `ts`: output times in `[t0, t1]`, sorted from `t0` to `t1`; `None` for the state at `t1` only.
        Rows of ragged output times are padded by `inf`; padded rows of `ys` are nan and carry no
        gradient.
    - `integrator`: the method of one step.
    - `controller`: chooses the steps.
    - `dt0`: length of the first step (positive, in units of `t`), for an adaptive controller;
        `None` estimates it from the vector field.
    - `in_axes`: which axes run over the ensemble; `None` for a single trajectory.
    - `max_steps`: the most steps a trajectory may attempt. When `solve` is traced or differentiated
        it is also the capacity of the mesh, so a smaller number saves memory there.
    - `adjoint`: how the gradient is computed, and with how much memory.
    - `backend`: where the computation runs.
    - `throw`: whether a failed trajectory raises an error. It cannot when traced; then, and with
        `throw=False`, see `Trajectory.result`. Rows of a failed trajectory are nan from the failure
        on and carry no gradient; other trajectories are not affected.

    **Returns:**

    A `Trajectory`.

    **Raises:**

    `ValueError` for wrong input, naming the value and the remedy; `SolveError` for failed
    trajectories.
    """
    _check_choices(integrator, controller, adjoint, backend, dt0, max_steps)
    if t1 is None or t0 is None:
        raise ValueError("`t0` and `t1` must both be given: the start and the end of the solve.")
    arguments = {
        "system": system,
        "y0": y0,
        "t0": t0,
        "t1": t1,
        "ts": ts,
        "dt0": dt0,
        "controller": controller,
    }
    axes, lanes = resolve_axes(in_axes, arguments)
    layout = state_layout(y0, axes.y0)
    check_system(system, layout)
    arrays = _arrays(arguments, axes, layout)
    axes = arrays.axes
    check_values(arrays.t0, arrays.t1, arrays.ts, system, y0, check_states=throw)
    _check_dt0(arrays.dt0)
    _check_step_to(controller, arrays.t0, arrays.t1)

    if isinstance(integrator, FromDiffrax):
        per_lane = any(axis is not None for axis in axes.controller)
        integrator = integrator.with_tolerances(arrays.controller, per_lane)

    chosen, report = backend.choose()
    call = eqx.Partial(
        _run,
        Arguments(system, y0, arrays.t0, arrays.t1, arrays.ts),
        arrays.dt0,
        arrays.controller,
        integrator,
        chosen,
    )
    request = Request(layout, axes, lanes, adjoint, max_steps, max_steps)
    inputs = (system, y0, arrays.t0, arrays.t1, arrays.ts, arrays.dt0, arrays.controller)
    if is_concrete(inputs):
        out = _solve_growing(call, request)
    else:
        out = call(request)
    result = _result(out.status)
    trajectory = Trajectory(
        ys=out.ys,
        ts=arrays.ts,
        t0=arrays.t0,
        t1=arrays.t1,
        mesh=out.mesh,
        result=result,
        stats=Stats(
            out.num_accepted + out.num_rejected, out.num_accepted, out.num_rejected
        ),
        system=system,
        y0=y0,
        backend=report,
        _integrator=integrator,
        _backend=chosen,
        _layout=layout,
        _axes=axes,
        _lanes=lanes,
        _adjoint=adjoint,
    )
    if throw and is_concrete(out):
        _raise_if_failed(trajectory, out.status)
    return trajectory


def _run(
    arguments: Arguments,
    dt0: Array | None,
    controller: AbstractController,
    integrator: AbstractIntegrator,
    backend: AbstractBackend,
    request: Request,
) -> SolveOutput:
    return run_solve(request, arguments, dt0, controller, integrator, backend)


_capacity_hints: collections.OrderedDict[Request, int] = collections.OrderedDict()


def _solve_growing(call: Any, request: Request) -> SolveOutput:
    """Runs with a small mesh first, again with a larger one if it was too small, then trims it.

    Compilation depends on the capacity, so capacities come from a short list. What sufficed for a
    request of the same static description last time is tried first.
    """
    itemsize = jnp.dtype(request.layout.dtype).itemsize
    first = _FIRST_MESH_BYTES // (request.lanes * itemsize)
    capacity = max(64, 1 << max(first, 1).bit_length() - 1)
    capacity = max(capacity, _capacity_hints.get(request, 0))
    while True:
        capacity = min(capacity, request.max_steps)
        sized = _with_capacity(request, capacity)
        out = call(sized)
        if not is_concrete(out):
            # The vector field closes over traced values: the size cannot depend on the result.
            return call(request)
        if not bool(out.unfinished):
            break
        capacity *= _GROWTH
    _capacity_hints[request] = capacity
    _capacity_hints.move_to_end(request)
    while len(_capacity_hints) > 256:
        _capacity_hints.popitem(last=False)
    steps = int(np.max(np.asarray(out.num_accepted)))
    bytes_per_row = (request.layout.dim + 1) * request.lanes * itemsize
    rows = mesh_rows_for(steps, capacity, bytes_per_row)
    return out._replace(mesh=Mesh(trim_mesh(out.mesh.times, rows), out.mesh.num_steps))


def _with_capacity(request: Request, capacity: int) -> Request:
    return dataclasses.replace(request, capacity=capacity)


def mesh_rows_for(steps: int, capacity: int, bytes_per_row: int) -> int:
    """Rows of a mesh of so many steps: `2**k + 1` or `3 * 2**(k - 1) + 1`, at least 9.

    Compiled code depends on the number, hence few sizes; and a mesh of little memory keeps all its
    rows, so that a fit of a few trajectories never meets another size.
    """
    if (capacity + 1) * bytes_per_row <= _SMALL_MESH_BYTES:
        return capacity + 1
    size = 8
    while size < steps:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, capacity) + 1


@eqx.filter_jit
def _result(status: Array) -> Any:
    def one(status: Array) -> Any:
        result = RESULTS.successful
        for code, member in enumerate(codes.MEMBERS):
            result = RESULTS.where(status == code, member, result)
        return result

    return one(status) if status.ndim == 0 else jax.vmap(one)(status)


class _Arrays(eqx.Module):
    """Times, first step and controller as arrays of the state's dtype, ensemble axis first."""

    t0: Array
    t1: Array
    ts: Array | None
    dt0: Array | None
    controller: AbstractController
    axes: Axes


def _arrays(arguments: dict[str, PyTree], axes: Axes, layout: StateLayout) -> _Arrays:
    changes: dict[str, Any] = {}

    def time(name: str, ndim: int) -> Array | None:
        value = arguments[name]
        if value is None:
            return None
        if not eqx.is_array_like(value) and not isinstance(value, list | tuple):
            raise ValueError(f"`{name}` must be a number or an array, got {value!r}.")
        # Constants stay constants inside a surrounding `jit`, so that they can be checked.
        with jax.ensure_compile_time_eval():
            array = jnp.asarray(value)
        if array.dtype == bool or jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise ValueError(f"`{name}` must be real numbers, got the dtype {array.dtype}.")
        axis = getattr(axes, name)[0]
        with jax.ensure_compile_time_eval():
            array = array.astype(layout.dtype)
            if axis is not None:
                array = jnp.moveaxis(array, axis, 0)
                changes[name] = (0,)
        wanted = ndim + (axis is not None)
        if array.ndim != wanted:
            shape = "(times,)" if ndim else "a single number"
            raise ValueError(
                f"`{name}` must be {shape} for each trajectory, got the shape {array.shape}"
                + (
                    f"; for one row per trajectory pass `in_axes=InAxes({name}=0, ...)`."
                    if axis is None
                    else " with the ensemble axis first."
                )
            )
        if ndim == 1 and array.shape[-1] == 0:
            raise ValueError(f"`{name}` is empty; pass `None` for the final state only.")
        return array

    t0, t1, ts, dt0 = time("t0", 0), time("t1", 0), time("ts", 1), time("dt0", 0)
    with jax.ensure_compile_time_eval():
        controller, controller_axes = _bind(arguments["controller"], axes.controller, layout)
    changes["controller"] = controller_axes
    assert t0 is not None
    assert t1 is not None
    return _Arrays(t0, t1, ts, dt0, controller, dataclasses.replace(axes, **changes))


def _bind(
    controller: AbstractController, axes: tuple[int | None, ...], layout: StateLayout
) -> tuple[AbstractController, tuple[int | None, ...]]:
    """The controller with its arrays as the core wants them, and their ensemble axes."""
    if all(axis is None for axis in axes):
        bound = controller.bind(layout)
        return bound, (None,) * len(jtu.tree_leaves(eqx.filter(bound, eqx.is_array)))
    leaves, treedef = jtu.tree_flatten(controller)
    batched = jtu.tree_unflatten(
        treedef,
        [leaf if axis is None else jnp.asarray(leaf) for leaf, axis in zip(leaves, axes, strict=True)],
    )
    in_axes = jtu.tree_unflatten(treedef, list(axes))
    bound = eqx.filter_vmap(lambda c: c.bind(layout), in_axes=(in_axes,))(batched)
    return bound, (0,) * len(jtu.tree_leaves(eqx.filter(bound, eqx.is_array)))


def _check_choices(
    integrator: Any, controller: Any, adjoint: Any, backend: Any, dt0: Any, max_steps: Any
) -> None:
    for name, value, kind, example in (
        ("integrator", integrator, AbstractIntegrator, "gradsolve.Tsit5()"),
        ("controller", controller, AbstractController, "gradsolve.PIDController(1e-6, 1e-9)"),
        ("adjoint", adjoint, DiscreteAdjoint, "gradsolve.DiscreteAdjoint()"),
        ("backend", backend, AbstractBackend, "gradsolve.Auto()"),
    ):
        if not isinstance(value, kind):
            hint = f"`{example}`"
            if name == "integrator":
                hint += "; a Diffrax solver goes into `gradsolve.FromDiffrax(...)`"
            raise ValueError(f"`{name}` must be an object such as {hint}, got {value!r}.")
    if not isinstance(max_steps, int | np.integer) or isinstance(max_steps, bool) or max_steps < 1:
        raise ValueError(f"`max_steps` must be a positive integer, got {max_steps!r}.")
    if controller.adaptive and integrator.error_order is None:
        raise ValueError(
            f"`{type(integrator).__name__}` has no error estimate, so the adaptive "
            f"`{type(controller).__name__}` cannot choose its steps. Use "
            "`controller=gradsolve.ConstantStep(dt)`, or an integrator with an error estimate such "
            "as `gradsolve.Tsit5()`."
        )
    if not controller.adaptive and dt0 is not None:
        what = "`dt`" if isinstance(controller, ConstantStep) else "`ts`"
        raise ValueError(
            f"`dt0` is for adaptive controllers; the steps of `{type(controller).__name__}` follow "
            f"from its {what}. Leave `dt0` out."
        )


def _check_dt0(dt0: Array | None) -> None:
    if dt0 is None or not is_concrete(dt0):
        return
    values = np.asarray(dt0)
    if not ((values > 0) & np.isfinite(values)).all():
        raise ValueError(
            f"`dt0` must be positive and finite (the direction follows from t0 and t1), got {dt0}."
        )


def _check_step_to(controller: AbstractController, t0: Array, t1: Array) -> None:
    if not isinstance(controller, StepTo) or not is_concrete((controller, t0, t1)):
        return
    ts = np.asarray(controller.ts).astype(t0.dtype)
    finite = np.where(np.isinf(ts), np.nan, ts)
    first = finite[..., 0]
    last = np.nanmax(finite, axis=-1) if (first == np.nanmin(finite, axis=-1)).all() else np.nanmin(finite, axis=-1)
    if not (np.all(first == np.asarray(t0)) and np.all(last == np.asarray(t1))):
        raise ValueError(
            f"`StepTo(ts=...)` must start at `t0` and end at `t1`: it runs from {first} to {last}, "
            f"but t0={t0} and t1={t1}."
        )


def _raise_if_failed(trajectory: Trajectory, status: Array) -> None:
    status = np.atleast_1d(jax.device_get(status))
    failed = np.flatnonzero(status != codes.SUCCESSFUL)
    if failed.size == 0:
        return
    index = int(failed[0])
    times, counts = trajectory.mesh.times, trajectory.mesh.num_steps
    if trajectory._axes.ensemble:
        reached = times[counts[index], index]
        who = (
            f"{failed.size} of {status.size} trajectories failed; the first is trajectory {index}"
        )
    else:
        reached = times[counts]
        who = "The trajectory failed"
    message = codes.MESSAGES[int(status[index])]
    raise SolveError(
        f"{who}, which reached t = {float(reached):.6g}: {message} Pass `throw=False` to get the "
        "results of the others and a status per trajectory."
    )
