"""Primitives that move entries and compute nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from .._arrays import Operand, known, together
from .._build import checked_dtype
from .._errors import Refused
from .._registry import AbstractContext, existing, lowers, refuse_unless


@lowers(lax.reshape_p)
def _reshape(
    context: AbstractContext, x: Operand, *, new_sizes: Any, dimensions: Any, sharding: Any
) -> Operand:
    refuse_unless("dimensions", dimensions, None)
    return x.moved(lambda entries: entries.reshape(new_sizes))


@lowers(lax.squeeze_p)
def _squeeze(context: AbstractContext, x: Operand, *, dimensions: Sequence[Any]) -> Operand:
    return x.moved(lambda entries: entries.squeeze(tuple(dimensions)))


@lowers(*existing("expand_dims"))
def _expand_dims(context: AbstractContext, x: Operand, *, dimensions: Sequence[Any]) -> Operand:
    return x.moved(lambda entries: np.expand_dims(entries, tuple(dimensions)))


@lowers(lax.broadcast_in_dim_p)
def _broadcast_in_dim(
    context: AbstractContext,
    x: Operand,
    *dynamic: Operand,
    shape: Sequence[Any],
    broadcast_dimensions: Sequence[Any],
    sharding: Any,
) -> Operand:
    if dynamic:
        raise Refused("has no C++ lowering with a computed shape")
    aligned = [1] * len(shape)
    for size, dimension in zip(x.shape, broadcast_dimensions, strict=True):
        aligned[dimension] = size
    return x.moved(lambda entries: np.broadcast_to(entries.reshape(aligned), tuple(shape)))


@lowers(lax.transpose_p)
def _transpose(context: AbstractContext, x: Operand, *, permutation: Sequence[Any]) -> Operand:
    return x.moved(lambda entries: entries.transpose(permutation))


@lowers(lax.rev_p)
def _rev(context: AbstractContext, x: Operand, *, dimensions: Sequence[Any]) -> Operand:
    return x.moved(lambda entries: np.flip(entries, tuple(dimensions)))


@lowers(lax.slice_p)
def _slice(
    context: AbstractContext,
    x: Operand,
    *,
    start_indices: Sequence[Any],
    limit_indices: Sequence[Any],
    strides: Sequence[Any] | None,
) -> Operand:
    steps = strides or (1,) * len(x.shape)
    window = tuple(
        slice(*bounds) for bounds in zip(start_indices, limit_indices, steps, strict=True)
    )
    return x.moved(lambda entries: entries[window])


@lowers(lax.concatenate_p)
def _concatenate(context: AbstractContext, *operands: Operand, dimension: Any) -> Operand:
    return together(context.builder, operands, lambda parts: np.concatenate(parts, axis=dimension))


@lowers(*existing("stack"))
def _stack(context: AbstractContext, *operands: Operand, axis: Any) -> Operand:
    return together(context.builder, operands, lambda parts: np.stack(parts, axis=axis))


@lowers(*existing("unstack"))
def _unstack(context: AbstractContext, x: Operand, *, axis: Any) -> list[Operand]:
    count = x.shape[axis]
    return [x.moved(lambda entries, i=i: np.take(entries, i, axis=axis)) for i in range(count)]


@lowers(*existing("tile"))
def _tile(context: AbstractContext, x: Operand, *, reps: Sequence[Any]) -> Operand:
    return x.moved(lambda entries: np.tile(entries, tuple(reps)))


@lowers(*existing("split"))
def _split(
    context: AbstractContext, x: Operand, *, sizes: Sequence[Any], axis: Any
) -> list[Operand]:
    ends = np.cumsum(sizes)
    return [
        x.moved(lambda entries, i=i: np.split(entries, ends[:-1], axis=axis)[i])
        for i in range(len(sizes))
    ]


@lowers(lax.pad_p)
def _pad(context: AbstractContext, x: Operand, padding: Operand, *, padding_config: Any) -> Operand:
    def padded(parts: Sequence[np.ndarray]) -> np.ndarray:
        entries, fill = parts
        shape = [
            low + high + size + max(size - 1, 0) * interior
            for size, (low, high, interior) in zip(entries.shape, padding_config, strict=True)
        ]
        # Negative padding cuts: the entries go to a larger array, of which a window is taken.
        wide = [
            max(low, 0) + max(high, 0) + size + max(size - 1, 0) * interior
            for size, (low, high, interior) in zip(entries.shape, padding_config, strict=True)
        ]
        out = np.empty(wide, dtype=entries.dtype)
        out[...] = fill[()]
        inside = tuple(
            slice(max(low, 0), max(low, 0) + max((size - 1) * (interior + 1) + 1, 0), interior + 1)
            for size, (low, _, interior) in zip(entries.shape, padding_config, strict=True)
        )
        if entries.size:
            out[inside] = entries
        window = tuple(
            slice(max(-low, 0), max(-low, 0) + length)
            for length, (low, _, _) in zip(shape, padding_config, strict=True)
        )
        return out[window]

    return together(context.builder, (x, padding), padded)


@lowers(lax.iota_p)
def _iota(
    context: AbstractContext, *, dtype: Any, shape: Sequence[Any], dimension: Any, sharding: Any
) -> Operand:
    numbers = np.arange(shape[dimension]).astype(checked_dtype(dtype))
    aligned = [1] * len(shape)
    aligned[dimension] = shape[dimension]
    return known(np.broadcast_to(numbers.reshape(aligned), tuple(shape)))


@lowers(*existing("empty2"))
def _empty(context: AbstractContext, *, dtype: Any, memory_space: Any) -> Operand:
    # Stands for residuals that the branch not taken would have left; nobody reads them.
    return known(np.zeros((), checked_dtype(dtype)))
