"""Arguments of a kernel: an array of 64-bit words, as the structures in `csrc/gs/arguments.h`.

All their members are pointers or 64-bit integers, so a structure is a list of words: counts that
are known when the call is traced, and addresses that are known when it runs.
"""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass
class ArgumentList:
    """Collects the words of a structure, in its order, and the arrays behind the addresses."""

    words: list[int] = dataclasses.field(default_factory=list)
    inputs: list[Any] = dataclasses.field(default_factory=list)
    input_slots: list[int] = dataclasses.field(default_factory=list)
    outputs: list[Any] = dataclasses.field(default_factory=list)
    output_slots: list[int] = dataclasses.field(default_factory=list)

    def count(self, value: int) -> None:
        """A number."""
        self.words.append(value)

    def read(self, array: Any) -> None:
        """The address of an array that is read, null for `None`."""
        if array is not None:
            self.inputs.append(array)
            self.input_slots.append(len(self.words))
        self.words.append(0)

    def write(self, like: Any) -> None:
        """The address of an array that is written, null for `None`."""
        if like is not None:
            self.outputs.append(like)
            self.output_slots.append(len(self.words))
        self.words.append(0)

    def times(self, times: Any, lanes: int) -> None:
        """Times that all trajectories share, or one per trajectory: as a leaf; `None` for none."""
        self.read(times)
        self.count(int(times is not None and times.shape[-1] == lanes))

    def leaves(self, leaves: Sequence[Any], is_lane: Sequence[bool]) -> None:
        """Leaves, each with a flag that says whether it has an entry per trajectory."""
        for leaf, lane in zip(leaves, is_lane, strict=True):
            self.read(leaf)
            self.count(int(lane))
        self._at_least_one(leaves)

    def leaf_cotangents(self, likes: Sequence[Any], is_lane: Sequence[bool]) -> None:
        """The same for cotangents that are written."""
        for like, lane in zip(likes, is_lane, strict=True):
            self.write(like)
            self.count(int(lane))
        self._at_least_one(likes)

    def _at_least_one(self, leaves: Sequence[Any]) -> None:
        if not leaves:  # C++ has no arrays of length zero
            self.words += [0, 0]


def pack(arguments: ArgumentList, addresses: Sequence[int]) -> bytes:
    """The structure; addresses of the outputs come first."""
    words = list(arguments.words)
    slots = (*arguments.output_slots, *arguments.input_slots)
    for slot, address in zip(slots, addresses, strict=True):
        words[slot] = address
    return struct.pack(f"={len(words)}q", *words)
