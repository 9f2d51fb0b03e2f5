"""Quotients and square roots of doubles: on a GPU a dozen instructions each, and a branch.

`csrc/gs/quotients.h` has two ways around the branch: a function without any, and several quotients
that share one, which overlap. The latter lie side by side in the text.
"""

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from ._ir import Function, Op, Value
from ._order import BYTES_IN_REGISTERS, Unit, in_order, most_alive, places_and_needs, units_of

# Each keeps its operands and its steps in registers meanwhile, so that there is an end to it. Four
# is what was measured.
_TOGETHER = 4
# What these give may differ from stage to stage; so may what depends on it.
_CHANGING = frozenset({Op.ARGUMENT, Op.CARRY, Op.LOAD, Op.BRANCHES, Op.LOOP})


def is_quotient(value: Value) -> bool:
    """Whether it is a quotient or a square root of doubles."""
    return value.op in (Op.DIV, Op.SQRT) and value.dtype == np.float64


def has_quotients(function: Function) -> bool:
    """Whether quotients or square roots of doubles are computed."""
    return any(is_quotient(value) for value in function.walk())


def changing_quotients(function: Function) -> frozenset[Value]:
    """The quotients that every stage computes anew.

    A compiler takes those of parameters alone out of the loop over the steps, if they stand alone.
    """
    changing: set[Value] = set()
    for value in function.walk():
        if any(other.op in _CHANGING or other in changing for other in (value, *value.args)):
            changing.add(value)
    return frozenset(filter(is_quotient, changing))


def quotients_together(
    function: Function, quotients: AbstractSet[Value], called: frozenset[Op] = frozenset()
) -> Function:
    """Puts those of the `quotients` side by side that do not need each other, four at a time.

    Otherwise the operations stay in order, as far as they can. Results do not depend on it, to the
    last bit. `called` as in `keep_few_alive`.
    """
    if len(quotients) < 2:
        return function
    units = units_of(function.block, called)
    order = _Order(units, quotients)
    for place in range(len(units)):
        order.add(place)
    if order.places == sorted(order.places):
        return function
    ordered = [units[place] for place in order.places]
    outputs = [value for output in function.outputs for value in output.flat]
    if most_alive(ordered, outputs) > BYTES_IN_REGISTERS:
        return function
    return in_order(function, ordered)


class _Order:
    """The places of units in a new order, to which they are added one after the other."""

    def __init__(self, units: Sequence[Unit], quotients: AbstractSet[Value]) -> None:
        self.places: list[int] = []
        self._added: set[int] = set()
        _, needs = places_and_needs(units)
        self._needs = [set(places) for places in needs]
        # Alike are operations of one kind that need the same number of quotients one after the
        # other, so that none of them needs another.
        depths: list[int] = []
        self._alike: dict[int, list[int]] = {}
        groups: defaultdict[tuple[int, Op], list[int]] = defaultdict(list)
        for place, unit in enumerate(units):
            depths.append(
                max((depths[at] + (at in self._alike) for at in self._needs[place]), default=0)
            )
            if unit[0] in quotients:
                group = groups[depths[place], unit[0].op]
                group.append(place)
                self._alike[place] = group

    def add(self, place: int) -> None:
        """Adds a unit, behind those that it needs, and quotients that are alike next to it."""
        if place in self._added:
            return
        alike = self._alike.get(place, [place])
        group = [at for at in alike if at >= place and at not in self._added][:_TOGETHER]
        for at in self._missing(group):
            self.add(at)
        self.places += group
        self._added.update(group)

    def _missing(self, group: Sequence[int]) -> list[int]:
        """What the units of a group need and is not there yet, in order."""
        missing: set[int] = set()
        pending = list(group)
        while pending:
            new = self._needs[pending.pop()] - self._added - missing
            missing |= new
            pending += new
        return sorted(missing)


def joined_quotients(
    values: Sequence[Value], position: int, quotients: AbstractSet[Value]
) -> Sequence[Value]:
    """Those of the `quotients` from here on that can be one operation; or nothing."""
    first, group = values[position], []
    for value in values[position : position + _TOGETHER]:
        alike = value in quotients and value.op is first.op
        if not alike or any(arg in group for arg in value.args):
            break
        group.append(value)
    return group if len(group) > 1 else []
