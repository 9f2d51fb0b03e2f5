"""What a CUDA kernel takes of the processor, read off its binary."""

import dataclasses
import struct
from collections.abc import Iterator
from typing import NamedTuple

# A cubin is a 64-bit little-endian ELF file. Its section `.nv.info` is a list of attributes, whose
# numbers NVIDIA does not document; they are those of NVRTC 12 and 13, and the tests compare them
# with what the assembler prints.
_REGISTER_COUNT = 0x2F
_STACK_SIZE = 0x12  # of an entry point, with all that it calls
_SIZED_VALUE = 4  # the format of an attribute whose last two bytes are the length of its value
_ENTRY_POINT = 0x10  # the bit of a symbol's `st_other` that tells kernels from functions
_NO_SECTION = 0


@dataclasses.dataclass(frozen=True)
class Resources:
    """What one thread of a kernel takes.

    **Arguments:**

    - `registers`: number of 32-bit registers.
    - `local_bytes`: local memory, which lies in slow memory: spilled registers, arrays that are
      indexed by variables, and frames of called functions. A double-precision `sin`, `cos` or `tan`
      has a frame of 40 bytes for huge arguments.
    """

    registers: int
    local_bytes: int


def cubin_resources(cubin: bytes) -> dict[str, Resources]:
    """Resources of each kernel, by its (mangled) name.

    **Raises:**

    `ValueError` if the bytes are not a cubin of a known layout.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"A CUDA binary is a 64-bit ELF file, which does not begin {cubin[:6]!r}.")
    try:
        return _read(cubin)
    except (struct.error, KeyError, IndexError, ValueError) as error:
        raise ValueError("These bytes are no CUDA binary of a known layout.") from error


class _Section(NamedTuple):
    offset: int
    size: int
    link: int
    entry_size: int


def _read(cubin: bytes) -> dict[str, Resources]:
    sections, by_name = _sections(cubin)
    symbols = list(_symbols(cubin, by_name[".symtab"], sections))
    registers: dict[int, int] = {}
    stack: dict[int, int] = {}
    for attribute, value in _attributes(cubin, by_name[".nv.info"]):
        if attribute in (_REGISTER_COUNT, _STACK_SIZE):
            symbol, number = struct.unpack("<II", value)
            (registers if attribute == _REGISTER_COUNT else stack)[symbol] = number
    return {
        name: Resources(registers[index], stack[index])
        for index, (name, other) in enumerate(symbols)
        if other & _ENTRY_POINT
    }


def _sections(cubin: bytes) -> tuple[list[_Section], dict[str, _Section]]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    header_size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = []
    name_offsets = []
    for index in range(count):
        name, _, _, _, offset, size, link, _, _, entry_size = struct.unpack_from(
            "<IIQQQQIIQQ", cubin, table + index * header_size
        )
        sections.append(_Section(offset, size, link, entry_size))
        name_offsets.append(name)
    start = sections[names].offset
    named = {_text(cubin, start + name): s for name, s in zip(name_offsets, sections, strict=True)}
    return sections, named


def _symbols(cubin: bytes, table: _Section, sections: list[_Section]) -> Iterator[tuple[str, int]]:
    """Name and `st_other` of each symbol; 0 for those that are not defined here."""
    names = sections[table.link].offset
    for offset in range(table.offset, table.offset + table.size, table.entry_size):
        name, _, other, section = struct.unpack_from("<IBBH", cubin, offset)
        yield _text(cubin, names + name), other if section != _NO_SECTION else 0


def _attributes(cubin: bytes, section: _Section) -> Iterator[tuple[int, bytes]]:
    offset = section.offset
    while offset < section.offset + section.size:
        layout, attribute, size = struct.unpack_from("<BBH", cubin, offset)
        offset += 4
        if layout == _SIZED_VALUE:
            yield attribute, cubin[offset : offset + size]
            offset += size


def _text(cubin: bytes, offset: int) -> str:
    return cubin[offset : cubin.index(b"\0", offset)].decode()
