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


class Packer:
    """Puts addresses into their places; made once per traced call, used in every launch."""

    def __init__(self, arguments: ArgumentList) -> None:
        self._words = tuple(arguments.words)
        self._slots = (*arguments.output_slots, *arguments.input_slots)
        self._pack = struct.Struct(f"={len(self._words)}q").pack

    def __call__(self, addresses: Sequence[int]) -> bytes:
        """The structure; addresses of the outputs come first."""
        words = list(self._words)
        for slot, address in zip(self._slots, addresses, strict=True):
            words[slot] = address
        return self._pack(*words)
