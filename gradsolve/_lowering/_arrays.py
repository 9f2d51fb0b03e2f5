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

import numpy as np

from ._build import BOOL, INDEX, Builder, checked_dtype
from ._errors import Refused
from ._ir import Leaf, Op, Value, object_array

MAX_SELECTED = 1024
"""An array of more computed values than this is not read or written at a computed place.

Such an access compares the place with each possible one. A leaf has no such limit: its entries have
addresses.
"""


@dataclass(frozen=True, eq=False)
class Operand:
    """An array; see the module."""

    entries: np.ndarray
    dtype: np.dtype
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


def of_values(entries: np.ndarray, dtype: np.dtype) -> Operand:
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
    if operand.leaf is not None:
        window = _window_of_leaf(builder, operand, starts, sizes, moving)
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


def _window_of_leaf(
    builder: Builder,
    operand: Operand,
    starts: Sequence[Value],
    sizes: Sequence[int],
    moving: Sequence[int],
) -> Operand | None:
    """Loads from the leaf, if the places of its view are an affine function of the index."""
    assert operand.leaf is not None
    places = operand.entries
    strides = []
    for axis in moving:
        if places.shape[axis] == 1:
            strides.append(0)
            continue
        steps = np.diff(places, axis=axis)
        if not (steps == steps.flat[0]).all():
            return None
        strides.append(int(steps.flat[0]))
    checked_dtype(operand.leaf.dtype)
    offset = builder.constant(0, INDEX)
    for axis, stride in zip(moving, strides, strict=True):
        start = builder.convert(starts[axis], INDEX)
        term = builder.emit(Op.MUL, start, builder.constant(stride, INDEX))
        offset = builder.emit(Op.ADD, offset, term)
    window = places[tuple(slice(0, size) for size in sizes)]
    flat = []
    for place in window.flat:
        at = builder.emit(Op.ADD, offset, builder.constant(int(place), INDEX))
        loaded = builder.emit(Op.LOAD, at, dtype=operand.leaf.dtype, data=operand.leaf.index)
        flat.append(builder.convert(loaded, operand.dtype))
    return of_values(object_array(flat, window.shape), operand.dtype)


def truth(builder: Builder, flag: bool) -> Value:
    """A known flag."""
    return builder.constant(flag, BOOL)
