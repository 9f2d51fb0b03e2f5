"""Which axes of the inputs run over the ensemble."""

import dataclasses
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from ._custom_types import Leaf, PyTree

AxisSpec: TypeAlias = PyTree[Any]
"""`None`, an integer, a callable from a leaf to one of these, or a pytree of these."""


@dataclasses.dataclass(frozen=True)
class InAxes:
    """The ensemble axes of the arguments of `solve`, as `equinox.filter_vmap` understands them.

    Each entry is `None` (shared by all trajectories), an integer (the axis of every array in that
    argument), a callable from a leaf to one of these (`equinox.if_array(0)`), or a pytree of these
    that is a prefix of the argument.

    **Arguments:**

    - `system`, `y0`, `t0`, `t1`, `ts`, `dt0`, `controller`: axes of the argument of that name.
    """

    system: AxisSpec = None
    y0: AxisSpec = None
    t0: AxisSpec = None
    t1: AxisSpec = None
    ts: AxisSpec = None
    dt0: AxisSpec = None
    controller: AxisSpec = None


@dataclasses.dataclass(frozen=True)
class Axes:
    """Resolved axes, one entry per leaf of each argument; hashable."""

    system: tuple[int | None, ...]
    y0: tuple[int | None, ...]
    t0: tuple[int | None, ...]
    t1: tuple[int | None, ...]
    ts: tuple[int | None, ...]
    dt0: tuple[int | None, ...]
    controller: tuple[int | None, ...]
    ensemble: bool


_NAMES = ("system", "y0", "t0", "t1", "ts", "dt0", "controller")


def _resolve(name: str, spec: AxisSpec, tree: PyTree) -> tuple["_Axis", ...]:
    def of_subtree(axis: Any, below: PyTree) -> PyTree:
        if eqx.is_array(axis) and jnp.ndim(axis) == 0:
            # `Lorenz(None, 0, None)` as a prefix: the system has made an array of the 0.
            axis = int(axis)
        if axis is None or isinstance(axis, int):
            return jtu.tree_map(lambda leaf: _checked(name, axis, leaf), below)
        if callable(axis):
            return jtu.tree_map(lambda leaf: _checked(name, axis(leaf), leaf), below)
        raise ValueError(
            f"`in_axes.{name}` may consist of None, integers and callables, got {axis!r}."
        )

    try:
        resolved = jtu.tree_map(of_subtree, spec, tree, is_leaf=lambda x: x is None)
    except ValueError as error:
        if "in_axes" in str(error):
            raise
        raise ValueError(
            f"`in_axes.{name}` must be a prefix of the argument `{name}`: {error}"
        ) from None
    return tuple(jtu.tree_leaves(resolved))


@dataclasses.dataclass(frozen=True)
class _Axis:
    """An axis as a pytree leaf, since `None` is not one."""

    value: int | None


def _checked(name: str, axis: Any, leaf: Any) -> _Axis:
    if axis is None:
        return _Axis(None)
    if not eqx.is_array_like(leaf) or jnp.ndim(leaf) == 0:
        raise ValueError(
            f"`in_axes.{name}` gives the ensemble axis {axis} to {leaf!r}, which has no axes. "
            "Use `equinox.if_array(0)`, or a pytree of axes with None there."
        )
    if not -jnp.ndim(leaf) <= axis < jnp.ndim(leaf):
        raise ValueError(
            f"`in_axes.{name}` gives the ensemble axis {axis} to an array of shape "
            f"{jnp.shape(leaf)}; choose an axis that it has."
        )
    return _Axis(axis % jnp.ndim(leaf))


def resolve_axes(in_axes: Any, arguments: dict[str, PyTree]) -> tuple[Axes, int]:
    """The axes of every leaf, and the number of trajectories.

    **Raises:**

    `ValueError` if an axis does not exist, if nothing is selected, or if sizes disagree.
    """
    if in_axes is None:
        nothing = {name: (None,) * len(jtu.tree_leaves(arguments[name])) for name in _NAMES}
        return Axes(**nothing, ensemble=False), 1
    if not isinstance(in_axes, InAxes):
        raise ValueError(
            f"`in_axes` must be a `gradsolve.InAxes` or None, got {in_axes!r}. Write for example "
            "`InAxes(system=equinox.if_array(0), y0=0)`."
        )
    resolved = {}
    sizes: dict[str, int] = {}
    for name in _NAMES:
        axes = tuple(axis.value for axis in _resolve(name, getattr(in_axes, name), arguments[name]))
        resolved[name] = axes
        for leaf, axis in zip(jtu.tree_leaves(arguments[name]), axes, strict=True):
            if axis is not None:
                size = jnp.shape(leaf)[axis]
                where = f"`{name}` (shape {jnp.shape(leaf)}, axis {axis})"
                sizes.setdefault(where, size)
    if not sizes:
        raise ValueError(
            f"`in_axes={in_axes}` selects no array: nothing runs over the ensemble. Select at "
            "least one axis, or pass `in_axes=None` for a single trajectory."
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} in {where}" for where, size in sizes.items())
        raise ValueError(f"The ensemble sizes selected by `in_axes` disagree: {listed}.")
    size = next(iter(sizes.values()))
    if size == 0:
        raise ValueError("The ensemble selected by `in_axes` is empty: its axis has size 0.")
    return Axes(**resolved, ensemble=True), size


def lane_last(leaf: Leaf, axis: int | None) -> Leaf:
    """Moves the ensemble axis of a leaf, if it has one, to the end."""
    return leaf if axis is None else jnp.moveaxis(leaf, axis, -1)


def one_lane_shape(leaf: Leaf, axis: int | None) -> tuple[int, ...]:
    """The shape of one trajectory's part of a leaf."""
    shape = jnp.shape(leaf)
    return shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
