"""Where the outputs of a lowered function go."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._ir import Function, Op, Product, Value, inner_blocks


@dataclass(frozen=True)
class Sink:
    """Where an entry of an output goes.

    - `array`: the C++ text of something that can be assigned to, or of an array of such things.
    - `index`: the place in the array.
    - `accumulate`: whether the entry is added to what is there.
    """

    array: str
    index: int | None = None
    accumulate: bool = False

    @property
    def target(self) -> str:
        """The C++ text of what is assigned to."""
        return self.array if self.index is None else f"{self.array}[{self.index}]"


@dataclass(frozen=True)
class Sum:
    """A whole matrix product, perhaps transposed, that is added to consecutive entries."""

    owner: Value
    product: Product


def stores_of(wanted: Sequence[tuple[Value, Sink]]) -> list[tuple[Value | Sum, Sink]]:
    """The values and where they go; a product that is added as a whole is one of them."""
    out: list[tuple[Value | Sum, Sink]] = []
    position = 0
    while position < len(wanted):
        value, sink = wanted[position]
        owner = value.args[0] if value.op is Op.RESULT else None
        total = None
        if owner is not None and owner.op is Op.PRODUCT and sink.accumulate:
            total = _whole(owner, wanted[position : position + owner.data.size])
        out.append((value, sink) if total is None else (total, sink))
        position += 1 if total is None else total.product.size
    return out


def _whole(owner: Value, wanted: Sequence[tuple[Value, Sink]]) -> Sum | None:
    first = wanted[0][1]
    if first.index is None:
        return None
    targets = [Sink(first.array, first.index + i, True) for i in range(owner.data.size)]
    if [sink for _, sink in wanted] != targets:
        return None
    if any(value.op is not Op.RESULT or value.args[0] is not owner for value, _ in wanted):
        return None
    order = np.array([value.data for value, _ in wanted])
    places = np.arange(owner.data.size).reshape(owner.data.rows, owner.data.columns)
    for product, straight in ((owner.data, places), (owner.data.transposed, places.T)):
        if np.array_equal(order, straight.ravel()):
            return Sum(owner, product)
    return None


def only_added(function: Function, stores: Sequence[tuple[Value | Sum, Sink]]) -> set[Value]:
    """Products that are needed for sums alone: they are not kept."""
    added = {total.owner for total, _ in stores if isinstance(total, Sum)}
    used = [value for value, _ in stores if isinstance(value, Value)]
    for value in function.walk():
        if value.op is not Op.RESULT:
            used.extend(value.args)
        for block in inner_blocks(value):
            used.extend(block.outputs)
    return added - {value.args[0] for value in used if value.op is Op.RESULT}
