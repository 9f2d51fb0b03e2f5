"""`jax.vmap` of an ensemble computation is a larger ensemble computation.

Batching a while loop the ordinary way would turn its scalar predicate into a vector one and copy
every buffer in every iteration. Here a new batch axis is folded into the ensemble axis instead, so
that `vmap(solve)`, nested to any depth, runs as one loop over more trajectories.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._custom_types import Leaf, PyTree


class MadeBefore(eqx.Module):
    """What an earlier call made for the trajectories of this one, and how many it then had.

    Every entry of a batch may share what was made once, such as cotangents of the same solve: those
    entries do not count.
    """

    value: PyTree
    lanes: int = eqx.field(static=True)


Run = Callable[[tuple[bool, ...], list[Leaf], PyTree], tuple[PyTree, PyTree, list[Leaf | None]]]
"""`(is_lane, leaves, lanes) -> (lane_outputs, shared_outputs, leaf_outputs)`.

`lanes` and `lane_outputs` have the ensemble as last axis; of `lanes` all but the first may have a
last axis of size one instead, and are then shared. `leaves` have it where `is_lane` says so.
`shared_outputs` do not depend on the lanes one by one (a count of rows). `leaf_outputs` belong to
the leaves (their cotangents): with the ensemble axis for a lane leaf, already summed over the
ensemble for a shared one, `None` where not asked for.
"""


def _fold(leaf: Leaf, batched: bool, size: int) -> Leaf:
    """`(size, ..., n)` or `(..., n)` to `(..., size * n)`."""
    if batched:
        leaf = jnp.moveaxis(leaf, 0, -2)
    else:
        leaf = jnp.broadcast_to(leaf[..., None, :], (*leaf.shape[:-1], size, leaf.shape[-1]))
    return leaf.reshape(*leaf.shape[:-2], size * leaf.shape[-1])


def _fold_lanes(leaf: Leaf, batched: bool, size: int, lanes: int) -> Leaf:
    """The same for what an ensemble of several may share; what is not batched stays shared."""
    if leaf.shape[-1] == lanes:
        return _fold(leaf, batched, size)
    return _fold(jnp.broadcast_to(leaf, (*leaf.shape[:-1], lanes)), True, size) if batched else leaf


def _unfold(leaf: Leaf, size: int) -> Leaf:
    """`(..., size * n)` to `(size, ..., n)`."""
    leaf = leaf.reshape(*leaf.shape[:-1], size, leaf.shape[-1] // size)
    return jnp.moveaxis(leaf, -2, 0)


def _spread(leaf: Leaf, batched: bool, size: int, lanes: int) -> Leaf:
    """A shared leaf `(size, ...)` or `(...)` as a lane leaf `(..., size * lanes)`."""
    leaf = jnp.moveaxis(leaf, 0, -1) if batched else leaf[..., None]
    leaf = jnp.broadcast_to(leaf[..., None], (*leaf.shape[:-1], size, lanes))
    return leaf.reshape(*leaf.shape[:-2], size * lanes)


def num_lanes(lanes: PyTree) -> int:
    """The size of the ensemble axis."""
    return jtu.tree_leaves(lanes)[0].shape[-1]


def ensemble_call(
    run: Run,
    is_lane: Sequence[bool],
    leaves: Sequence[Leaf],
    lanes: PyTree,
    *,
    has_leaf_outputs: bool,
) -> tuple[PyTree, PyTree, list[Leaf | None]]:
    """Calls `run` so that `jax.vmap` of the call folds the new axis into the ensemble axis.

    `run` must not close over traced values. `has_leaf_outputs` says that `run` returns cotangents
    of the leaves: a leaf shared by one ensemble has one cotangent per batch entry, so all leaves
    then get an ensemble axis before folding, and their cotangents are summed afterwards.
    """
    is_lane = tuple(is_lane)

    @jax.custom_batching.custom_vmap
    def call(leaves: list[Leaf], lanes: PyTree) -> Any:
        return run(is_lane, leaves, lanes)

    @call.def_vmap
    def rule(axis_size: int, in_batched: Any, leaves: list[Leaf], lanes: PyTree) -> Any:
        leaves_batched, lanes_batched = in_batched
        n = num_lanes(lanes)

        def fold(leaf: Any, batched: Any) -> Any:
            if not isinstance(leaf, MadeBefore):
                return _fold_lanes(leaf, batched, axis_size, n)
            made = leaf.lanes * (axis_size if any(jtu.tree_leaves(batched)) else 1)
            return MadeBefore(jtu.tree_map(fold, leaf.value, batched.value), made)

        is_leaf = lambda node: isinstance(node, MadeBefore)
        new_lanes = jtu.tree_map(fold, lanes, lanes_batched, is_leaf=is_leaf)
        new_leaves = []
        new_is_lane = []
        for leaf, lane, batched in zip(leaves, is_lane, leaves_batched, strict=True):
            if lane:
                new_leaves.append(_fold(leaf, batched, axis_size))
            elif batched or has_leaf_outputs:
                new_leaves.append(_spread(leaf, batched, axis_size, n))
            else:
                new_leaves.append(leaf)
            new_is_lane.append(lane or batched or has_leaf_outputs)
        lane_out, shared_out, leaf_out = ensemble_call(
            run, new_is_lane, new_leaves, new_lanes, has_leaf_outputs=has_leaf_outputs
        )
        lane_out = jtu.tree_map(lambda x: _unfold(x, axis_size), lane_out)
        leaf_out = [
            None
            if cotangent is None
            else (_unfold(cotangent, axis_size) if lane else _unfold(cotangent, axis_size).sum(-1))
            for cotangent, lane in zip(leaf_out, is_lane, strict=True)
        ]
        batched = (
            jtu.tree_map(lambda _: True, lane_out),
            jtu.tree_map(lambda _: False, shared_out),
            jtu.tree_map(lambda _: True, leaf_out),
        )
        return (lane_out, shared_out, leaf_out), batched

    return call(list(leaves), lanes)
