"""Branches and loops."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax import lax

from .._arrays import MAX_SELECTED, Operand, together
from .._build import BOOL, Builder, checked_dtype
from .._errors import Refused, TooLargeError
from .._ir import Loop, Op, Value, object_array
from .._registry import AbstractContext, lowers
from .elementwise import collected

MAX_UNROLLED = 1000
"""A `while` whose number of iterations is known, and no larger than this, is unrolled if it then
has at most `MAX_UNROLLED_OPERATIONS`: what it indexes is then known too."""

MAX_UNROLLED_OPERATIONS = 2000


# ---- Branches -----------------------------------------------------------------------------------


@lowers(lax.cond_p)
def _cond(
    context: AbstractContext, index: Operand, *operands: Operand, branches: Sequence[Any]
) -> list[Operand]:
    b = context.builder
    which = index.value(b)
    if len(branches) == 1:
        return context.run(branches[0].jaxpr, branches[0].consts, operands)
    if which.is_constant:
        number = min(max(int(which.data), 0), len(branches) - 1)
        return context.run(branches[number].jaxpr, branches[number].consts, operands)
    blocks, results = [], []
    for branch in branches:
        with b.block() as block:
            results.append(context.run(branch.jaxpr, branch.consts, operands))
            block.outputs = _scalars(b, results[-1])
        blocks.append(block)
    merged = b.branches(_flags(b, which, len(branches)), blocks)
    return _arrays(merged, context.outputs)


def _flags(b: Builder, which: Value, count: int) -> list[Value]:
    """One flag per branch; an index outside belongs to the nearest branch."""
    if which.op is Op.CONVERT and which.args[0].dtype == BOOL:
        which = which.args[0]  # how the flag of `lax.cond` arrives
    if which.dtype == BOOL:
        return [b.emit(Op.NOT, which), which]
    number = lambda k: b.constant(k, which.dtype)
    return [
        b.emit(Op.LE, which, number(0)),
        *(b.emit(Op.EQ, which, number(k)) for k in range(1, count - 1)),
        b.emit(Op.GE, which, number(count - 1)),
    ]


def _scalars(b: Builder, operands: Sequence[Operand]) -> tuple[Value, ...]:
    return tuple(value for operand in operands for value in operand.values(b).flat)


def _arrays(values: Sequence[Value], like: Sequence[Any]) -> list[Operand]:
    """The inverse of `_scalars`, given the shapes and dtypes."""
    out, position = [], 0
    for struct in like:
        size = int(np.prod(struct.shape, dtype=int))
        entries = list(values[position : position + size])
        out.append(collected(entries, tuple(struct.shape), checked_dtype(struct.dtype)))
        position += size
    return out


# ---- Loops of unknown length --------------------------------------------------------------------


@lowers(lax.while_p)
def _while(
    context: AbstractContext,
    *operands: Operand,
    cond_nconsts: Any,
    cond_jaxpr: Any,
    body_nconsts: Any,
    body_jaxpr: Any,
) -> list[Operand]:
    cond_consts = operands[:cond_nconsts]
    body_consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
    initial = list(operands[cond_nconsts + body_nconsts :])
    loop = _WhileLoop(
        context.builder,
        lambda carry: context.run(cond_jaxpr.jaxpr, cond_jaxpr.consts, [*cond_consts, *carry]),
        lambda carry: context.run(body_jaxpr.jaxpr, body_jaxpr.consts, [*body_consts, *carry]),
    )
    unrolled = loop.unrolled(initial)
    return loop.looped(initial) if unrolled is None else unrolled


_Step = Callable[[list[Operand]], list[Operand]]


class _WhileLoop:
    """A loop, given what lowers its condition and its body for given carries."""

    def __init__(self, builder: Builder, condition: _Step, body: _Step) -> None:
        self._builder = builder
        self._condition = condition
        self._body = body

    def unrolled(self, carry: list[Operand]) -> list[Operand] | None:
        """The last carries, if the number of iterations is known."""
        b = self._builder
        with b.attempt() as forget:
            before = b.operations
            for _ in range(MAX_UNROLLED + 1):
                go_on = self._condition(carry)[0].value(b)
                if go_on.is_constant and not go_on.data:
                    return carry
                if not go_on.is_constant or b.operations - before > MAX_UNROLLED_OPERATIONS:
                    break
                carry = self._body(carry)
            forget()
        return None

    def looped(self, initial: list[Operand]) -> list[Operand]:
        """The last carries of a loop at run time.

        A carry that the body hands on unchanged is no carry: it may be a table, which stays in
        memory, or a number that makes other operations vanish. Which ones these are is known only
        after lowering the body, so it is lowered again without them.
        """
        fixed = [_is_table(operand) for operand in initial]
        while True:
            loop, carries, found = self._lowered(initial, fixed)
            if found == fixed:
                break
            fixed = found
        start = [operand for operand, keep in zip(initial, fixed, strict=True) if not keep]
        b = self._builder
        last = iter(b.loop(_scalars(b, start), loop))
        return [
            operand
            if keep
            else collected([next(last) for _ in carry.entries.flat], carry.shape, carry.dtype)
            for operand, carry, keep in zip(initial, carries, fixed, strict=True)
        ]

    def _lowered(
        self, initial: list[Operand], fixed: list[bool]
    ) -> tuple[Loop, list[Operand], list[bool]]:
        """The loop with all carries but the fixed ones, and which the body hands on unchanged."""
        b = self._builder
        moving = itertools.count()
        carries = [
            operand if keep else _carry(operand, moving)
            for operand, keep in zip(initial, fixed, strict=True)
        ]
        with b.block() as condition:
            condition.outputs = (self._condition(carries)[0].value(b),)
        with b.block() as body:
            new = self._body(carries)
            found = [_is_same(*pair) for pair in zip(carries, new, strict=True)]
            for operand, keep, same in zip(initial, fixed, found, strict=True):
                if keep and not same and _is_table(operand):
                    raise Refused(
                        f"changes an array of {operand.entries.size} entries from iteration to "
                        f"iteration, which has a C++ lowering up to {MAX_SELECTED} entries"
                    )
            # A number that changes only where another was taken for a carry is fixed by now.
            found = [keep or same for keep, same in zip(fixed, found, strict=True)]
            changed = [one for one, keep in zip(new, fixed, strict=True) if not keep]
            body.outputs = _scalars(b, changed)
        flat = [carry for carry, keep in zip(carries, fixed, strict=True) if not keep]
        return Loop(_scalars(b, flat), condition, body), carries, found


def _is_table(operand: Operand) -> bool:
    return operand.entries.size > MAX_SELECTED


def _carry(operand: Operand, positions: Iterator[int]) -> Operand:
    dtype = checked_dtype(operand.dtype)
    entries = [Value(Op.CARRY, dtype, (), next(positions)) for _ in operand.entries.flat]
    return Operand(object_array(entries, operand.shape), dtype)


def _is_same(one: Operand, other: Operand) -> bool:
    if one is other or (one.entries is other.entries and one.leaf is other.leaf):
        return True
    return (
        one.entries.dtype == object
        and other.entries.dtype == object
        and all(x is y for x, y in zip(one.entries.flat, other.entries.flat, strict=True))
    )


# ---- Loops of known length ----------------------------------------------------------------------


@lowers(lax.scan_p)
def _scan(
    context: AbstractContext,
    *operands: Operand,
    length: Any,
    jaxpr: Any,
    reverse: bool,
    num_consts: Any = None,
    num_carry: Any = None,
    ft_in: Any = None,
    ft_out: Any = None,
    linear: Any = None,
    unroll: Any = None,
    _split_transpose: Any = None,
) -> list[Operand]:
    del linear, unroll, _split_transpose
    b = context.builder
    if num_consts is None or num_carry is None:
        # How JAX 0.12 writes the two numbers.
        consts_tree, carry_tree, _ = ft_in.unpack()
        num_consts, num_carry = len(consts_tree), len(carry_tree)
    consts, carry = operands[:num_consts], list(operands[num_consts : num_consts + num_carry])
    sequences = operands[num_consts + num_carry :]
    if length > b.max_operations:
        # Even iterations of which nothing is left take their time.
        raise Refused(
            f"has {length} iterations, more than the {b.max_operations} scalar operations that "
            "are unrolled",
            TooLargeError,
        )
    before, columns = b.operations, []
    for done, i in enumerate(reversed(range(length)) if reverse else range(length)):
        entries = [sequence.moved(lambda entries, i=i: entries[i]) for sequence in sequences]
        results = context.run(jaxpr.jaxpr, jaxpr.consts, [*consts, *carry, *entries])
        carry = results[:num_carry]
        columns.append(results[num_carry:])
        # Says so early: the operations of one iteration tell those of all.
        expected = (b.operations - before) * (length / (done + 1))
        if done == 0 and expected > 4 * b.max_operations:
            raise Refused(
                f"has about {expected:.0f} scalar operations when its {length} iterations are "
                f"unrolled, more than {b.max_operations}",
                TooLargeError,
            )
    if reverse:
        columns.reverse()
    stacked = [
        together(b, column, lambda parts: np.stack(parts)) for column in zip(*columns, strict=True)
    ]
    if not columns:
        stacked = [
            Operand(np.zeros(output.shape, output.dtype), output.dtype)
            for output in context.outputs[num_carry:]
        ]
    return [*carry, *stacked]
