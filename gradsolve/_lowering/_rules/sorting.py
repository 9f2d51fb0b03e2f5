"""Sorting of short arrays, by a network of comparisons whose shape does not depend on the data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from .._arrays import Operand
from .._build import BOOL, Builder, checked_dtype
from .._errors import Refused
from .._ir import Op, Value
from .._registry import AbstractContext, lowers
from .elementwise import collected, compare

MAX_SORTED = 64
"""The longest array that is sorted; the network has about half its square of comparisons."""


def _precedes(b: Builder, x: Value, y: Value) -> Value:
    """Whether x is sorted before y: nan comes last, and 0 and -0 are equal."""
    less = compare(b, Op.LT, x, y)
    if x.dtype.kind != "f":
        return less
    last = b.emit(Op.AND, b.emit(Op.NOT, b.is_nan(x)), b.is_nan(y))
    return b.emit(Op.OR, less, last)


def _is_before(b: Builder, xs: Sequence[Value], ys: Sequence[Value], keys: int) -> Value:
    """The lexicographic order of the first entries."""
    before = b.constant(False, BOOL)
    for x, y in reversed(list(zip(xs[:keys], ys[:keys], strict=True))):
        neither = b.emit(Op.NOT, _precedes(b, y, x))
        before = b.emit(Op.OR, _precedes(b, x, y), b.emit(Op.AND, neither, before))
    return before


def _sorted(b: Builder, rows: list[list[Value]], keys: int, descending: bool) -> list[list[Value]]:
    """Sorts rows of values that belong together.

    Neighbours are exchanged, at even and odd places in turn, only if they are in the wrong order:
    equal ones keep theirs.
    """
    rows = list(rows)
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            first, second = rows[i], rows[i + 1]
            one, other = (first, second) if descending else (second, first)
            wrong = _is_before(b, one, other, keys)
            pairs = list(zip(first, second, strict=True))
            rows[i] = [b.select(wrong, y, x) for x, y in pairs]
            rows[i + 1] = [b.select(wrong, x, y) for x, y in pairs]
    return rows


def _refuse_if_long(length: Any) -> None:
    if length > MAX_SORTED:
        raise Refused(
            f"sorts {length} entries, which has a C++ lowering up to {MAX_SORTED} entries"
        )


@lowers(lax.sort_p)
def _sort(
    context: AbstractContext, *operands: Operand, dimension: Any, is_stable: bool, num_keys: Any
) -> list[Operand]:
    del is_stable  # it always is
    b = context.builder
    columns = [np.moveaxis(operand.values(b), dimension, -1) for operand in operands]
    _refuse_if_long(columns[0].shape[-1])
    outs = [np.empty(column.shape, dtype=object) for column in columns]
    for index in np.ndindex(*columns[0].shape[:-1]):
        rows = [list(row) for row in zip(*(column[index] for column in columns), strict=True)]
        for k, row in enumerate(_sorted(b, rows, num_keys, descending=False)):
            for out, value in zip(outs, row, strict=True):
                out[(*index, k)] = value
    placed = [np.moveaxis(out, -1, dimension) for out in outs]
    return [
        collected(list(out.flat), out.shape, checked_dtype(operand.dtype))
        for out, operand in zip(placed, operands, strict=True)
    ]


@lowers(lax.top_k_p)
def _top_k(
    context: AbstractContext, x: Operand, *, k: Any, axis: Any, is_stable: Any = True
) -> list[Operand]:
    del is_stable
    b = context.builder
    places_dtype = checked_dtype(context.outputs[1].dtype)
    values = np.moveaxis(x.values(b), axis, -1)
    _refuse_if_long(values.shape[-1])
    best = np.empty((*values.shape[:-1], k), dtype=object)
    places = np.empty(best.shape, dtype=object)
    for index in np.ndindex(*values.shape[:-1]):
        rows = [
            [value, b.constant(place, places_dtype)] for place, value in enumerate(values[index])
        ]
        for i, row in enumerate(_sorted(b, rows, 1, descending=True)[:k]):
            best[(*index, i)], places[(*index, i)] = row
    return [
        collected(list(moved.flat), moved.shape, dtype)
        for moved, dtype in (
            (np.moveaxis(best, -1, axis), checked_dtype(x.dtype)),
            (np.moveaxis(places, -1, axis), places_dtype),
        )
    ]
