"""Small linear systems, one per lane."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._custom_types import Array, Int, LaneFlag, LaneMatrix, LaneState, Leaf

# Larger systems are solved in a compiled loop, smaller ones in straight-line code, which XLA fuses.
_UNROLLED = 8


def _repeat(
    count: int, body: Callable[[Leaf, Any], Any], state: Any, *, backwards: bool = False
) -> Any:
    """`body(k, state)` for `k` in `0 .. count - 1`, or the other way round."""
    if count <= _UNROLLED:
        for k in reversed(range(count)) if backwards else range(count):
            state = body(jnp.asarray(k, jnp.int32), state)
        return state
    if backwards:
        return jax.lax.fori_loop(0, count, lambda k, state: body(count - 1 - k, state), state)
    return jax.lax.fori_loop(0, count, body, state)


def _at(x: Array, k: Leaf, axis: int = 0) -> Array:
    return jax.lax.dynamic_index_in_dim(x, k, axis, keepdims=False)


class Factors(NamedTuple):
    """The decomposition `P A = L U` of one matrix per lane.

    - `lu`: `U` and, below its diagonal, `L` without its ones.
    - `order`, `places`: row `i` of `P A` is row `order[i]` of `A`, and the inverse of that.
    - `solved`: where the matrix is finite and not singular.
    """

    lu: LaneMatrix
    order: Int[Array, "dim lanes"]
    places: Int[Array, "dim lanes"]
    solved: LaneFlag

    def solve(self, right: LaneState) -> LaneState:
        """`A^-1 right`."""
        lu, rows = self.lu, _rows(right)

        def forwards(k: Leaf, x: LaneState) -> LaneState:
            return x - jnp.where(rows > k, _at(lu, k, 1), 0) * _at(x, k)

        def backwards(k: Leaf, x: LaneState) -> LaneState:
            column = _at(lu, k, 1)
            known = _at(x, k) / _at(column, k)
            return jnp.where(rows == k, known, x - jnp.where(rows < k, column, 0) * known)

        x = jnp.take_along_axis(right, self.order, axis=0)
        dim = right.shape[0]
        return _repeat(dim, backwards, _repeat(dim, forwards, x), backwards=True)

    def solve_transposed(self, right: LaneState) -> LaneState:
        """`A^-T right`."""
        lu, rows = self.lu, _rows(right)

        def forwards(k: Leaf, x: LaneState) -> LaneState:
            row = _at(lu, k)
            known = _at(x, k) / _at(row, k)
            return jnp.where(rows == k, known, x - jnp.where(rows > k, row, 0) * known)

        def backwards(k: Leaf, x: LaneState) -> LaneState:
            return x - jnp.where(rows < k, _at(lu, k), 0) * _at(x, k)

        dim = right.shape[0]
        x = _repeat(dim, backwards, _repeat(dim, forwards, right), backwards=True)
        return jnp.take_along_axis(x, self.places, axis=0)


def factorise(matrix: LaneMatrix) -> Factors:
    """Gaussian elimination with the largest entry of each column as its pivot."""
    lu, _, order = jax.lax.linalg.lu(jnp.moveaxis(matrix, -1, 0))
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    solved = jnp.all(jnp.isfinite(lu), axis=(-2, -1)) & jnp.all(diagonal != 0, axis=-1)
    return Factors(jnp.moveaxis(lu, 0, -1), order.T, jnp.argsort(order, axis=-1).T, solved)


def _rows(x: LaneState) -> Array:
    return jnp.arange(x.shape[0], dtype=jnp.int32)[:, None]
