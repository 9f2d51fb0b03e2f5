"""Operations on known numbers, evaluated while lowering, in the dtype of the result."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._ir import Op

_INTEGER_KINDS = "iu"


def _divide(x: Any, y: Any) -> Any:
    if x.dtype.kind not in _INTEGER_KINDS:
        return np.true_divide(x, y)
    a, b = int(x), int(y)
    if b == 0:
        return x.dtype.type(-1) if x.dtype.kind == "i" else np.iinfo(x.dtype).max
    quotient = abs(a) // abs(b)
    return _wrapped(quotient if (a < 0) == (b < 0) else -quotient, x.dtype)


def _remainder(x: Any, y: Any) -> Any:
    if x.dtype.kind not in _INTEGER_KINDS:
        return np.fmod(x, y)
    return (
        x if int(y) == 0 else x.dtype.type(math.copysign(1, int(x)) * (abs(int(x)) % abs(int(y))))
    )


def _wrapped(value: int, dtype: np.dtype) -> Any:
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    if dtype.kind == "i" and value >> (bits - 1):
        value -= 1 << bits
    return dtype.type(value)


def _unsigned(x: Any) -> int:
    return int(x) & ((1 << (8 * x.dtype.itemsize)) - 1)


def _shift_left(x: Any, y: Any) -> Any:
    bits = 8 * x.dtype.itemsize
    return _wrapped(_unsigned(x) << _unsigned(y) if _unsigned(y) < bits else 0, x.dtype)


def _shift_right_logical(x: Any, y: Any) -> Any:
    return _wrapped(_unsigned(x) >> min(_unsigned(y), 8 * x.dtype.itemsize), x.dtype)


def _shift_right_arithmetic(x: Any, y: Any) -> Any:
    return _wrapped(int(x) >> min(_unsigned(y), 8 * x.dtype.itemsize), x.dtype)


def _maximum(x: Any, y: Any) -> Any:
    return np.maximum(x, y)


def _sign(x: Any) -> Any:
    return np.sign(x) if x != 0 else x


def _round_away(x: Any) -> Any:
    truncated = np.trunc(x)
    return (
        np.copysign(truncated + (np.abs(x - truncated) >= 0.5), x) if x >= 0 else -_round_away(-x)
    )


def _scalar(function: Callable[[float], float]) -> Callable[[Any], Any]:
    # Functions that NumPy lacks: computed in float64, rounded by the caller.
    return lambda x: function(float(x))


def _total_key(x: Any) -> int:
    bits = int(x.view(np.int64 if x.dtype.itemsize == 8 else np.int32))
    return bits if bits >= 0 else bits ^ (2 ** (8 * x.dtype.itemsize - 1) - 1)


_NAN_SAFE_ROUND = lambda x: x if not np.isfinite(x) else _round_away(x)

_FOLD: dict[Op, Callable[..., Any]] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: _divide,
    Op.REM: _remainder,
    Op.NEG: np.negative,
    Op.ABS: np.abs,
    Op.SIGN: _sign,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.GT: np.greater,
    Op.GE: np.greater_equal,
    Op.EQ_TOTAL: lambda x, y: _total_key(x) == _total_key(y),
    Op.LT_TOTAL: lambda x, y: _total_key(x) < _total_key(y),
    Op.LE_TOTAL: lambda x, y: _total_key(x) <= _total_key(y),
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
    Op.NOT: np.invert,
    Op.SHIFT_LEFT: _shift_left,
    Op.SHIFT_RIGHT_ARITHMETIC: _shift_right_arithmetic,
    Op.SHIFT_RIGHT_LOGICAL: _shift_right_logical,
    Op.ACOS: np.arccos,
    Op.ACOSH: np.arccosh,
    Op.ASIN: np.arcsin,
    Op.ASINH: np.arcsinh,
    Op.ATAN: np.arctan,
    Op.ATANH: np.arctanh,
    Op.CBRT: np.cbrt,
    Op.CEIL: np.ceil,
    Op.COS: np.cos,
    Op.COSH: np.cosh,
    Op.ERF: _scalar(math.erf),
    Op.ERFC: _scalar(math.erfc),
    Op.EXP: np.exp,
    Op.EXP2: np.exp2,
    Op.EXPM1: np.expm1,
    Op.FLOOR: np.floor,
    Op.IS_FINITE: np.isfinite,
    Op.LOG: np.log,
    Op.LOG1P: np.log1p,
    Op.LOGISTIC: lambda x: 1 / (1 + np.exp(-x)),
    Op.ROUND_AWAY: _NAN_SAFE_ROUND,
    Op.ROUND_EVEN: np.rint,
    Op.RSQRT: lambda x: 1 / np.sqrt(x),
    Op.SIN: np.sin,
    Op.SINH: np.sinh,
    Op.SQRT: np.sqrt,
    Op.TAN: np.tan,
    Op.TANH: np.tanh,
    Op.ATAN2: np.arctan2,
    Op.NEXTAFTER: np.nextafter,
    Op.POW: np.power,
}


def fold(op: Op, args: tuple[np.generic, ...], dtype: np.dtype) -> np.generic | None:
    """The result of an operation on known numbers, or `None` where it is left to the compiler."""
    if op is Op.SELECT:
        return args[1] if args[0] else args[2]
    if op is Op.CONVERT:
        return convert(args[0], dtype)
    if op is Op.BITCAST:
        return args[0].view(dtype)
    function = _FOLD.get(op)
    if function is None:
        return None
    if op is Op.POW and args[0].dtype.kind in _INTEGER_KINDS:
        return None
    with np.errstate(all="ignore"):
        return dtype.type(function(*args))


def convert(value: Any, dtype: np.dtype) -> np.generic:
    """A number in another dtype, as XLA converts it: floats saturate and nan becomes 0."""
    if value.dtype.kind == "f" and dtype.kind in _INTEGER_KINDS:
        if np.isnan(value):
            return dtype.type(0)
        info = np.iinfo(dtype)
        return (
            dtype.type(min(max(math.trunc(value), info.min), info.max))
            if np.isfinite(value)
            else dtype.type(info.max if value > 0 else info.min)
        )
    if value.dtype.kind in _INTEGER_KINDS and dtype.kind in _INTEGER_KINDS:
        return _wrapped(int(value), dtype)
    with np.errstate(all="ignore"):
        return dtype.type(value)
