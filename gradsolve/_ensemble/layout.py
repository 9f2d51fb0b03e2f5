"""Between the user's state pytree and the flat state of the core."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._custom_types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """Structure, shapes and dtype of one trajectory's state; hashable, never a pytree node."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any

    @property
    def dim(self) -> int:
        """Number of components of the flat state."""
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, y: PyTree) -> Array:
        """The state of one trajectory as a vector of `dim` numbers."""
        leaves = [jnp.ravel(leaf).astype(self.dtype) for leaf in jtu.tree_leaves(y)]
        return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)

    def unflatten(self, flat: Array) -> PyTree:
        """The inverse of `flatten`; the components are the last axis, leading axes are kept."""
        leaves = []
        start = 0
        for shape in self.shapes:
            size = math.prod(shape)
            part = flat[..., start : start + size]
            leaves.append(part.reshape(*flat.shape[:-1], *shape))
            start += size
        return jtu.tree_unflatten(self.treedef, leaves)

    def structs(self) -> PyTree:
        """The state as a pytree of `jax.ShapeDtypeStruct`."""
        leaves = [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.shapes]
        return jtu.tree_unflatten(self.treedef, leaves)
