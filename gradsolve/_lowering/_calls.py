"""Mathematical functions that are called, since a function has too many of them to inline."""

from collections import Counter
from collections.abc import Sequence

from ._ir import Function, Op, Value

CALLABLE = frozenset(
    {
        Op.ACOS,
        Op.ACOSH,
        Op.ASIN,
        Op.ASINH,
        Op.ATAN,
        Op.ATAN2,
        Op.ATANH,
        Op.CBRT,
        Op.COS,
        Op.COSH,
        Op.DIGAMMA,
        Op.ERF,
        Op.ERFC,
        Op.ERF_INV,
        Op.EXP,
        Op.EXP2,
        Op.EXPM1,
        Op.LGAMMA,
        Op.LOG,
        Op.LOG1P,
        Op.LOGISTIC,
        Op.POW,
        Op.SIN,
        Op.SINH,
        Op.TAN,
        Op.TANH,
    }
)
"""Functions that are dozens of instructions each; `csrc/gs/called.h` has them all."""

# One that is there more often than this is called, not inlined.
_MOST_INLINED = 8
# Calls of one function of one number are joined: `csrc/gs/called.h` says why.
_JOINED = 4


def has_elementary_functions(function: Function) -> bool:
    """Whether a lowered function computes one of `CALLABLE`."""
    return any(value.op in CALLABLE for value in function.walk())


def called_functions(function: Function) -> frozenset[Op]:
    """The mathematical functions that a lowered function has too often to inline them."""
    counts = Counter(value.op for value in function.walk() if value.op in CALLABLE)
    return frozenset(op for op, count in counts.items() if count > _MOST_INLINED)


def joined(values: Sequence[Value], position: int, called: frozenset[Op]) -> Sequence[Value]:
    """The calls from here on that can be one, since none needs another; or nothing."""
    first, some = values[position], values[position : position + _JOINED]
    if first.op not in called or len(first.args) != 1 or len(some) < _JOINED:
        return []
    alike = all(value.op is first.op and value.dtype == first.dtype for value in some)
    return some if alike and not any(value.args[0] in some for value in some) else []
