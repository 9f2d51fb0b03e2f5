"""Products of arrays."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from .._arrays import Operand, strides
from .._build import BOOL, Builder, checked_dtype
from .._errors import Refused
from .._ir import LeafMatrix, Op, Product, Value, object_array
from .._registry import AbstractContext, lowers, refuse_unless
from .elementwise import collected


def inner_product(b: Builder, xs: Any, ys: Any, dtype: np.dtype) -> Value:
    """The sum of products, from left to right; each but the first becomes a fused operation."""
    if dtype == BOOL:
        multiply, add = Op.AND, Op.OR
    else:
        multiply, add = Op.MUL, Op.ADD
    total = b.constant(0, dtype)
    for x, y in zip(xs, ys, strict=True):
        total = b.emit(add, total, b.emit(multiply, x, y))
    return total


@lowers(lax.dot_general_p)
def _dot_general(
    context: AbstractContext,
    lhs: Operand,
    rhs: Operand,
    *,
    dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any = None,
) -> Operand:
    del precision  # every product is exact to the last bit anyway
    b = context.builder
    dtype = checked_dtype(preferred_element_type or context.outputs[0].dtype)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers

    left = _rows(lhs, lhs_contract, lhs_batch)
    right = _rows(rhs, rhs_contract, rhs_batch)
    entries = _looped(b, left, right, dtype)
    if entries is None:
        xs, ys = (_converted(b, operand.values(b), dtype) for operand in (left, right))
        entries = [
            inner_product(b, x, y, dtype)
            for batch in range(xs.shape[0])
            for x, y in itertools.product(xs[batch], ys[batch])
        ]
    return collected(entries, context.outputs[0].shape, dtype)


def _rows(operand: Operand, contract: Sequence[int], batch: Sequence[int]) -> Operand:
    """The operand with the shape (batch, free, contracted)."""
    rank = len(operand.shape)
    free = [axis for axis in range(rank) if axis not in (*contract, *batch)]
    sizes = [math.prod(operand.shape[axis] for axis in axes) for axes in (batch, free, contract)]
    return operand.moved(lambda x: x.transpose(*batch, *free, *contract).reshape(sizes))


def _converted(b: Builder, values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return object_array([b.convert(value, dtype) for value in values.flat], values.shape)


# ---- Loops --------------------------------------------------------------------------------------


MIN_LOOPED = 128
"""Matrix products of fewer products of numbers are written out.

Entries that are known or not needed then vanish, and the others stay in registers; from about here
on there are no registers left, and compilers take long.
"""


def _looped(b: Builder, left: Operand, right: Operand, dtype: np.dtype) -> list[Value] | None:
    """The entries of a large product, or `None` where it is to be written out."""
    if right.shape[1] == 1:
        left, right = right, left  # a vector is the operand of one row
    batch, rows, inner = left.shape
    columns = right.shape[1]
    if batch != 1 or dtype.kind != "f" or rows * columns * inner < MIN_LOOPED:
        return None
    if any(operand.is_known or operand.dtype != dtype for operand in (left, right)):
        return None
    product = Product(rows, columns, inner, _in_leaf(left), _in_leaf(right))
    args = [
        value
        for operand, matrix in ((left, product.left), (right, product.right))
        if matrix is None
        for value in operand.values(b).flat
    ]
    # What is known would make products vanish; and to gather the operands must not be most of it.
    if any(value.is_constant for value in args) or 2 * len(args) > rows * columns * inner:
        return None
    return b.product(product, args, dtype)


def _in_leaf(operand: Operand) -> LeafMatrix | None:
    """Where a matrix lies in memory, if its entries are evenly apart there."""
    if operand.leaf is None or operand.leaf.dtype != operand.dtype:
        return None
    (places,) = operand.entries
    distances = strides(places, (0, 1))
    if distances is None:
        return None
    return LeafMatrix(operand.leaf.index, int(places[0, 0]), (distances[0], distances[1]))


# ---- Convolution --------------------------------------------------------------------------------


@lowers(lax.conv_general_dilated_p)
def _conv_general_dilated(
    context: AbstractContext,
    lhs: Operand,
    rhs: Operand,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: Any,
    batch_group_count: Any,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any = None,
) -> Operand:
    del precision
    refuse_unless("feature_group_count", feature_group_count, 1)
    refuse_unless("batch_group_count", batch_group_count, 1)
    b = context.builder
    dtype = checked_dtype(preferred_element_type or context.outputs[0].dtype)
    if lhs.dtype != dtype or rhs.dtype != dtype:
        raise Refused("has no C++ lowering for mixed dtypes")
    image: Any = lhs.values(b).transpose(dimension_numbers.lhs_spec)  # (batch, feature, space)
    kernel: Any = rhs.values(b).transpose(dimension_numbers.rhs_spec)  # (out, in, space)
    out_spec = dimension_numbers.out_spec
    shape = tuple(context.outputs[0].shape[axis] for axis in out_spec)
    out = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        sample, feature, *place = index
        xs: list[Value] = []
        ys: list[Value] = []
        for tap in np.ndindex(*kernel.shape[2:]):
            # Where the tap falls in the dilated image, and whether an entry is there.
            at = [
                p * stride + k * spread - low
                for p, k, stride, spread, (low, _) in zip(
                    place, tap, window_strides, rhs_dilation, padding, strict=True
                )
            ]
            steps = [divmod(a, gap) for a, gap in zip(at, lhs_dilation, strict=True)]
            if any(
                rest != 0 or not 0 <= step < size
                for (step, rest), size in zip(steps, image.shape[2:], strict=True)
            ):
                continue
            source = tuple(step for step, _ in steps)
            for channel in range(kernel.shape[1]):
                xs.append(image[(sample, channel, *source)])
                ys.append(kernel[(feature, channel, *tap)])
        out[index] = inner_product(b, xs, ys, dtype)
    placed = out.transpose(np.argsort(out_spec))
    return collected(list(placed.flat), placed.shape, dtype)
