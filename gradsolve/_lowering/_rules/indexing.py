"""Reading and writing at computed places."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .._arrays import MAX_SELECTED, Operand, known, read_window
from .._build import BOOL, Builder, checked_dtype
from .._errors import Refused
from .._ir import Op, Value, object_array
from .._registry import AbstractContext, existing, lowers
from .elementwise import collected
from .reductions import combination

_Mode = lax.GatherScatterMode


# ---- Windows ------------------------------------------------------------------------------------


def _clamped(
    b: Builder, starts: Sequence[Value], shape: Sequence[Any], sizes: Sequence[Any]
) -> list[Value]:
    """Starts for which the window lies inside."""
    return [
        b.clamp(start, 0, length - size)
        for start, length, size in zip(starts, shape, sizes, strict=True)
    ]


@lowers(lax.dynamic_slice_p)
def _dynamic_slice(
    context: AbstractContext, x: Operand, *starts: Operand, slice_sizes: Sequence[Any]
) -> Operand:
    b = context.builder
    places = _clamped(b, [start.value(b) for start in starts], x.shape, slice_sizes)
    return read_window(b, x, places, slice_sizes)


@lowers(lax.dynamic_update_slice_p)
def _dynamic_update_slice(
    context: AbstractContext, x: Operand, update: Operand, *starts: Operand
) -> Operand:
    b = context.builder
    places = _clamped(b, [start.value(b) for start in starts], x.shape, update.shape)
    values = np.array(x.values(b))
    _write(b, values, update.values(b), places, None, lambda old, new: new)
    return Operand(values, x.dtype)


def _write(
    b: Builder,
    values: Any,
    update: Any,
    starts: Sequence[Value],
    inside: Value | None,
    combine: Callable[[Value, Value], Value],
) -> None:
    """Combines a window with an update, in place. The place is known to be inside.

    Where `inside` is given and not set, nothing changes.
    """
    moving = [axis for axis, start in enumerate(starts) if not start.is_constant]
    if moving and values.size > MAX_SELECTED:
        raise Refused(
            f"writes to an array of {values.size} values at a computed place, which has a C++ "
            f"lowering up to {MAX_SELECTED} values"
        )
    ranges = [
        range(length - size + 1) if axis in moving else (int(starts[axis].data),)
        for axis, (length, size) in enumerate(zip(values.shape, update.shape, strict=True))
    ]
    old = values.copy()
    # Each possible place in turn; a written entry has the flag of its place.
    for corner in _product(ranges):
        here = inside
        for axis in moving:
            start = starts[axis]
            at = b.emit(Op.EQ, start, b.constant(corner[axis], start.dtype))
            here = at if here is None else b.emit(Op.AND, here, at)
        for index in np.ndindex(*update.shape):
            target = tuple(c + i for c, i in zip(corner, index, strict=True))
            after = combine(old[target], update[index])
            if here is not None:
                after = b.select(here, after, values[target])
            values[target] = after


def _product(ranges: Sequence[Any]) -> list[tuple[int, ...]]:
    corners: list[tuple[int, ...]] = [()]
    for entries in ranges:
        corners = [(*corner, entry) for corner in corners for entry in entries]
    return corners


# ---- Gather -------------------------------------------------------------------------------------


def _is_inside(
    b: Builder, starts: Sequence[Value], shape: Sequence[Any], sizes: Sequence[Any]
) -> Value:
    """Whether the window at these starts lies inside."""
    inside = b.constant(True, BOOL)
    for start, length, size in zip(starts, shape, sizes, strict=True):
        if start.dtype.kind == "i":
            low = b.emit(Op.LE, b.constant(0, start.dtype), start)
            inside = b.emit(Op.AND, inside, low)
        high = b.emit(Op.LE, start, b.constant(length - size, start.dtype))
        inside = b.emit(Op.AND, inside, high)
    return inside


@lowers(lax.gather_p)
def _gather(
    context: AbstractContext,
    x: Operand,
    indices: Operand,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[Any],
    unique_indices: bool,
    indices_are_sorted: bool,
    mode: Any,
    fill_value: Any,
) -> Operand:
    del unique_indices, indices_are_sorted
    b = context.builder
    output = context.outputs[0]
    dtype = checked_dtype(output.dtype)
    offset_dims = dimension_numbers.offset_dims
    batch_dims = [axis for axis in range(len(output.shape)) if axis not in offset_dims]
    dropped = (*dimension_numbers.collapsed_slice_dims, *dimension_numbers.operand_batching_dims)
    fills = _Mode.from_any(mode) == _Mode.FILL_OR_DROP
    windows: list[Operand] = []
    for place in np.ndindex(*indices.shape[:-1]):
        given = _starts(b, dimension_numbers, indices, place, len(x.shape))
        starts = _clamped(b, given, x.shape, slice_sizes)
        window = read_window(b, x, starts, slice_sizes)
        window = window.moved(lambda entries: entries.squeeze(tuple(dropped)))
        if fills:
            inside = _is_inside(b, given, x.shape, slice_sizes)
            if not (inside.is_constant and inside.data):
                fill = b.constant(_fill(fill_value, dtype), dtype)
                kept = [b.select(inside, value, fill) for value in window.values(b).flat]
                window = collected(kept, window.shape, dtype)
        windows.append(window)
    return _assembled(b, windows, output, batch_dims)


def _assembled(
    b: Builder, windows: list[Operand], output: Any, batch_dims: Sequence[Any]
) -> Operand:
    """The result of a gather: its windows, one per entry of the batch dimensions."""
    dtype = checked_dtype(output.dtype)
    if not windows:
        return known(np.zeros(output.shape, dtype))
    offset_dims = [axis for axis in range(len(output.shape)) if axis not in batch_dims]
    batch_shape = [output.shape[axis] for axis in batch_dims]
    order = np.argsort([*batch_dims, *offset_dims]) if output.shape else []

    def assemble(parts: list[np.ndarray]) -> np.ndarray:
        stacked = np.stack(parts).reshape((*batch_shape, *parts[0].shape))
        return stacked.transpose(order)

    first = windows[0]
    if first.leaf is not None and all(window.leaf == first.leaf for window in windows):
        return Operand(assemble([window.entries for window in windows]), dtype, first.leaf)
    return Operand(assemble([window.values(b) for window in windows]), dtype)


def _starts(
    b: Builder, numbers: Any, indices: Operand, place: tuple[int, ...], rank: int
) -> list[Value]:
    """Where the window of one batch entry begins, along each axis of the operand."""
    dtype = checked_dtype(indices.dtype)
    starts = [b.constant(0, dtype) for _ in range(rank)]
    axes = getattr(numbers, "start_index_map", None)
    if axes is None:
        axes = numbers.scatter_dims_to_operand_dims
    for component, axis in enumerate(axes):
        starts[axis] = indices.value(b, (*place, component))
    batching = getattr(numbers, "start_indices_batching_dims", None)
    if batching is None:
        batching = numbers.scatter_indices_batching_dims
    for axis, batch in zip(numbers.operand_batching_dims, batching, strict=True):
        starts[axis] = b.constant(place[batch], dtype)
    return starts


def _fill(fill_value: Any, dtype: np.dtype) -> Any:
    """What an entry outside reads, if it is not given."""
    if fill_value is not None:
        return fill_value
    if dtype == BOOL:
        return True
    if dtype.kind == "f":
        return np.nan
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


# ---- Scatter ------------------------------------------------------------------------------------


def _register_scatter(name: str, op: Op | None) -> None:
    @lowers(*existing(name))
    def rule(
        context: AbstractContext,
        x: Operand,
        indices: Operand,
        updates: Operand,
        *,
        dimension_numbers: Any,
        indices_are_sorted: bool,
        unique_indices: bool,
        mode: Any,
        update_jaxpr: Any,
        update_consts: Any,
    ) -> Operand:
        # The jaxpr says again what the name of the primitive says.
        del indices_are_sorted, unique_indices, update_jaxpr, update_consts
        b = context.builder
        replace: Callable[[Value, Value], Value] = lambda old, new: new
        combine = replace if op is None else combination(b, op, x.dtype)
        return _scatter(context, x, indices, updates, dimension_numbers, mode, combine)


for _name, _op in (
    ("scatter", None),
    ("scatter_add", Op.ADD),
    ("scatter_sub", Op.SUB),
    ("scatter_mul", Op.MUL),
    ("scatter_min", Op.MIN),
    ("scatter_max", Op.MAX),
):
    _register_scatter(_name, _op)


def _scatter(
    context: AbstractContext,
    x: Operand,
    indices: Operand,
    updates: Operand,
    numbers: Any,
    mode: Any,
    combine: Callable[[Value, Value], Value],
) -> Operand:
    b = context.builder
    values = np.array(x.values(b))
    window_dims = numbers.update_window_dims
    batch_dims = [axis for axis in range(len(updates.shape)) if axis not in window_dims]
    inserted = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    new = updates.values(b).transpose(*batch_dims, *window_dims)
    drops = _Mode.from_any(mode) != _Mode.CLIP
    for place in np.ndindex(*indices.shape[:-1]):
        update = np.expand_dims(_entries_at(new, place), tuple(sorted(inserted)))
        given = _starts(b, numbers, indices, place, values.ndim)
        starts = _clamped(b, given, values.shape, update.shape)
        inside = None
        if drops:
            inside = _is_inside(b, given, values.shape, update.shape)
            if inside.is_constant:
                if not inside.data:
                    continue
                inside = None
        _write(b, values, update, starts, inside, combine)
    return Operand(values, x.dtype)


def _entries_at(values: np.ndarray, place: tuple[int, ...]) -> np.ndarray:
    """The entries at a place of the leading axes, as an array even if it is one entry."""
    window = values[place]
    return window if isinstance(window, np.ndarray) else object_array([window], ())
