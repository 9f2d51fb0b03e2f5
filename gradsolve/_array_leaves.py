"""A system as the list of its arrays, and back."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.tree_util as jtu

from ._custom_types import Leaf, PyTree


class ArrayLeaves(NamedTuple):
    """The leaves of a system that are arrays, their ensemble axes, and the way back.

    `rebuild` puts the system together from arrays in the same order, such as traced ones.
    """

    arrays: list[Leaf]
    axes: list[int | None]
    rebuild: Callable[[Sequence[Leaf]], PyTree]


def array_leaves(system: PyTree, axes: Sequence[int | None]) -> ArrayLeaves:
    """Takes a system apart; `axes` has one entry for each of its leaves."""
    leaves, treedef = jtu.tree_flatten(system)
    is_array = [eqx.is_array(leaf) for leaf in leaves]
    static = [None if flag else leaf for leaf, flag in zip(leaves, is_array, strict=True)]

    def rebuild(arrays: Sequence[Leaf]) -> PyTree:
        remaining = iter(arrays)
        full = [next(remaining) if flag else s for flag, s in zip(is_array, static, strict=True)]
        return jtu.tree_unflatten(treedef, full)

    return ArrayLeaves(
        [leaf for leaf, flag in zip(leaves, is_array, strict=True) if flag],
        [axis for axis, flag in zip(axes, is_array, strict=True) if flag],
        rebuild,
    )
