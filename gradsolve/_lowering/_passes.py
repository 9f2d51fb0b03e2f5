"""Passes over the intermediate representation; each takes a function and returns a new one."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from ._ir import Block, Function, Loop, Op, Value, inner_blocks, object_array


def optimize(function: Function) -> Function:
    """All passes, in order."""
    return contract(remove_dead_code(function))


# ---- Dead code ----------------------------------------------------------------------------------


class _Liveness:
    """Which values, and which results of branches and loops, are needed."""

    def __init__(self) -> None:
        self.live: set[Value] = set()
        self._results: defaultdict[Value, set[int]] = defaultdict(set)

    def need(self, value: Value) -> None:
        self.live.add(value)
        if value.op is Op.RESULT:
            self._results[value.args[0]].add(value.data)

    def results(self, value: Value) -> list[int]:
        """The positions that are needed, of a branching or looping operation."""
        return sorted(self._results[value])

    def visit(self, block: Block) -> None:
        """Marks what the live values of a block need; definitions precede uses."""
        for value in reversed(block.values):
            if value not in self.live:
                continue
            if value.op is Op.BRANCHES:
                for inner in value.data:
                    for position in self.results(value):
                        self.need(inner.outputs[position])
                    self.visit(inner)
            elif value.op is Op.LOOP:
                self._visit_loop(value, value.data)
            for position, arg in enumerate(value.args):
                if value.op is not Op.LOOP or position in self._results[value]:
                    self.need(arg)

    def _visit_loop(self, value: Value, loop: Loop) -> None:
        # A carry is needed if its last value is, or if the condition or a needed carry reads it.
        needed = self._results[value]
        while True:
            before = len(needed)
            self.need(loop.condition.outputs[0])
            for position in sorted(needed):
                self.need(loop.body.outputs[position])
            self.visit(loop.body)
            self.visit(loop.condition)
            needed.update(carry.data for carry in loop.carries if carry in self.live)
            if len(needed) == before:
                return


def remove_dead_code(function: Function) -> Function:
    """Removes the operations and the carries that no output needs."""
    liveness = _Liveness()
    for output in function.outputs:
        for value in output.flat:
            liveness.need(value)
    liveness.visit(function.block)
    return _Copy(liveness).function(function)


class _Copy:
    """Copies a function, leaving out what is not live."""

    def __init__(self, liveness: _Liveness) -> None:
        self._liveness = liveness
        self._new: dict[Value, Value] = {}

    def function(self, function: Function) -> Function:
        block = self._block(function.block, None)
        return Function(
            function.inputs, tuple(self._array(output) for output in function.outputs), block
        )

    def _array(self, output: np.ndarray) -> np.ndarray:
        return object_array([self._of(value) for value in output.flat], output.shape)

    def _of(self, value: Value) -> Value:
        return self._new.get(value, value)

    def _block(self, block: Block, outputs: Sequence[int] | None) -> Block:
        copy = Block()
        for value in block.values:
            if value in self._liveness.live:
                new = self._value(value)
                self._new[value] = new
                copy.values.append(new)
        kept = range(len(block.outputs)) if outputs is None else outputs
        copy.outputs = tuple(self._of(block.outputs[position]) for position in kept)
        return copy

    def _value(self, value: Value) -> Value:
        args = tuple(self._of(arg) for arg in value.args)
        if value.op is Op.BRANCHES:
            kept = self._liveness.results(value)
            return Value(
                value.op, value.dtype, args, tuple(self._block(b, kept) for b in value.data)
            )
        if value.op is Op.LOOP:
            return self._loop(value, args)
        if value.op is Op.RESULT and value.args[0].op is not Op.PRODUCT:
            position = self._liveness.results(value.args[0]).index(value.data)
            return Value(value.op, value.dtype, args, position)
        if args == value.args:
            return value
        return Value(value.op, value.dtype, args, value.data)

    def _loop(self, value: Value, args: tuple[Value, ...]) -> Value:
        kept = self._liveness.results(value)
        loop: Loop = value.data
        carries = []
        for position, old in enumerate(kept):
            carry = loop.carries[old]
            self._new[carry] = Value(Op.CARRY, carry.dtype, (), position)
            carries.append(self._new[carry])
        condition = self._block(loop.condition, None)
        body = self._block(loop.body, kept)
        data = Loop(tuple(carries), condition, body)
        return Value(value.op, value.dtype, tuple(args[position] for position in kept), data)


# ---- Contraction --------------------------------------------------------------------------------


def contract(function: Function) -> Function:
    """Makes `a * b + c` one operation, rounded once, if nothing else needs the product.

    The compiler is told not to do this itself, where it would depend on the code around.
    """
    uses: Counter[Value] = Counter()
    for value in function.walk():
        uses.update(value.args)
        for block in inner_blocks(value):
            uses.update(block.outputs)
    for output in function.outputs:
        uses.update(output.flat)
    new: dict[Value, Value] = {}
    block = _contract_block(function.block, uses, new)
    outputs = tuple(
        object_array([new.get(value, value) for value in output.flat], output.shape)
        for output in function.outputs
    )
    return Function(function.inputs, outputs, block)


def _contract_block(block: Block, uses: Counter[Value], new: dict[Value, Value]) -> Block:
    products = {
        value
        for value in block.values
        if value.op is Op.MUL and value.dtype.kind == "f" and uses[value] == 1
    }
    contracted: dict[Value, tuple[Op, Value, Value]] = {}
    gone: set[Value] = set()
    for value in block.values:
        if value.op not in (Op.ADD, Op.SUB) or value.dtype.kind != "f":
            continue
        x, y = value.args
        if y in products:
            contracted[value] = (Op.FMA if value.op is Op.ADD else Op.FNMA, y, x)
            gone.add(y)
        elif x in products:
            contracted[value] = (Op.FMA if value.op is Op.ADD else Op.FMS, x, y)
            gone.add(x)
    copy = Block()
    for value in block.values:
        if value in gone:
            continue
        copied = _contracted(value, contracted.get(value), uses, new)
        if copied is not value:
            new[value] = copied
        copy.values.append(copied)
    copy.outputs = tuple(new.get(output, output) for output in block.outputs)
    return copy


def _contracted(
    value: Value,
    product: tuple[Op, Value, Value] | None,
    uses: Counter[Value],
    new: dict[Value, Value],
) -> Value:
    if product is not None:
        op, factor, other = product
        args = tuple(new.get(arg, arg) for arg in (*factor.args, other))
        return Value(op, value.dtype, args)
    data = value.data
    if value.op is Op.BRANCHES:
        data = tuple(_contract_block(block, uses, new) for block in value.data)
    elif value.op is Op.LOOP:
        loop: Loop = value.data
        condition = _contract_block(loop.condition, uses, new)
        data = Loop(loop.carries, condition, _contract_block(loop.body, uses, new))
    args = tuple(new.get(arg, arg) for arg in value.args)
    if args == value.args and data is value.data:
        return value
    return Value(value.op, value.dtype, args, data)
