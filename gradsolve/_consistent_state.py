"""The initial state nearest to a given one that satisfies the algebraic equations."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optimistix

from ._algebraic import for_each_trajectory
from ._controllers import ConstantStep
from ._custom_types import Array, ArrayLike, Float, PyTree, validates_input
from ._in_axes import InAxes
from ._mass_matrix import mass_matrix
from ._null_spaces import algebraic_equations
from ._solve import prepare
from ._system import ODESystem


@validates_input
def consistent_state(
    system: ODESystem,
    y0: PyTree,
    *,
    t0: Float[ArrayLike, "*#lanes"],
    in_axes: InAxes | None = None,
) -> PyTree:
    """An initial state that satisfies the algebraic equations of a system with a mass matrix.

    The algebraic part of the state (the null space of `mass_matrix`) is found by Newton's method,
    starting from `y0`; the differential part stays. The derivative by `y0` and by the system is
    that of the solution.

    **Arguments:**

    - `system`: the model; its `mass_matrix` is singular.
    - `y0`: the state of which the differential part is kept; the algebraic part is a first guess.
    - `t0`: the time.
    - `in_axes`: as for `solve`, of which `system`, `y0` and `t0` count; with an ensemble the result
        has the ensemble axis first.

    **Returns:**

    The state, structured as `y0`.

    **Raises:**

    `ValueError` for wrong input, and `equinox.EquinoxRuntimeError` if Newton's method does not
    converge.
    """
    arguments = {
        "system": system,
        "y0": y0,
        "t0": t0,
        "t1": 0.0,  # of no consequence, like the controller
        "ts": None,
        "dt0": None,
        "controller": ConstantStep(1.0),
    }
    if isinstance(in_axes, InAxes):
        in_axes = dataclasses.replace(in_axes, t1=None, ts=None, dt0=None, controller=None)
    y0, arrays, layout, lanes = prepare(arguments, in_axes)
    mass = mass_matrix(system, arrays.axes.system, layout)
    algebraic = None if mass is None else algebraic_equations(mass)
    if algebraic is None:
        raise ValueError(
            f"`{type(system).__name__}` has no algebraic equations: every state is consistent."
            " Leave `consistent_state` out, or give the system a singular `mass_matrix`."
        )
    left, right = algebraic
    tolerance = float(jnp.finfo(layout.dtype).eps) ** 0.75
    newton = optimistix.Newton(rtol=tolerance, atol=tolerance)

    def solved(t0: Array, y: Array, field: Callable[[Array], Array]) -> Array:
        # In units of the state, as the tolerance is: equations may be in any.
        at_start = jax.lax.stop_gradient(left.T @ jax.jacfwd(field)(y) @ right)

        def residual(change: Array, _: None) -> Array:
            return jnp.linalg.solve(at_start, left.T @ field(y + right @ change))

        start = jnp.zeros(right.shape[1], layout.dtype)
        return y + right @ optimistix.root_find(residual, newton, start).value

    flat = for_each_trajectory(solved, system, y0, arrays.t0, arrays.axes, layout, lanes)
    if not arrays.axes.ensemble:
        flat = flat[0]
    return layout.unflatten(flat)
