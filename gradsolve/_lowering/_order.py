"""The order of operations, where it decides how many numbers have to be kept at once.

JAX traces a field array by array: every difference, then every square, and so on. Between pairs of
bodies, that keeps all pairs alive from the first line to the last, and a compiler follows the text
more closely than one hopes, since the slow path of each division ends a straight line of code.
Going down from one output after the other finishes with a pair before the next is begun.
"""

from collections.abc import Iterator, Sequence

from ._calls import joined
from ._ir import Block, Function, Op, Value, inner_blocks

# What a thread of a GPU has: 255 registers of 32 bits. What fits stays as it was traced, which is
# the order that a reader knows, and leaves neighbours that do not wait for each other.
BYTES_IN_REGISTERS = 255 * 4

Unit = list[Value]
"""Operations that stay together."""


def keep_few_alive(function: Function, called: frozenset[Op] = frozenset()) -> Function:
    """Puts the operations into an order that keeps fewer values, if they are too many to be kept.

    Results do not depend on the order, to the last bit. Functions that are `called` stay together
    where several calls can be one.
    """
    outputs = [value for output in function.outputs for value in output.flat]
    units = units_of(function.block, called)
    most = most_alive(units, outputs)
    if most <= BYTES_IN_REGISTERS:
        return function
    ordered = _from_outputs(units, outputs)
    if most_alive(ordered, outputs) >= most:
        return function
    return in_order(function, ordered)


def in_order(function: Function, units: Sequence[Unit]) -> Function:
    """The function with its operations in another order."""
    block = Block([value for unit in units for value in unit], function.block.outputs)
    return Function(function.inputs, function.outputs, block)


def units_of(block: Block, called: frozenset[Op]) -> list[Unit]:
    """What stays together: an operation with its results, which lie behind it, or joined calls."""
    units: list[Unit] = []
    position = 0
    while position < len(block.values):
        value = block.values[position]
        unit = list(joined(block.values, position, called)) or [value]
        if value.op is Op.RESULT:
            units[-1].append(value)
        else:
            units.append(unit)
        position += len(unit)
    return units


def used(unit: Unit) -> Iterator[Value]:
    """What the operations of a unit and of the blocks inside read."""
    for value in unit:
        yield from value.args
        for block in inner_blocks(value):
            yield from used(block.values)
            yield from block.outputs


def places_and_needs(units: Sequence[Unit]) -> tuple[dict[Value, int], list[list[int]]]:
    """The place of each value's unit, and for each unit the places of those that it reads."""
    place = {value: position for position, unit in enumerate(units) for value in unit}
    needs = [
        [
            at
            for at in dict.fromkeys(place.get(value, position) for value in used(unit))
            if at != position
        ]
        for position, unit in enumerate(units)
    ]
    return place, needs


def most_alive(units: Sequence[Unit], outputs: Sequence[Value]) -> int:
    """The most bytes of values that are alive at once; outputs are kept to the end."""
    last_use = dict.fromkeys(outputs, len(units))
    for position in reversed(range(len(units))):
        for value in used(units[position]):
            last_use.setdefault(value, position)
    alive = most = 0
    defined: set[Value] = set()
    for position, unit in enumerate(units):
        new = [value for value in unit if last_use.get(value, position) > position]
        defined.update(new)
        alive += sum(value.dtype.itemsize for value in new)
        most = max(most, alive)
        for value in dict.fromkeys(used(unit)):
            if value in defined and last_use[value] == position:
                alive -= value.dtype.itemsize
    return most


def _from_outputs(units: Sequence[Unit], outputs: Sequence[Value]) -> list[Unit]:
    """Each output's operations at a stretch; of two operands first the one that needs more.

    The order of Sethi and Ullman, *The Generation of Optimal Code for Arithmetic Expressions*,
    Journal of the ACM 17 (1970), which is optimal where every value is used once.
    """
    place, needs = places_and_needs(units)
    size = [1] * len(units)
    for position, before in enumerate(needs):
        before.sort(key=lambda at: -size[at])
        size[position] = max([1, *(size[at] + kept for kept, at in enumerate(before))])
    roots = [place[value] for value in outputs if value in place]
    return [units[position] for position in _depth_first([*roots, *range(len(units))], needs)]


def _depth_first(roots: Sequence[int], needs: Sequence[Sequence[int]]) -> list[int]:
    order: list[int] = []
    done: set[int] = set()
    for root in roots:
        pending = [root]
        while pending:
            position = pending[-1]
            missing = next((at for at in needs[position] if at not in done), None)
            if missing is not None:
                pending.append(missing)
                continue
            pending.pop()
            if position not in done:
                done.add(position)
                order.append(position)
    return order
