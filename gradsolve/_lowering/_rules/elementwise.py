"""Arithmetic, comparisons, logic and elementary functions: the same on every entry."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import primitives

from .._arrays import Operand, known, of_values
from .._build import BOOL, Builder, checked_dtype
from .._errors import Refused
from .._ir import Op, Value, object_array
from .._registry import AbstractContext, existing, lowers, refuse_unless


def elementwise(
    context: AbstractContext, function: Callable[..., Value], *operands: Operand, dtype: Any = None
) -> Operand:
    """Applies a function of scalars to each entry; scalars among the operands are repeated."""
    output = context.outputs[0]
    dtype = checked_dtype(output.dtype if dtype is None else dtype)
    shape = output.shape
    columns = [np.broadcast_to(operand.values(context.builder), shape).flat for operand in operands]
    entries = [function(*row) for row in zip(*columns, strict=True)]
    return collected(entries, shape, dtype)


def collected(entries: list[Value], shape: tuple[int, ...], dtype: np.dtype) -> Operand:
    """An array of these entries; of numbers, if all of them are known."""
    if entries and all(entry.op is Op.CONSTANT for entry in entries):
        return known(np.array([entry.data for entry in entries], dtype).reshape(shape))
    return of_values(object_array(entries, shape), dtype)


# ---- One operation per entry --------------------------------------------------------------------

_SIMPLE: dict[str, Op] = {
    "abs": Op.ABS,
    "acos": Op.ACOS,
    "acosh": Op.ACOSH,
    "and": Op.AND,
    "asin": Op.ASIN,
    "asinh": Op.ASINH,
    "atan": Op.ATAN,
    "atan2": Op.ATAN2,
    "atanh": Op.ATANH,
    "cbrt": Op.CBRT,
    "ceil": Op.CEIL,
    "clz": Op.CLZ,
    "cos": Op.COS,
    "cosh": Op.COSH,
    "digamma": Op.DIGAMMA,
    "erf": Op.ERF,
    "erf_inv": Op.ERF_INV,
    "erfc": Op.ERFC,
    "exp": Op.EXP,
    "exp2": Op.EXP2,
    "expm1": Op.EXPM1,
    "floor": Op.FLOOR,
    "lgamma": Op.LGAMMA,
    "log": Op.LOG,
    "log1p": Op.LOG1P,
    "logistic": Op.LOGISTIC,
    "mulhi": Op.MULHI,
    "neg": Op.NEG,
    "nextafter": Op.NEXTAFTER,
    "not": Op.NOT,
    "or": Op.OR,
    "population_count": Op.POPULATION_COUNT,
    "rem": Op.REM,
    "rsqrt": Op.RSQRT,
    "shift_left": Op.SHIFT_LEFT,
    "shift_right_arithmetic": Op.SHIFT_RIGHT_ARITHMETIC,
    "shift_right_logical": Op.SHIFT_RIGHT_LOGICAL,
    "sign": Op.SIGN,
    "sin": Op.SIN,
    "sinh": Op.SINH,
    "sqrt": Op.SQRT,
    "sub": Op.SUB,
    "tan": Op.TAN,
    "tanh": Op.TANH,
    "xor": Op.XOR,
}


def _register_simple(name: str, op: Op) -> None:
    @lowers(*existing(name))
    def rule(context: AbstractContext, *operands: Operand, accuracy: Any = None) -> Operand:
        emit = context.builder.emit
        return elementwise(context, lambda *args: emit(op, *args), *operands)


for _name, _op in _SIMPLE.items():
    _register_simple(_name, _op)


# On flags, sums and maxima are "or", products and minima "and".
def _on_flags(b: Builder, op: Op, on_flags: Op, x: Value, y: Value) -> Value:
    return b.emit(on_flags if x.dtype == BOOL else op, x, y)


@lowers(lax.add_p, *existing("add_jaxvals"))
def _add(context: AbstractContext, x: Operand, y: Operand) -> Operand:
    b = context.builder
    return elementwise(context, lambda x, y: _on_flags(b, Op.ADD, Op.OR, x, y), x, y)


@lowers(lax.mul_p)
def _mul(context: AbstractContext, x: Operand, y: Operand, *, out_dtype: Any = None) -> Operand:
    refuse_unless("out_dtype", out_dtype, None, x.dtype)
    b = context.builder
    return elementwise(context, lambda x, y: _on_flags(b, Op.MUL, Op.AND, x, y), x, y)


@lowers(lax.max_p)
def _max(context: AbstractContext, x: Operand, y: Operand) -> Operand:
    b = context.builder
    return elementwise(context, lambda x, y: _on_flags(b, Op.MAX, Op.OR, x, y), x, y)


@lowers(lax.min_p)
def _min(context: AbstractContext, x: Operand, y: Operand) -> Operand:
    b = context.builder
    return elementwise(context, lambda x, y: _on_flags(b, Op.MIN, Op.AND, x, y), x, y)


@lowers(lax.div_p)
def _div(context: AbstractContext, x: Operand, y: Operand) -> Operand:
    emit = context.builder.emit
    return elementwise(context, lambda x, y: emit(Op.DIV, x, y), x, y)


@lowers(lax.pow_p)
def _pow(context: AbstractContext, x: Operand, y: Operand) -> Operand:
    b = context.builder

    def power(x: Value, y: Value) -> Value:
        if x.dtype.kind != "f":
            raise Refused("has no C++ lowering for an integer base with a computed exponent")
        y = b.convert(y, x.dtype)
        if y.is_constant and abs(y.data) <= _LARGEST_SHORT_POWER and 2 * y.data % 1 == 0:
            return _short_power(b, x, int(2 * y.data))
        return b.emit(Op.POW, x, y)

    return elementwise(context, power, x, y)


# By products up to here little is lost by rounding: at most 1.5 units of the last place in x^4 and
# 2.5 in x^-3.5, where the general power promises 2.
_LARGEST_SHORT_POWER = 4


def _short_power(b: Builder, x: Value, halves: int) -> Value:
    """`x^(halves / 2)` by products and a root, with the general power's special values."""
    if halves % 2 == 0:
        return integer_power(b, x, halves // 2)
    # The power of -0 is that of 0, the power of -inf that of inf, of other negative numbers nan.
    infinity = b.constant(np.inf, x.dtype)
    root = b.emit(Op.ABS, b.emit(Op.SQRT, x))
    is_lowest = b.emit(Op.EQ, x, b.constant(-np.inf, x.dtype))
    root = b.select(is_lowest, infinity, root)
    whole = integer_power(b, b.emit(Op.ABS, x), abs(halves) // 2)
    power = b.emit(Op.MUL, whole, root)
    return b.emit(Op.DIV, b.constant(1, x.dtype), power) if halves < 0 else power


@lowers(lax.integer_pow_p)
def _integer_pow(context: AbstractContext, x: Operand, *, y: Any) -> Operand:
    b = context.builder
    return elementwise(context, lambda x: integer_power(b, x, int(y)), x)


def integer_power(b: Builder, x: Value, exponent: int) -> Value:
    """A power by repeated squaring, in XLA's order."""
    one = b.constant(1, x.dtype)
    remaining, result = abs(exponent), one
    while remaining > 0:
        if remaining & 1:
            result = b.emit(Op.MUL, result, x)
        remaining >>= 1
        if remaining > 0:
            x = b.emit(Op.MUL, x, x)
    return b.emit(Op.DIV, one, result) if exponent < 0 else result


@lowers(lax.square_p)
def _square(context: AbstractContext, x: Operand) -> Operand:
    emit = context.builder.emit
    return elementwise(context, lambda x: emit(Op.MUL, x, x), x)


@lowers(*existing("one_minus_square"))
def _one_minus_square(context: AbstractContext, x: Operand) -> Operand:
    b = context.builder

    def rule(x: Value) -> Value:
        return b.emit(Op.SUB, b.constant(1, x.dtype), b.emit(Op.MUL, x, x))

    return elementwise(context, rule, x)


@lowers(*existing("polynomial"))
def _polynomial(
    context: AbstractContext, x: Operand, *coefficients: Operand, unroll: Any = None
) -> Operand:
    del unroll
    b = context.builder

    def horner(x: Value, *coefficients: Value) -> Value:
        total = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            total = b.emit(Op.ADD, b.emit(Op.MUL, total, x), coefficient)
        return total

    return elementwise(context, horner, x, *coefficients)


@lowers(lax.is_finite_p)
def _is_finite(context: AbstractContext, x: Operand) -> Operand:
    emit = context.builder.emit
    return elementwise(context, lambda x: emit(Op.IS_FINITE, x), x)


@lowers(lax.round_p)
def _round(context: AbstractContext, x: Operand, *, rounding_method: lax.RoundingMethod) -> Operand:
    emit = context.builder.emit
    to_even = rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN
    op = Op.ROUND_EVEN if to_even else Op.ROUND_AWAY
    return elementwise(context, lambda x: emit(op, x), x)


# ---- Comparisons --------------------------------------------------------------------------------


def compare(b: Builder, op: Op, x: Value, y: Value) -> Value:
    """A comparison; flags are ordered too."""
    if x.dtype != BOOL:
        return b.emit(op, x, y)
    match op:
        case Op.NE:
            return b.emit(Op.XOR, x, y)
        case Op.EQ | Op.EQ_TOTAL:
            return b.emit(Op.NOT, b.emit(Op.XOR, x, y))
        case Op.LT | Op.LT_TOTAL:
            return b.emit(Op.AND, b.emit(Op.NOT, x), y)
        case Op.LE | Op.LE_TOTAL:
            return b.emit(Op.OR, b.emit(Op.NOT, x), y)
        case Op.GT:
            return b.emit(Op.AND, x, b.emit(Op.NOT, y))
    return b.emit(Op.OR, x, b.emit(Op.NOT, y))


_COMPARISONS: dict[str, Op] = {
    "eq": Op.EQ,
    "ne": Op.NE,
    "lt": Op.LT,
    "le": Op.LE,
    "gt": Op.GT,
    "ge": Op.GE,
    "eq_to": Op.EQ_TOTAL,
    "lt_to": Op.LT_TOTAL,
    "le_to": Op.LE_TOTAL,
}


_NOT_TOTAL = {Op.EQ_TOTAL: Op.EQ, Op.LT_TOTAL: Op.LT, Op.LE_TOTAL: Op.LE}


def _register_comparison(name: str, op: Op) -> None:
    @lowers(*existing(name))
    def rule(context: AbstractContext, x: Operand, y: Operand) -> Operand:
        b = context.builder
        # Only floats have numbers that the ordinary order leaves out.
        used = op if x.dtype.kind == "f" else _NOT_TOTAL.get(op, op)
        return elementwise(context, lambda x, y: compare(b, used, x, y), x, y)


for _name, _op in _COMPARISONS.items():
    _register_comparison(_name, _op)


# ---- Selection ----------------------------------------------------------------------------------


@lowers(lax.select_n_p)
def _select_n(context: AbstractContext, which: Operand, *cases: Operand) -> Operand:
    b = context.builder

    def choose(which: Value, *cases: Any) -> Value:
        if which.dtype == BOOL:
            return b.select(which, cases[1], cases[0]) if len(cases) == 2 else cases[0]
        chosen = cases[-1]
        for k in reversed(range(len(cases) - 1)):
            here = b.emit(Op.EQ, which, b.constant(k, which.dtype))
            chosen = b.select(here, cases[k], chosen)
        return chosen

    return elementwise(context, choose, which, *cases)


@lowers(lax.clamp_p)
def _clamp(context: AbstractContext, low: Operand, x: Operand, high: Operand) -> Operand:
    emit = context.builder.emit
    return elementwise(
        context, lambda low, x, high: emit(Op.MAX, low, emit(Op.MIN, x, high)), low, x, high
    )


# ---- Types --------------------------------------------------------------------------------------


@lowers(lax.convert_element_type_p)
def _convert_element_type(
    context: AbstractContext, x: Operand, *, new_dtype: Any, weak_type: bool, sharding: Any
) -> Operand:
    del weak_type
    if new_dtype == jax.dtypes.float0:
        return known(np.zeros(x.shape, np.bool_))
    dtype = checked_dtype(new_dtype)
    if dtype == x.dtype:
        return x
    if x.leaf is not None and x.dtype == x.leaf.dtype:
        return Operand(x.entries, dtype, x.leaf)  # converted where it is read
    b = context.builder
    return elementwise(context, lambda x: b.convert(x, dtype), x)


@lowers(lax.bitcast_convert_type_p)
def _bitcast_convert_type(context: AbstractContext, x: Operand, *, new_dtype: Any) -> Operand:
    dtype = checked_dtype(new_dtype)
    if dtype.itemsize != x.dtype.itemsize or BOOL in (dtype, x.dtype):
        raise Refused("has no C++ lowering between dtypes of different widths")
    if dtype == x.dtype:
        return x
    b = context.builder
    return elementwise(context, lambda x: b.emit(Op.BITCAST, x, dtype=dtype), x)


@lowers(lax.reduce_precision_p)
def _reduce_precision(
    context: AbstractContext, x: Operand, *, exponent_bits: Any, mantissa_bits: Any
) -> Operand:
    info = np.finfo(x.dtype)
    if exponent_bits >= info.nexp and mantissa_bits >= info.nmant:
        return x
    b = context.builder
    data = (min(exponent_bits, int(info.nexp)), min(mantissa_bits, int(info.nmant)))
    return elementwise(context, lambda x: b.emit(Op.REDUCE_PRECISION, x, data=data), x)


@lowers(lax.real_p)
def _real(context: AbstractContext, x: Operand) -> Operand:
    return x


# ---- Identities ---------------------------------------------------------------------------------


@lowers(primitives.copy_p, *existing("copy", "stop_gradient", "optimization_barrier"))
def _identity(context: AbstractContext, *operands: Operand) -> list[Operand]:
    return list(operands)


@lowers(*existing("name"))
def _name_of_checkpoint(context: AbstractContext, x: Operand, *, name: str) -> Operand:
    del name
    return x
