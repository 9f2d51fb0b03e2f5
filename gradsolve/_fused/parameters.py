"""The leaves of a problem as its functions see them: the structure `Parameters`."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._lowering import Function
from .functions import identifier

# A leaf of which at most this many entries are read lives in registers, as long as there are not
# too many of those altogether; others are read where they are used.
_RESIDENT_ENTRIES = 16
_RESIDENT_IN_ALL = 48

LANE_TYPES = {
    "bool": "Mask",
    "int32": "I32",
    "int64": "I64",
    "uint32": "U32",
    "uint64": "U64",
    "float32": "F32",
    "float64": "F64",
}
"""The types of a lane's numbers in C++."""

_STORED_TYPES = {
    "bool": "uint8_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "float32": "float",
    "float64": "double",
}


class Leaves:
    """Where the functions of a problem find the entries of its leaves."""

    def __init__(
        self, names: Sequence[str], structs: Sequence[Any], functions: Sequence[Function]
    ) -> None:
        self._structs = structs
        self._names = _unique([identifier(name) for name in names])
        entries = sorted({entry for function in functions for entry in function.leaf_entries()})
        arrays = {leaf for function in functions for leaf in function.leaf_loads()}
        per_leaf: dict[int, list[int]] = {}
        for leaf, entry in entries:
            per_leaf.setdefault(leaf, []).append(entry)
        self._resident: dict[int, list[int]] = {}
        room = _RESIDENT_IN_ALL
        for leaf, used in per_leaf.items():
            if len(used) <= min(_RESIDENT_ENTRIES, room):
                self._resident[leaf] = used
                room -= len(used)
        self._in_memory = [leaf for leaf in per_leaf if leaf not in self._resident]
        self._views = sorted(arrays)

    def entry(self, leaf: int, entry: int) -> str:
        """The text of an entry that is read at a fixed place."""
        if leaf not in self._resident:
            return f"p.{self._names[leaf]}[{entry}]"
        return f"p.{self._resident_name(leaf, entry)}"

    def _kind(self, leaf: int) -> str:
        """The lane type and the stored type of a leaf."""
        dtype = np.dtype(self._structs[leaf].dtype).name
        return f"{LANE_TYPES[dtype]}, {_STORED_TYPES[dtype]}"

    def _size(self, leaf: int) -> int:
        return math.prod(self._structs[leaf].shape)

    def _resident_name(self, leaf: int, entry: int) -> str:
        name = self._names[leaf]
        return name if self._structs[leaf].shape == () else f"{name}_{entry}"

    def array(self, leaf: int) -> str:
        """The text of a leaf that is read at a computed place."""
        return f"p.{self._names[leaf]}_array"

    def structure(self) -> str:
        """The definition of `Parameters`."""
        members, loads = [], []
        for leaf, used in self._resident.items():
            kind = self._kind(leaf)
            view = f"gs::LeafView<{kind}>(leaves[{leaf}], lanes)"
            for entry in used:
                name = self._resident_name(leaf, entry)
                members.append(f"  {kind.partition(',')[0]} {name};")
                loads.append(f"{name}({view}[{entry}])")
        for leaf in self._in_memory:
            name, kind, size = self._names[leaf], self._kind(leaf), self._size(leaf)
            members.append(f"  gs::LeafEntries<{kind}, {size}> {name};")
            loads.append(f"{name}(leaves[{leaf}], lanes)")
        for leaf in self._views:
            name, kind = f"{self._names[leaf]}_array", self._kind(leaf)
            members.append(f"  gs::LeafView<{kind}> {name};")
            loads.append(f"{name}(leaves[{leaf}], lanes)")
        initialisers = "".join(
            f"\n      {':' if i == 0 else ','} {load}" for i, load in enumerate(loads)
        )
        return "\n".join(
            [
                "struct Parameters {",
                *members,
                "",
                "  GS_FN Parameters(const gs::LeafArgument* leaves, const gs::Lanes& lanes)"
                f"{initialisers} {{",
                *(["    (void)leaves, (void)lanes;"] if not loads else []),
                "  }",
                "};\n",
            ]
        )


def _unique(names: Sequence[str]) -> list[str]:
    """Names of members: no two alike, and none like another with the number of an entry behind."""
    out: list[str] = []
    for i, name in enumerate(names):
        base = re.sub(r"_(\d+|array)$", "", name)
        clashes = not name or names.count(name) > 1 or (base != name and base in names)
        out.append(f"leaf{i}_{name}" if clashes else name)
    return out
