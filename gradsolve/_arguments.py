"""The arguments of `solve` as arrays of the state's dtype."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ._controllers import AbstractController
from ._custom_types import Array, PyTree
from ._ensemble.layout import StateLayout
from ._in_axes import Axes


class SolveArrays(eqx.Module):
    """Times, first step and controller as arrays of the state's dtype, ensemble axis first."""

    t0: Array
    t1: Array
    ts: Array | None
    dt0: Array | None
    controller: AbstractController
    axes: Axes


def solve_arrays(arguments: dict[str, PyTree], axes: Axes, layout: StateLayout) -> SolveArrays:
    """Converts, moves ensemble axes to the front and binds the controller to the state.

    Raises `ValueError` for times that are not numbers or of the wrong shape.
    """
    changes: dict[str, Any] = {}

    def time(name: str, ndim: int) -> Array | None:
        value = arguments[name]
        if value is None:
            return None
        if not eqx.is_array_like(value) and not isinstance(value, list | tuple):
            raise ValueError(f"`{name}` must be a number or an array, got {value!r}.")
        # Constants stay constants inside a surrounding `jit`, so that they can be checked; and what
        # is on the host is converted there, since a device takes as long as for a small ensemble.
        with jax.ensure_compile_time_eval():
            array = np.asarray(value) if _on_host(value) else jnp.asarray(value)
        if array.dtype.kind not in "iuf" and not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"`{name}` must be real numbers, got the dtype {array.dtype}.")
        axis = getattr(axes, name)[0]
        with jax.ensure_compile_time_eval(), np.errstate(over="ignore"):
            array = jnp.asarray(array.astype(layout.dtype))
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
    return SolveArrays(t0, t1, ts, dt0, controller, dataclasses.replace(axes, **changes))


def _on_host(value: Any) -> bool:
    # JAX refuses masked arrays by a sentence of its own.
    kinds = bool | int | float | complex | np.generic | np.ndarray
    return isinstance(value, kinds) and not isinstance(value, np.ma.MaskedArray)


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
        [
            leaf if axis is None else jnp.asarray(leaf)
            for leaf, axis in zip(leaves, axes, strict=True)
        ],
    )
    in_axes = jtu.tree_unflatten(treedef, list(axes))
    bound = eqx.filter_vmap(lambda c: c.bind(layout), in_axes=(in_axes,))(batched)
    return bound, (0,) * len(jtu.tree_leaves(eqx.filter(bound, eqx.is_array)))
