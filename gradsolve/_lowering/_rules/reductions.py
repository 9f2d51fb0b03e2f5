"""Sums and other reductions along axes, and their running forms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .._arrays import Operand
from .._build import BOOL, Builder, checked_dtype
from .._ir import Op, Value
from .._registry import AbstractContext, existing, lowers
from .elementwise import collected

_Combine = Callable[[Value, Value], Value]


def _rows(builder: Builder, x: Operand, axes: Sequence[Any]) -> np.ndarray:
    """Shape (kept entries, reduced entries)."""
    values = x.values(builder)
    kept = [axis for axis in range(values.ndim) if axis not in axes]
    count = int(np.prod([values.shape[axis] for axis in kept], dtype=int))
    reduced = int(np.prod([values.shape[axis] for axis in axes], dtype=int))
    return values.transpose(*kept, *axes).reshape(count, reduced)


def _reduced(
    context: AbstractContext, x: Operand, axes: Sequence[Any], combine: _Combine, empty: Any
) -> Operand:
    """Combines from left to right; `empty` is the result without entries."""
    dtype = checked_dtype(x.dtype)
    entries = []
    for row in _rows(context.builder, x, axes):
        total = row[0] if len(row) else context.builder.constant(empty, dtype)
        for value in row[1:]:
            total = combine(total, value)
        entries.append(total)
    return collected(entries, context.outputs[0].shape, dtype)


def combination(b: Builder, op: Op, dtype: np.dtype) -> _Combine:
    """An operation of two values, on flags its logical form."""
    if dtype == BOOL:
        op = {Op.ADD: Op.OR, Op.MAX: Op.OR, Op.MUL: Op.AND, Op.MIN: Op.AND}.get(op, op)
    return lambda x, y: b.emit(op, x, y)


def _smallest(dtype: np.dtype) -> Any:
    if dtype == BOOL:
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _largest(dtype: np.dtype) -> Any:
    if dtype == BOOL:
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _register_reduction(name: str, op: Op, empty: Callable[[np.dtype], Any]) -> None:
    @lowers(*existing(name))
    def rule(
        context: AbstractContext, x: Operand, *, axes: Sequence[Any], out_sharding: Any = None
    ) -> Operand:
        combine = combination(context.builder, op, x.dtype)
        return _reduced(context, x, axes, combine, empty(x.dtype))


for _name, _op, _empty in (
    ("reduce_sum", Op.ADD, lambda dtype: 0),
    ("reduce_prod", Op.MUL, lambda dtype: 1),
    ("reduce_max", Op.MAX, _smallest),
    ("reduce_min", Op.MIN, _largest),
    ("reduce_and", Op.AND, lambda dtype: True if dtype == BOOL else -1),
    ("reduce_or", Op.OR, lambda dtype: 0),
    ("reduce_xor", Op.XOR, lambda dtype: 0),
):
    _register_reduction(_name, _op, _empty)


@lowers(*existing("reduce"))
def _reduce(
    context: AbstractContext,
    *operands: Operand,
    jaxpr: Any,
    dimensions: Sequence[Any],
    computation: Any = None,
    consts: Any = (),
    out_sharding: Any = None,
) -> list[Operand]:
    del computation
    b = context.builder
    count = len(operands) // 2
    rows = [_rows(b, operand, dimensions) for operand in operands[:count]]
    totals: list[list[Value]] = [[] for _ in range(count)]
    for place in range(rows[0].shape[0]):
        state = list(operands[count:])
        for k in range(rows[0].shape[1]):
            entry = [
                collected([row[place, k]], (), checked_dtype(operand.dtype))
                for row, operand in zip(rows, operands, strict=False)
            ]
            state = context.run(jaxpr.jaxpr, jaxpr.consts, [*state, *entry])
        for total, final in zip(totals, state, strict=True):
            total.append(final.value(b))
    return [
        collected(total, output.shape, checked_dtype(output.dtype))
        for total, output in zip(totals, context.outputs, strict=True)
    ]


# ---- Places of extrema --------------------------------------------------------------------------


def _register_extremum(name: str, op: Op) -> None:
    @lowers(*existing(name))
    def rule(
        context: AbstractContext, x: Operand, *, axes: Sequence[Any], index_dtype: Any
    ) -> Operand:
        b = context.builder
        dtype = checked_dtype(index_dtype)
        entries = []
        for row in _rows(b, x, axes):
            best, place = row[0], b.constant(0, dtype)
            for k, value in enumerate(row[1:], start=1):
                better = _better(b, op, value, best)
                best = b.select(better, value, best)
                place = b.select(better, b.constant(k, dtype), place)
            entries.append(place)
        return collected(entries, context.outputs[0].shape, dtype)


def _better(b: Builder, op: Op, value: Value, best: Value) -> Value:
    """Whether a later entry replaces the best so far: the first nan is better than any number."""
    if value.dtype == BOOL:
        one, other = (value, best) if op is Op.GT else (best, value)
        return b.emit(Op.AND, one, b.emit(Op.NOT, other))
    better = b.emit(op, value, best)
    if value.dtype.kind != "f":
        return better
    first_nan = b.emit(Op.AND, b.is_nan(value), b.emit(Op.NOT, b.is_nan(best)))
    # A comparison with nan is false, so nothing replaces nan.
    return b.emit(Op.OR, better, first_nan)


_register_extremum("argmax", Op.GT)
_register_extremum("argmin", Op.LT)


# ---- Running reductions -------------------------------------------------------------------------


def _running(
    context: AbstractContext, x: Operand, axis: Any, reverse: bool, combine: _Combine
) -> Operand:
    values = np.moveaxis(x.values(context.builder), axis, -1)
    if reverse:
        values = np.flip(values, -1)
    out = np.empty(values.shape, dtype=object)
    for index in np.ndindex(*values.shape[:-1]):
        total = None
        for k, value in enumerate(values[index]):
            total = value if total is None else combine(total, value)
            out[(*index, k)] = total
    if reverse:
        out = np.flip(out, -1)
    return Operand(np.moveaxis(out, -1, axis), x.dtype)


def _register_running(name: str, op: Op) -> None:
    @lowers(*existing(name))
    def rule(context: AbstractContext, x: Operand, *, axis: Any, reverse: bool) -> Operand:
        combine = combination(context.builder, op, x.dtype)
        return _running(context, x, axis, reverse, combine)


for _name, _op in (
    ("cumsum", Op.ADD),
    ("cumprod", Op.MUL),
    ("cummax", Op.MAX),
    ("cummin", Op.MIN),
):
    _register_running(_name, _op)


@lowers(lax.cumlogsumexp_p)
def _cumlogsumexp(context: AbstractContext, x: Operand, *, axis: Any, reverse: bool) -> Operand:
    b = context.builder

    def combine(x: Value, y: Value) -> Value:
        # As `jnp.logaddexp`: the difference of equal infinities is nan, and their sum is right.
        difference = b.emit(Op.SUB, x, y)
        small = b.emit(Op.EXP, b.emit(Op.NEG, b.emit(Op.ABS, difference)))
        sum_ = b.emit(Op.ADD, b.emit(Op.MAX, x, y), b.emit(Op.LOG1P, small))
        return b.select(b.is_nan(difference), b.emit(Op.ADD, x, y), sum_)

    return _running(context, x, axis, reverse, combine)


# ---- Windows ------------------------------------------------------------------------------------


def _register_window(name: str, op: Op, empty: Callable[[np.dtype], Any]) -> None:
    @lowers(*existing(name))
    def rule(
        context: AbstractContext,
        x: Operand,
        *,
        window_dimensions: Sequence[Any],
        window_strides: Sequence[Any],
        padding: Sequence[Any],
        base_dilation: Sequence[Any],
        window_dilation: Sequence[Any],
    ) -> Operand:
        b = context.builder
        combine = combination(b, op, x.dtype)
        values: Any = x.values(b)
        output = context.outputs[0]
        dtype = checked_dtype(output.dtype)
        entries = []
        for place in np.ndindex(*output.shape):
            total: Any = None
            for tap in np.ndindex(*window_dimensions):
                at = [
                    p * stride + k * spread - low
                    for p, k, stride, spread, (low, _) in zip(
                        place, tap, window_strides, window_dilation, padding, strict=True
                    )
                ]
                steps = [divmod(a, gap) for a, gap in zip(at, base_dilation, strict=True)]
                if all(
                    rest == 0 and 0 <= step < size
                    for (step, rest), size in zip(steps, values.shape, strict=True)
                ):
                    value = values[tuple(step for step, _ in steps)]
                    total = value if total is None else combine(total, value)
            entries.append(b.constant(empty(dtype), dtype) if total is None else total)
        return collected(entries, output.shape, dtype)


for _name, _op, _empty in (
    ("reduce_window_sum", Op.ADD, lambda dtype: 0),
    ("reduce_window_max", Op.MAX, _smallest),
    ("reduce_window_min", Op.MIN, _largest),
):
    _register_window(_name, _op, _empty)
