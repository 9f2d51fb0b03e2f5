"""The algebraic equations of a system with a singular mass matrix."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ._arguments import SolveArrays
from ._array_leaves import array_leaves
from ._checks import is_concrete
from ._controllers import PIDController
from ._custom_types import Array, PyTree
from ._ensemble.layout import StateLayout
from ._in_axes import Axes, lane_last
from ._null_spaces import Algebraic, algebraic_equations


def for_each_trajectory(
    function: Callable[[Array, Array, Callable[[Array], Array]], Any],
    system: PyTree,
    y0: PyTree,
    t0: Array,
    axes: Axes,
    layout: StateLayout,
    lanes: int,
) -> Any:
    """`function(t0, y0, field)` of every trajectory, the state flat; the ensemble axis first."""
    arrays, array_axes, rebuild = array_leaves(system, axes.system)

    def one(arrays: list[Array], states: list[Array], t0: Array) -> Any:
        whole = rebuild(arrays)
        state = layout.flatten(jtu.tree_unflatten(jtu.tree_structure(y0), states))
        field = lambda y: layout.flatten(whole.vector_field(t0, layout.unflatten(y)))
        return function(t0, state, field)

    in_axes = (array_axes, list(axes.y0), axes.t0[0])
    run = jax.vmap(one, in_axes=in_axes, axis_size=lanes)
    return run(arrays, jtu.tree_leaves(y0), t0)


@eqx.filter_jit
def _newton_step(
    algebraic: Algebraic,
    system: PyTree,
    y0: PyTree,
    t0: Array,
    axes: Axes,
    layout: StateLayout,
    lanes: int,
) -> tuple[Array, Array]:
    """By how much a step of Newton's method would change each state, and the states."""
    left, right = algebraic

    def step(t0: Array, y: Array, field: Callable[[Array], Array]) -> tuple[Array, Array]:
        matrix = left.T @ jax.jacfwd(field)(y) @ right
        return right @ jnp.linalg.solve(matrix, -(left.T @ field(y))), y

    return for_each_trajectory(step, system, y0, t0, axes, layout, lanes)


def check_consistent(
    mass: np.ndarray,
    system: PyTree,
    y0: PyTree,
    arrays: SolveArrays,
    layout: StateLayout,
    lanes: int,
) -> None:
    """Raises `ValueError` for initial states that do not satisfy the algebraic equations.

    They do if a step of Newton's method would change them by less than the tolerances of an
    adaptive controller, or else by less than 1e-6. Traced values are not checked.
    """
    algebraic = algebraic_equations(mass)
    axes, controller = arrays.axes, arrays.controller
    if algebraic is None or not is_concrete((system, y0, arrays.t0, controller)):
        return
    change, y = _newton_step(algebraic, system, y0, arrays.t0, axes, layout, lanes)
    if not is_concrete(change):  # the field closes over traced values
        return
    if isinstance(controller, PIDController):
        allowed = np.asarray(_lanes_last(controller, axes).scale(y.T)).T
    else:
        allowed = 1e-6 * (1 + np.abs(y))
    change = np.asarray(change)
    if not np.isfinite(change).all():
        raise ValueError(
            "The algebraic equations (the rows that `mass_matrix` makes zero) cannot be solved for "
            "the algebraic part of `y0`: their derivative by it is singular there. Only systems of "
            "index 1 can be solved: differentiate the constraint by time until it can."
        )
    wrong = np.argwhere(np.abs(change) > allowed)
    if wrong.size:
        lane, component = (int(i) for i in wrong[0])
        where = f" of trajectory {lane}" if axes.ensemble else ""
        raise ValueError(
            f"`y0` does not satisfy the algebraic equations: number {component} of the state{where}"
            f" would have to change by {change[lane, component]:.3g}, which is more than the"
            " tolerance. `gradsolve.consistent_state(system, y0, t0=...)` computes a state that"
            " does."
        )


def _lanes_last(controller: PIDController, axes: Axes) -> PIDController:
    arrays, static = eqx.partition(controller, eqx.is_array)
    leaves, treedef = jtu.tree_flatten(arrays)
    moved = [
        jnp.asarray(leaf)[..., None] if axis is None else lane_last(leaf, axis)
        for leaf, axis in zip(leaves, axes.controller, strict=True)
    ]
    return eqx.combine(jtu.tree_unflatten(treedef, moved), static)
