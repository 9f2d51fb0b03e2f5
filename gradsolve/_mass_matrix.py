"""Mass matrices: constant matrices `M` in `M dy/dt = f(t, y)`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, Literal

from ._array_leaves import array_leaves
from ._checks import is_concrete
from ._custom_types import Array, PyTree
from ._ensemble.layout import StateLayout
from ._in_axes import one_lane_shape
from ._system import ODESystem


def mass_matrix(system: PyTree, axes: Sequence[int | None], layout: StateLayout) -> Any:
    """The mass matrix of a system as known numbers of the state's dtype, or `None`.

    `axes` are those of the system's leaves.

    **Raises:**

    `ValueError` if it is not a finite square matrix of the state's size, or not constant.
    """
    if not defines_mass_matrix(system):
        return None
    arrays, array_axes, rebuild = array_leaves(system, axes)
    structs = [
        jax.ShapeDtypeStruct(one_lane_shape(leaf, axis), leaf.dtype)
        for leaf, axis in zip(arrays, array_axes, strict=True)
    ]

    def matrix(arrays: list[Array]) -> Any:
        value = rebuild(arrays).mass_matrix
        return None if value is None else jnp.asarray(value, layout.dtype)

    closed, struct = jax.make_jaxpr(matrix, return_shape=True)(structs)
    if struct is None:
        return None
    name = f"`{type(system).__name__}.mass_matrix`"
    if struct.shape != (layout.dim, layout.dim):
        raise ValueError(
            f"{name} must have the shape {(layout.dim, layout.dim)}, one row and one column for "
            f"each number of the state, got {struct.shape}."
        )
    if _depends_on_inputs(closed.jaxpr) or not is_concrete(closed.consts):
        raise ValueError(
            f"{name} must be constant, and it depends on parameters of the system or on traced "
            "values. Divide the equations by what varies, or make it a NumPy array."
        )
    with jax.ensure_compile_time_eval():
        zeros = [jnp.zeros(s.shape, s.dtype) for s in structs]
        values = np.asarray(eval_jaxpr(closed.jaxpr, closed.consts, *zeros)[0])
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite, got {values}.")
    return values


def defines_mass_matrix(system: PyTree) -> bool:
    """Whether the class of a system overrides `mass_matrix`."""
    return getattr(type(system), "mass_matrix", None) is not ODESystem.mass_matrix


def _depends_on_inputs(jaxpr: Jaxpr) -> bool:
    touched = set(jaxpr.invars)
    for eqn in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in touched for atom in eqn.invars):
            touched.update(eqn.outvars)
    return any(not isinstance(atom, Literal) and atom in touched for atom in jaxpr.outvars)
