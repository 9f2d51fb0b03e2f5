"""Arrays while lowering: nothing but bookkeeping about scalars.

An array is of one of three kinds, told apart by what its `entries` are:

- *values*: an object array of `Value`;
- *view*: an integer array of places in a leaf, so that a table of a million entries can be
  reshaped and sliced, and only the entries that are read become values;
- *known*: an ordinary NumPy array of numbers.

Whatever moves entries (`reshape`, `transpose`, slices) is the same NumPy call for all three.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._build import INDEX, Builder, checked_dtype
from ._errors import Refused
from ._ir import Leaf, Op, Value, object_array

MAX_SELECTED = 1024
"""An array of more computed values than this is not read or written at a computed place.

Such an access compares the place with each possible one. A leaf has no such limit: its entries have
addresses.
"""

MIN_TABLE = 4
"""As few known numbers are selected by comparison rather than read from memory."""

MAX_TABLE = 16_384
"""Known numbers that are read at a computed place become part of the text, up to this many."""


@dataclass(frozen=True, eq=False)
class Operand:
    """An array; see the module."""

    entries: np.ndarray
    dtype: Any  # a NumPy dtype, or that of a random key
    leaf: Leaf | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.entries.shape

    @property
    def is_known(self) -> bool:
        """Whether all entries are numbers."""
        return self.leaf is None and self.entries.dtype != object

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> "Operand":
        """The array after an operation that only moves entries."""
        return Operand(np.asarray(move(self.entries)), self.dtype, self.leaf)

    def values(self, builder: Builder) -> np.ndarray:
        """The array as an object array of values."""
        if self.entries.dtype == object:
            return self.entries
        dtype = checked_dtype(self.dtype)
        if self.entries.size > builder.max_operations:
            raise Refused(
                f"needs all {self.entries.size} entries of an array, more than the "
                f"{builder.max_operations} scalar operations that are unrolled"
            )
        if self.leaf is None:
            flat = [builder.constant(number, dtype) for number in self.entries.flat]
        else:
            flat = [self._read(builder, int(place)) for place in self.entries.flat]
        return object_array(flat, self.shape)

    def value(self, builder: Builder, index: tuple[int, ...] = ()) -> Value:
        """One entry."""
        entry = self.entries[index]
        if isinstance(entry, Value):
            return entry
        if self.leaf is not None:
            return self._read(builder, int(entry))
        return builder.constant(entry, checked_dtype(self.dtype))

    def _read(self, builder: Builder, place: int) -> Value:
        assert self.leaf is not None
        checked_dtype(self.leaf.dtype)
        return builder.convert(builder.entry(self.leaf, place), self.dtype)


def of_values(entries: np.ndarray, dtype: Any) -> Operand:
    """An array of computed values."""
    return Operand(entries, dtype)


def known(numbers: np.ndarray) -> Operand:
    """An array of numbers."""
    return Operand(numbers, numbers.dtype)


def view(leaf: Leaf) -> Operand:
    """A whole leaf."""
    size = int(np.prod(leaf.shape, dtype=np.int64))
    return Operand(np.arange(size).reshape(leaf.shape), leaf.dtype, leaf)


def together(
    builder: Builder, operands: Sequence[Operand], move: Callable[..., np.ndarray]
) -> Operand:
    """The array after an operation that moves entries of several arrays into one.

    `move` gets the arrays of entries, all of one kind.
    """
    first = operands[0]
    alike = first.entries.dtype != object and all(
        other.entries.dtype != object and other.leaf == first.leaf and other.dtype == first.dtype
        for other in operands
    )
    parts = [operand.entries if alike else operand.values(builder) for operand in operands]
    return Operand(np.asarray(move(parts)), first.dtype, first.leaf if alike else None)


def read_window(
    builder: Builder, operand: Operand, starts: Sequence[Value], sizes: Sequence[int]
) -> Operand:
    """The window of these sizes at a computed place, which is known to be inside."""
    # Known starts are slices. They go first: they make the rest smaller.
    fixed = tuple(
        slice(int(start.data), int(start.data) + size) if start.is_constant else slice(None)
        for start, size in zip(starts, sizes, strict=True)
    )
    operand = operand.moved(lambda entries: entries[fixed])
    moving = [axis for axis, start in enumerate(starts) if not start.is_constant]
    if not moving or 0 in operand.shape:
        return operand
    if operand.entries.dtype != object:
        window = _window_in_memory(builder, operand, starts, sizes, moving)
        if window is not None:
            return window
    if operand.entries.size > MAX_SELECTED:
        raise Refused(
            f"reads an array of {operand.entries.size} computed values at a computed place, which "
            f"has a C++ lowering up to {MAX_SELECTED} values"
        )
    values = operand.values(builder)
    for axis in moving:
        values = _select_along(builder, values, axis, starts[axis], sizes[axis])
    return of_values(values, operand.dtype)


def _select_along(
    builder: Builder, values: np.ndarray, axis: int, start: Value, size: int
) -> np.ndarray:
    count = values.shape[axis] - size + 1
    windows = [np.take(values, range(k, k + size), axis=axis) for k in range(count)]
    chosen = windows[-1]
    for k in reversed(range(count - 1)):
        here = builder.emit(Op.EQ, start, builder.constant(k, start.dtype))
        flat = [
            builder.select(here, new, old)
            for new, old in zip(windows[k].flat, chosen.flat, strict=True)
        ]
        chosen = object_array(flat, chosen.shape)
    return chosen


def _window_in_memory(
    builder: Builder,
    operand: Operand,
    starts: Sequence[Value],
    sizes: Sequence[int],
    moving: Sequence[int],
) -> Operand | None:
    """Loads from a leaf, or looks up known numbers; `None` for a few, which are selected."""
    if operand.leaf is None:
        # A table has no way to write infinity or nan that all compilers understand.
        if operand.entries.size <= MIN_TABLE or not np.isfinite(operand.entries).all():
            return None
        places = np.arange(operand.entries.size).reshape(operand.shape)
    else:
        places = operand.entries
    distances = strides(places, moving)
    if distances is None:  # entries of a leaf in another order: it is a table itself
        order = known(places.astype(INDEX))
        window = read_window(builder, order, starts, sizes)
        at = list(window.values(builder).flat)
    else:
        offset = builder.constant(0, INDEX)
        for axis, stride in zip(moving, distances, strict=True):
            start = builder.convert(starts[axis], INDEX)
            term = builder.emit(Op.MUL, start, builder.constant(stride, INDEX))
            offset = builder.emit(Op.ADD, offset, term)
        window = known(places[tuple(slice(0, size) for size in sizes)])
        at = [
            builder.emit(Op.ADD, offset, builder.constant(int(place), INDEX))
            for place in window.entries.flat
        ]
    if operand.leaf is None:
        if operand.entries.size > MAX_TABLE:
            raise Refused(
                f"reads a constant array of {operand.entries.size} numbers at a computed place, "
                f"which has a C++ lowering up to {MAX_TABLE} numbers; make the array a field of "
                "the system"
            )
        dtype = checked_dtype(operand.dtype)
        table = builder.table(operand.entries.ravel())
        flat = [builder.emit(Op.LOOKUP, place, dtype=dtype, data=table) for place in at]
    else:
        dtype, leaf = checked_dtype(operand.leaf.dtype), operand.leaf.index
        loaded = [builder.emit(Op.LOAD, place, dtype=dtype, data=leaf) for place in at]
        flat = [builder.convert(value, operand.dtype) for value in loaded]
    return of_values(object_array(flat, window.shape), operand.dtype)


def strides(places: np.ndarray, axes: Sequence[int]) -> list[int] | None:
    """By how much the place in memory changes along each axis, if that is everywhere the same."""
    out = []
    for axis in axes:
        steps = np.diff(places, axis=axis)
        if steps.size == 0:
            out.append(0)
        elif (steps == steps.flat[0]).all():
            out.append(int(steps.flat[0]))
        else:
            return None
    return out
