"""States stored along the mesh for the backward pass."""

from typing import Any, TypeAlias

import jax.numpy as jnp
import jax.tree_util as jtu

from .._adjoint import DiscreteAdjoint
from .._custom_types import LaneCount, LaneFlag, Leaf, PyTree
from .._ensemble.batching import MadeBefore
from .._memory import choose_checkpoint_every

Checkpoints: TypeAlias = PyTree[Any]
"""The states `(y, memo)` of all lanes before steps 0, `every`, ..., on a new first axis.

Those of a fused kernel are `SavedStates` of `_fused/jobs.py`. `y` comes first.
"""


def empty_checkpoints(
    state: PyTree, rows: int, options: DiscreteAdjoint
) -> tuple[Checkpoints, int]:
    """Room for a mesh of `rows` steps, and the number of steps between two checkpoints.

    Decided here, where the number of lanes is that of the whole batch and the state is complete.
    """
    bytes_per_row = sum(leaf.size * leaf.dtype.itemsize for leaf in jtu.tree_leaves(state))
    count, every = checkpoint_count(rows, bytes_per_row, options)
    empty = jtu.tree_map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), state)
    return empty, every


def checkpoint_count(rows: int, bytes_per_row: int, options: DiscreteAdjoint) -> tuple[int, int]:
    """How many checkpoints a mesh of `rows` steps has, and the steps between two of them."""
    every = choose_checkpoint_every(
        rows, bytes_per_row, options.checkpoint_every, options.memory_limit
    )
    return -(-rows // every), every


def checkpoint_spacing(states: MadeBefore, rows: int, options: DiscreteAdjoint) -> int:
    """The number of steps between two checkpoints, as `empty_checkpoints` chose it.

    Its choices are powers of two, and the smallest of those with a given number of checkpoints.
    `states` are the checkpoints without anything else that a kernel may have kept.

    **Raises:**

    `ValueError` if so many trajectories as have checkpoints must have had fewer of them: JAX makes
    a batch of a compiled function, and then tells the second of two calls in it the shape that
    the result of the first one had without a batch.
    """
    if options.checkpoint_every is not None:
        return options.checkpoint_every
    leaves = jtu.tree_leaves(states.value)
    count, lanes = leaves[0].shape[0], leaves[0].shape[-1]
    per_row = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // count
    limited, every = checkpoint_count(rows, per_row // lanes * states.lanes, options)
    if count > limited:
        raise ValueError(
            f"`jax.vmap` makes a batch of {states.lanes} trajectories of a gradient that was "
            f"compiled with {count} checkpoints for each, of which "
            f"`DiscreteAdjoint(memory_limit={options.memory_limit})` allows {limited}. Compile the "
            "whole batch, as in `jax.jit(jax.vmap(jax.grad(loss)))`, or set "
            f"`checkpoint_every={every}`."
        )
    every = 1
    while -(-rows // every) > count:
        every *= 2
    return every


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
