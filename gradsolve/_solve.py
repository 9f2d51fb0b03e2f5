"""`solve`: check, flatten, run, report."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ._adjoint import DiscreteAdjoint
from ._algebraic import check_consistent
from ._arguments import SolveArrays, solve_arrays
from ._backends import AbstractBackend, AbstractRunner, Auto
from ._capacity import solve_growing
from ._checks import check_system, check_values, is_concrete, state_layout
from ._choice import choose_backend
from ._controllers import AbstractController, PIDController
from ._core import Arguments, Request, SolveOutput, run_solve
from ._custom_types import Array, ArrayLike, Float, PyTree, validates_input
from ._ensemble.layout import StateLayout
from ._in_axes import InAxes, resolve_axes
from ._integrators import AbstractIntegrator, FromDiffrax, Rodas5P, Tsit5
from ._mass_matrix import defines_mass_matrix, mass_matrix
from ._solve_checks import check_choices, check_first_step, check_step_to, raise_if_failed
from ._system import ODESystem
from ._trajectory import Stats, Trajectory

_DEFAULT_CONTROLLER = PIDController(rtol=1e-6, atol=1e-9)
_DEFAULT_ADJOINT = DiscreteAdjoint()
_DEFAULT_BACKEND = Auto()


@validates_input
def solve(
    system: ODESystem,
    y0: PyTree,
    *,
    t0: Float[ArrayLike, "*#lanes"],
    t1: Float[ArrayLike, "*#lanes"],
    ts: Float[ArrayLike, "*lanes_and_times"] | None = None,
    integrator: AbstractIntegrator | None = None,
    controller: AbstractController = _DEFAULT_CONTROLLER,
    dt0: Float[ArrayLike, "*#lanes"] | None = None,
    in_axes: InAxes | None = None,
    max_steps: int = 4096,
    adjoint: DiscreteAdjoint = _DEFAULT_ADJOINT,
    backend: AbstractBackend = _DEFAULT_BACKEND,
    throw: bool = True,
) -> Trajectory:
    """Solves `dy/dt = system.vector_field(t, y)` for one trajectory or an ensemble.

    With a `mass_matrix` the system is `M dy/dt = system.vector_field(t, y)`.

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
    - `integrator`: the method of one step; `None` is `Tsit5()`, or `Rodas5P()` for a system that
        defines a `mass_matrix`. Nothing finds out whether a system is stiff.
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
    integrator = default_integrator(system) if integrator is None else integrator
    check_choices(integrator, controller, adjoint, backend, dt0, max_steps)
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
    y0, arrays, layout, lanes = prepare(arguments, in_axes)
    axes = arrays.axes
    check_values(arrays.t0, arrays.t1, arrays.ts, system, y0, check_states=throw)
    check_first_step(dt0, layout.dtype)
    check_step_to(arrays.controller, arrays.t0, arrays.t1)

    mass = mass_matrix(system, axes.system, layout)
    if mass is not None and throw:
        check_consistent(mass, system, y0, arrays, layout, lanes)
    if isinstance(integrator, FromDiffrax):
        per_lane = any(axis is not None for axis in axes.controller)
        integrator = integrator.with_tolerances(arrays.controller, per_lane)

    request = Request(layout, axes, lanes, adjoint, max_steps, max_steps)
    chosen, report = choose_backend(backend, request, system, y0, integrator, arrays.controller)
    call = eqx.Partial(
        _run,
        Arguments(system, y0, arrays.t0, arrays.t1, arrays.ts),
        arrays.dt0,
        arrays.controller,
        integrator,
        chosen,
    )
    inputs = (system, y0, arrays.t0, arrays.t1, arrays.ts, arrays.dt0, arrays.controller)
    out = solve_growing(call, request) if is_concrete(inputs) else call(request)
    trajectory = Trajectory(
        ys=out.ys,
        ts=arrays.ts,
        t0=arrays.t0,
        t1=arrays.t1,
        mesh=out.mesh,
        result=out.result,
        stats=Stats(out.num_steps, out.num_accepted, out.num_rejected),
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
    if throw and is_concrete(out) and out.summary[2]:
        raise_if_failed(trajectory, out.status)
    return trajectory


def default_integrator(system: PyTree) -> AbstractIntegrator:
    """What `integrator=None` means."""
    return Rodas5P() if defines_mass_matrix(system) else Tsit5()


class Prepared(NamedTuple):
    """The arguments as arrays of the state's dtype, and how they lie."""

    y0: PyTree
    arrays: SolveArrays
    layout: StateLayout
    lanes: int


@validates_input
def prepare(arguments: dict[str, PyTree], in_axes: InAxes | None) -> Prepared:
    """Checks structures, shapes and dtypes of the arguments that `in_axes` names; converts them.

    **Raises:**

    `ValueError` for the first that is wrong.
    """
    axes, lanes = resolve_axes(in_axes, arguments)
    layout = state_layout(arguments["y0"], axes.y0)
    with jax.ensure_compile_time_eval():
        y0 = jtu.tree_map(lambda leaf: jnp.asarray(leaf, layout.dtype), arguments["y0"])
    check_system(arguments["system"], layout)
    return Prepared(y0, solve_arrays(arguments, axes, layout), layout, lanes)


def _run(
    arguments: Arguments,
    dt0: Array | None,
    controller: AbstractController,
    integrator: AbstractIntegrator,
    backend: AbstractRunner,
    request: Request,
) -> SolveOutput:
    return run_solve(request, arguments, dt0, controller, integrator, backend)
