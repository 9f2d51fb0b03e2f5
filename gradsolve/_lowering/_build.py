"""Emits operations into blocks: equal ones merge, and what is known needs no operation."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ._errors import Refused, TooLargeError
from ._fold import fold
from ._ir import Block, Leaf, Loop, Op, Product, Table, Value

BOOL = np.dtype(np.bool_)
INDEX = np.dtype(np.int32)
"""The dtype of computed places in leaves."""

_COMPARISONS = frozenset(
    {
        Op.EQ,
        Op.NE,
        Op.LT,
        Op.LE,
        Op.GT,
        Op.GE,
        Op.EQ_TOTAL,
        Op.LT_TOTAL,
        Op.LE_TOTAL,
        Op.IS_FINITE,
    }
)
_COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.AND, Op.OR, Op.XOR, Op.EQ, Op.NE})

DTYPES = tuple(
    np.dtype(name) for name in ("bool", "int32", "int64", "uint32", "uint64", "float32", "float64")
)


def checked_dtype(dtype: Any) -> np.dtype:
    """A dtype that has a C++ type, or a refusal."""
    if dtype not in DTYPES:
        raise Refused(f"has no C++ lowering for the dtype {getattr(dtype, 'name', dtype)}")
    return np.dtype(dtype)


class _Scope:
    """A block under construction and what it has computed so far."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.known: dict[tuple[Any, ...], Value] = {}


class Builder:
    """Builds one function.

    **Arguments:**

    - `max_operations`: more operations than this raise a refusal, for `TooLargeError`.
    - `structural_zeros`: whether the product of an exact zero with anything is zero.
    """

    def __init__(self, max_operations: int, structural_zeros: bool = True) -> None:
        self.max_operations = max_operations
        self.structural_zeros = structural_zeros
        self.operations = 0
        self.root = Block()
        self._scopes = [_Scope(self.root)]
        self._free: dict[tuple[Any, ...], Value] = {}
        self._tables: dict[tuple[Any, ...], Table] = {}
        self._products: dict[Value, list[Value]] = {}

    # ---- Values that belong to no block ---------------------------------------------------------

    def constant(self, value: Any, dtype: np.dtype) -> Value:
        """A known number."""
        number = dtype.type(value)
        # By its bits: 0 and -0 are equal, and nan is not equal to itself.
        return self._once((Op.CONSTANT, dtype, number.tobytes()), Op.CONSTANT, dtype, number)

    def argument(self, name: str, index: int | None, dtype: np.dtype) -> Value:
        """An entry of an array argument, or a scalar argument."""
        return self._once((Op.ARGUMENT, name, index), Op.ARGUMENT, dtype, (name, index))

    def entry(self, leaf: Leaf, flat: int) -> Value:
        """An entry of a leaf, at a fixed place."""
        key = (Op.ENTRY, leaf.index, flat)
        return self._once(key, Op.ENTRY, leaf.dtype, (leaf.index, flat))

    def _once(self, key: tuple[Any, ...], op: Op, dtype: np.dtype, data: Any) -> Value:
        value = self._free.get(key)
        if value is None:
            value = self._free[key] = Value(op, dtype, (), data)
        return value

    def table(self, numbers: np.ndarray) -> Table:
        """Known numbers, flat."""
        key = (numbers.dtype, numbers.tobytes())
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = Table(numbers)
        return table

    # ---- Operations -----------------------------------------------------------------------------

    def emit(self, op: Op, *args: Value, dtype: np.dtype | None = None, data: Any = None) -> Value:
        """The result of an operation; `dtype` is needed where the operation changes it."""
        if dtype is None:
            dtype = BOOL if op in _COMPARISONS else args[0].dtype
        if all(arg.op is Op.CONSTANT for arg in args) and data is None:
            folded = fold(op, tuple(arg.data for arg in args), dtype)
            if folded is not None:
                return self.constant(folded, dtype)
        rule = _SIMPLIFY.get(op)
        if rule is not None:
            simpler = rule(self, dtype, *args)
            if simpler is not None:
                return simpler
        key = (op, dtype, data, *args)
        value = self._known(key)
        if value is None and op in _COMMUTATIVE:
            value = self._known((op, dtype, data, *reversed(args)))
        if value is None:
            value = self._append(Value(op, dtype, args, data))
            self._scopes[-1].known[key] = value
        return value

    def known(self, op: Op, dtype: np.dtype, *args: Value) -> Value | None:
        """The result of an operation that has been emitted, if it can be used here."""
        return self._known((op, dtype, None, *args))

    def _known(self, key: tuple[Any, ...]) -> Value | None:
        for scope in reversed(self._scopes):
            value = scope.known.get(key)
            if value is not None:
                return value
        return None

    def _append(self, value: Value) -> Value:
        self._count()
        self._scopes[-1].block.values.append(value)
        return value

    def _count(self) -> None:
        self.operations += 1
        if self.operations > self.max_operations:
            raise Refused(
                f"makes the function larger than {self.max_operations} scalar operations, the most "
                "that are unrolled",
                TooLargeError,
            )

    def select(self, flag: Value, on_true: Value, on_false: Value) -> Value:
        """`on_true` where the flag is set, else `on_false`."""
        return self.emit(Op.SELECT, flag, on_true, on_false, dtype=on_true.dtype)

    def convert(self, value: Value, dtype: np.dtype) -> Value:
        """The value in another dtype."""
        if value.dtype == dtype:
            return value
        if dtype == BOOL:
            return self.emit(Op.NE, value, self.constant(0, value.dtype))
        return self.emit(Op.CONVERT, value, dtype=dtype)

    def clamp(self, value: Value, low: int, high: int) -> Value:
        """An integer brought into `[low, high]`."""
        if value.is_constant:
            return self.constant(min(max(int(value.data), low), high), value.dtype)
        if np.iinfo(value.dtype).min < low:
            value = self.emit(Op.MAX, value, self.constant(low, value.dtype))
        if np.iinfo(value.dtype).max > high:
            value = self.emit(Op.MIN, value, self.constant(high, value.dtype))
        return value

    def is_nan(self, value: Value) -> Value:
        """Whether a float is nan."""
        return self.emit(Op.NE, value, value)

    # ---- Blocks ---------------------------------------------------------------------------------

    @contextmanager
    def block(self) -> Iterator[Block]:
        """Operations emitted inside go to a new inner block; the caller sets its outputs."""
        scope = _Scope(Block())
        self._scopes.append(scope)
        try:
            yield scope.block
        finally:
            self._scopes.pop()

    @contextmanager
    def attempt(self) -> Iterator[Callable[[], None]]:
        """Yields a function that forgets all that was emitted since the beginning."""
        scope, operations = self._scopes[-1], self.operations
        length, known = len(scope.block.values), dict(scope.known)

        def forget() -> None:
            del scope.block.values[length:]
            scope.known = known
            self.operations = operations

        yield forget

    def branches(self, flags: Sequence[Value], blocks: Sequence[Block]) -> list[Value]:
        """Runs the block whose flag is set; its outputs are the results."""
        results: list[Value | None] = []
        varying: list[int] = []
        for i, outputs in enumerate(zip(*(block.outputs for block in blocks), strict=True)):
            # One value in all blocks comes from outside them.
            same = all(output is outputs[0] for output in outputs)
            results.append(outputs[0] if same else None)
            if results[-1] is None:
                varying.append(i)
        if varying:
            for block in blocks:
                block.outputs = tuple(block.outputs[i] for i in varying)
            value = self._append(Value(Op.BRANCHES, BOOL, tuple(flags), tuple(blocks)))
            for position, i in enumerate(varying):
                dtype = blocks[0].outputs[position].dtype
                results[i] = result = Value(Op.RESULT, dtype, (value,), position)
                self._scopes[-1].block.values.append(result)
        return [result for result in results if result is not None]

    def product(self, product: Product, args: Sequence[Value], dtype: np.dtype) -> list[Value]:
        """A matrix product as a loop; its entries in C order."""
        key = (Op.PRODUCT, dtype, product, *args)
        value = self._known(key)
        if value is None:
            value = self._append(Value(Op.PRODUCT, dtype, tuple(args), product))
            self._scopes[-1].known[key] = value
            results = [Value(Op.RESULT, dtype, (value,), i) for i in range(product.size)]
            self._scopes[-1].block.values.extend(results)
            self._products[value] = results
        return self._products[value]

    def loop(self, initial: Sequence[Value], loop: Loop) -> list[Value]:
        """Runs a loop; the results are its last carries."""
        value = self._append(Value(Op.LOOP, BOOL, tuple(initial), loop))
        results = [
            Value(Op.RESULT, carry.dtype, (value,), i) for i, carry in enumerate(loop.carries)
        ]
        self._scopes[-1].block.values.extend(results)
        return results


# ---- Simplification -----------------------------------------------------------------------------
#
# In a derivative an exact zero is structural: it comes from an entry of a Jacobian or a cotangent
# that is absent. Its product with anything is zero, also with a number that will turn out to be
# infinite. A zero that a user has written may be meant to become nan.


def _is(value: Value, number: int) -> bool:
    return value.op is Op.CONSTANT and bool(value.data == number)


def _add(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    if _is(x, 0):
        return y
    if _is(y, 0):
        return x
    if y.op is Op.NEG:
        return b.emit(Op.SUB, x, y.args[0])
    if x.op is Op.NEG:
        return b.emit(Op.SUB, y, x.args[0])
    return None


def _sub(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    if _is(y, 0):
        return x
    if _is(x, 0):
        return b.emit(Op.NEG, y)
    if y.op is Op.NEG:
        return b.emit(Op.ADD, x, y.args[0])
    if x is y and dtype.kind != "f":
        return b.constant(0, dtype)
    return None


def _mul(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    for one, other in ((x, y), (y, x)):
        if one.op is not Op.CONSTANT:
            continue
        if _is(one, 0) and (b.structural_zeros or dtype.kind != "f"):
            return b.constant(0, dtype)
        if _is(one, 1):
            return other
        if _is(one, -1):
            return b.emit(Op.NEG, other)
    if dtype.kind == "f" and x.op is Op.NEG and y.op is Op.NEG:
        return b.emit(Op.MUL, x.args[0], y.args[0])
    if x is y and x.op is Op.SUB:
        # Two bodies are equally far from each other, to the last bit.
        other_way = b.known(Op.SUB, dtype, *reversed(x.args))
        return None if other_way is None else b.known(Op.MUL, dtype, other_way, other_way)
    return None


def _div(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    if _is(y, 1):
        return x
    if dtype.kind != "f":
        return None
    if _is(x, 0) and b.structural_zeros:
        return b.constant(0, dtype)
    if _is(y, -1):
        return b.emit(Op.NEG, x)
    if y.op is Op.CONSTANT and np.isfinite(y.data) and y.data != 0:
        # The reciprocal of a power of two is exact, and so is the product with it.
        mantissa, exponent = math.frexp(float(y.data))
        if abs(mantissa) == 0.5 and abs(exponent) < 100:
            return b.emit(Op.MUL, x, b.constant(1 / float(y.data), dtype))
    return None


def _neg(b: Builder, dtype: np.dtype, x: Value) -> Value | None:
    if _is(x, 0):
        return b.constant(0, dtype)
    if x.op is Op.NEG:
        return x.args[0]
    return None


def _same(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    return x if x is y else None


def _and(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    if x is y:
        return x
    for one, other in ((x, y), (y, x)):
        if _is(one, 0):
            return one
        if dtype == BOOL and _is(one, 1):
            return other
    return None


def _or(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    if x is y:
        return x
    for one, other in ((x, y), (y, x)):
        if _is(one, 0):
            return other
        if dtype == BOOL and _is(one, 1):
            return one
    return None


def _xor(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    for one, other in ((x, y), (y, x)):
        if _is(one, 0):
            return other
        if dtype == BOOL and _is(one, 1):
            return b.emit(Op.NOT, other)
    return None


def _not(b: Builder, dtype: np.dtype, x: Value) -> Value | None:
    return x.args[0] if x.op is Op.NOT else None


def _select(
    b: Builder, dtype: np.dtype, flag: Value, on_true: Value, on_false: Value
) -> Value | None:
    if flag.op is Op.CONSTANT:
        return on_true if flag.data else on_false
    if on_true is on_false:
        return on_true
    if flag.op is Op.NOT:
        return b.select(flag.args[0], on_false, on_true)
    if dtype == BOOL:
        if _is(on_true, 1):
            return b.emit(Op.OR, flag, on_false)
        if _is(on_false, 0):
            return b.emit(Op.AND, flag, on_true)
        if _is(on_true, 0):
            return b.emit(Op.AND, b.emit(Op.NOT, flag), on_false)
        if _is(on_false, 1):
            return b.emit(Op.OR, b.emit(Op.NOT, flag), on_true)
    return None


def _not_equal(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    # `flag.astype(int) != 0` is how a predicate of `lax.cond` arrives.
    if x.op is Op.CONVERT and x.args[0].dtype == BOOL and _is(y, 0):
        return x.args[0]
    if x is y and x.dtype.kind != "f":
        return b.constant(False, BOOL)
    return None


def _equal(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    if x is y and x.dtype.kind != "f":
        return b.constant(True, BOOL)
    return None


def _is_finite(b: Builder, dtype: np.dtype, x: Value) -> Value | None:
    # What is nan unless a flag is set, as step control marks a step that has failed.
    if x.op is Op.SELECT and x.args[2].is_constant and not np.isfinite(x.args[2].data):
        return b.emit(Op.AND, x.args[0], b.emit(Op.IS_FINITE, x.args[1]))
    return None


def _power(b: Builder, dtype: np.dtype, x: Value, y: Value) -> Value | None:
    # An I controller raises the square of an error of order n to -1/(2 n).
    if not y.is_constant or not -1 / 2 <= y.data <= -1 / 20:
        return None
    root = round(-1 / float(y.data))
    if dtype.type(-1 / root) != y.data:
        return None
    return b.emit(Op.INVERSE_ROOT, x, data=root)


_SIMPLIFY: dict[Op, Callable[..., Value | None]] = {
    Op.ADD: _add,
    Op.SUB: _sub,
    Op.MUL: _mul,
    Op.DIV: _div,
    Op.NEG: _neg,
    Op.MIN: _same,
    Op.MAX: _same,
    Op.AND: _and,
    Op.OR: _or,
    Op.XOR: _xor,
    Op.NOT: _not,
    Op.SELECT: _select,
    Op.EQ: _equal,
    Op.NE: _not_equal,
    Op.IS_FINITE: _is_finite,
    Op.POWER: _power,
}
