"""States stored along the mesh for the backward pass."""

from typing import Any, TypeAlias

import jax.numpy as jnp
import jax.tree_util as jtu

from .._custom_types import LaneCount, LaneFlag, Leaf, PyTree

Checkpoints: TypeAlias = PyTree[Any]
"""The states `(y, memo)` of all lanes before steps 0, `every`, ..., on a new first axis."""


def empty_checkpoints(state: PyTree, rows: int, every: int) -> Checkpoints:
    """Room for a mesh of `rows` steps."""
    count = -(-rows // every)
    return jtu.tree_map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), state)


def save_checkpoint(
    checkpoints: Checkpoints, state: PyTree, row: LaneCount, taken: LaneFlag, every: int
) -> Checkpoints:
    """Stores the state before step `row` of each lane, if that step is taken and a multiple."""

    def save(buffer: Leaf, leaf: Leaf) -> Leaf:
        index = jnp.where(taken & (row % every == 0), row // every, buffer.shape[0])
        lanes = jnp.arange(index.shape[0])
        value = jnp.moveaxis(leaf, -1, 0)
        position = (index, *[slice(None)] * (leaf.ndim - 1), lanes)
        return buffer.at[position].set(value, mode="drop", unique_indices=True)

    return jtu.tree_map(save, checkpoints, state)


def load_checkpoint(checkpoints: Checkpoints, segment: Leaf) -> PyTree:
    """The state of all lanes at the start of a segment."""
    return jtu.tree_map(lambda buffer: buffer[segment], checkpoints)
