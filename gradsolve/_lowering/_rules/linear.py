"""Products of arrays."""

import itertools
from typing import Any

import numpy as np
from jax import lax

from .._arrays import Operand
from .._build import BOOL, Builder, checked_dtype
from .._errors import Refused
from .._ir import Op, Value, object_array
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

    def rows(operand: Operand, contract: Any, batch: Any) -> np.ndarray:
        # Shape (batch, free, contracted).
        values = operand.values(b)
        free = [axis for axis in range(values.ndim) if axis not in (*contract, *batch)]
        shape = [values.shape[axis] for axis in (*batch, *free, *contract)]
        sizes = (len(batch), len(batch) + len(free))
        return values.transpose(*batch, *free, *contract).reshape(
            int(np.prod(shape[: sizes[0]])),
            int(np.prod(shape[sizes[0] : sizes[1]])),
            int(np.prod(shape[sizes[1] :])),
        )

    left, right = rows(lhs, lhs_contract, lhs_batch), rows(rhs, rhs_contract, rhs_batch)
    left, right = _converted(b, left, dtype), _converted(b, right, dtype)
    entries = [
        inner_product(b, x, y, dtype)
        for batch in range(left.shape[0])
        for x, y in itertools.product(left[batch], right[batch])
    ]
    return collected(entries, context.outputs[0].shape, dtype)


def _converted(b: Builder, values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return object_array([b.convert(value, dtype) for value in values.flat], values.shape)


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
