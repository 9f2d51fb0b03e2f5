"""The intermediate representation: static single assignment of scalars, in nested blocks.

A `Block` lists the operations of straight-line code in order of definition. Branches and loops are
operations that own blocks; an inner block may use the values of the blocks around it, but not the
other way round: what leaves an inner block leaves through its `outputs`. Constants, arguments and
entries of leaves belong to no block.
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Op(enum.Enum):
    """What a value is or how it is computed from `Value.args`."""

    # Values that belong to no block.
    CONSTANT = enum.auto()  # data: a NumPy scalar
    ARGUMENT = enum.auto()  # data: (name, index or None)
    ENTRY = enum.auto()  # data: (leaf, flat entry)
    CARRY = enum.auto()  # data: position among the carries of its loop

    # Arithmetic.
    ADD = enum.auto()
    SUB = enum.auto()
    MUL = enum.auto()
    DIV = enum.auto()
    REM = enum.auto()
    NEG = enum.auto()
    ABS = enum.auto()
    SIGN = enum.auto()
    MIN = enum.auto()
    MAX = enum.auto()
    MULHI = enum.auto()  # the upper half of an integer product
    FMA = enum.auto()  # a * b + c, rounded once
    FMS = enum.auto()  # a * b - c
    FNMA = enum.auto()  # c - a * b

    # Comparisons. The last three order all floats: -nan < -inf < ... < -0 < 0 < ... < inf < nan.
    EQ = enum.auto()
    NE = enum.auto()
    LT = enum.auto()
    LE = enum.auto()
    GT = enum.auto()
    GE = enum.auto()
    EQ_TOTAL = enum.auto()
    LT_TOTAL = enum.auto()
    LE_TOTAL = enum.auto()

    # Logic, on flags and on the bits of integers.
    AND = enum.auto()
    OR = enum.auto()
    XOR = enum.auto()
    NOT = enum.auto()
    SHIFT_LEFT = enum.auto()
    SHIFT_RIGHT_ARITHMETIC = enum.auto()
    SHIFT_RIGHT_LOGICAL = enum.auto()
    POPULATION_COUNT = enum.auto()
    CLZ = enum.auto()

    SELECT = enum.auto()  # flag, value if true, value if false
    CONVERT = enum.auto()
    BITCAST = enum.auto()
    REDUCE_PRECISION = enum.auto()  # data: (exponent bits, mantissa bits)

    # Elementary functions of one number.
    ACOS = enum.auto()
    ACOSH = enum.auto()
    ASIN = enum.auto()
    ASINH = enum.auto()
    ATAN = enum.auto()
    ATANH = enum.auto()
    CBRT = enum.auto()
    CEIL = enum.auto()
    COS = enum.auto()
    COSH = enum.auto()
    DIGAMMA = enum.auto()
    ERF = enum.auto()
    ERFC = enum.auto()
    ERF_INV = enum.auto()
    EXP = enum.auto()
    EXP2 = enum.auto()
    EXPM1 = enum.auto()
    FLOOR = enum.auto()
    IS_FINITE = enum.auto()
    LGAMMA = enum.auto()
    LOG = enum.auto()
    LOG1P = enum.auto()
    LOGISTIC = enum.auto()
    ROUND_AWAY = enum.auto()  # halves away from zero
    ROUND_EVEN = enum.auto()  # halves to even
    RSQRT = enum.auto()
    SIN = enum.auto()
    SINH = enum.auto()
    SQRT = enum.auto()
    TAN = enum.auto()
    TANH = enum.auto()

    # Elementary functions of two numbers.
    ATAN2 = enum.auto()
    NEXTAFTER = enum.auto()
    POW = enum.auto()
    POWER = enum.auto()  # of a positive number, for step sizes
    INVERSE_ROOT = enum.auto()  # data: n; x^(-1/n) of a positive number, for step sizes

    # Memory and control.
    LOAD = enum.auto()  # data: leaf; args: a flat entry within the leaf, known to be inside
    LOOKUP = enum.auto()  # data: Table; args: a flat entry, known to be inside
    BRANCHES = enum.auto()  # data: tuple[Block, ...]; args: one flag per block, exactly one is set
    LOOP = enum.auto()  # data: Loop; args: the initial values of its carries
    PRODUCT = enum.auto()  # data: Product; args: the entries of its operands that are computed
    RESULT = enum.auto()  # data: position; args: the BRANCHES, LOOP or PRODUCT

    # Members are unique objects; the hash of `Enum` would be computed from their name, slowly.
    __hash__ = object.__hash__


@dataclass(eq=False, slots=True, repr=False)
class Value:
    """A scalar and how it is computed; two values are equal only if they are the same object."""

    op: Op
    dtype: np.dtype
    args: tuple["Value", ...] = ()
    data: Any = None

    def __repr__(self) -> str:
        arguments = ", ".join(arg.op.name.lower() for arg in self.args)
        data = f", {self.data!r}" if isinstance(self.data, tuple | int | np.generic) else ""
        return f"{self.op.name.lower()}({arguments}{data})"

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self.op is Op.CONSTANT


@dataclass(eq=False, slots=True)
class Table:
    """Numbers that are read at a computed place; equal tables of a function are one object."""

    numbers: np.ndarray


@dataclass(eq=False, slots=True)
class Block:
    """Straight-line code: values in order of definition, and those that leave the block."""

    values: list[Value] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()


@dataclass(eq=False, slots=True)
class Loop:
    """`while (condition) carries = body`; each lane stops by itself.

    - `carries`: the values that both blocks may read.
    - `condition`: its single output is a flag.
    - `body`: its outputs are the next carries.
    """

    carries: tuple[Value, ...]
    condition: Block
    body: Block


@dataclass(frozen=True)
class LeafMatrix:
    """A matrix in a leaf: entry `(row, k)` is at `start + row * strides[0] + k * strides[1]`."""

    leaf: int
    start: int
    strides: tuple[int, int]


@dataclass(frozen=True)
class Product:
    """A matrix product that is a loop at run time: `out[i, j] = sum_k left[i, k] right[j, k]`.

    - `rows`, `columns`, `inner`: the number of values of `i`, `j` and `k`.
    - `left`, `right`: where an operand lies in memory, or `None` if its entries are arguments of
        the operation, in C order, the left operand's first.
    """

    rows: int
    columns: int
    inner: int
    left: LeafMatrix | None
    right: LeafMatrix | None

    @property
    def size(self) -> int:
        """The number of entries of the result."""
        return self.rows * self.columns

    def matrices(self) -> tuple[LeafMatrix, ...]:
        """The operands that lie in memory."""
        return tuple(operand for operand in (self.left, self.right) if operand is not None)

    @property
    def transposed(self) -> "Product":
        """The same with rows and columns exchanged."""
        return Product(self.columns, self.rows, self.inner, self.right, self.left)


def inner_blocks(value: Value) -> tuple[Block, ...]:
    """The blocks that a branching or looping operation owns."""
    if value.op is Op.BRANCHES:
        return value.data
    if value.op is Op.LOOP:
        return (value.data.condition, value.data.body)
    return ()


@dataclass(frozen=True)
class Leaf:
    """An array in memory that is read where it is used: a parameter or a captured table."""

    index: int
    shape: tuple[int, ...]
    dtype: np.dtype


Input = Leaf | str
"""A leaf, or the name of a C++ argument."""


@dataclass(frozen=True, eq=False)
class Function:
    """A lowered function.

    - `inputs`: as they were given to `lower`.
    - `outputs`: one object array of values per output of the jaxpr.
    - `block`: the operations that the outputs need.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[np.ndarray, ...]
    block: Block

    @property
    def operations(self) -> int:
        """The number of scalar operations as they are written.

        Those of inner blocks count once, and a matrix product as the numbers that go in and out.
        """
        return sum(_operations(value) for value in self.walk())

    def walk(self) -> Iterator[Value]:
        """All values that belong to a block, in the order in which they are printed."""
        yield from _walk(self.block)

    def leaf_entries(self) -> tuple[tuple[int, int], ...]:
        """The entries of leaves that are read at a fixed place: `(leaf, flat entry)`, sorted."""
        return tuple(sorted({value.data for value in self._used() if value.op is Op.ENTRY}))

    def leaf_loads(self) -> tuple[int, ...]:
        """The leaves that are read at a computed place, sorted."""
        loads = {value.data for value in self.walk() if value.op is Op.LOAD}
        for value in self.walk():
            if value.op is Op.PRODUCT:
                loads.update(matrix.leaf for matrix in value.data.matrices())
        return tuple(sorted(loads))

    def _used(self) -> Iterator[Value]:
        for value in self.walk():
            yield from value.args
            for block in inner_blocks(value):
                yield from block.outputs
        for output in self.outputs:
            yield from output.flat


def _walk(block: Block) -> Iterator[Value]:
    for value in block.values:
        for inner in inner_blocks(value):
            yield from _walk(inner)
        yield value


def _operations(value: Value) -> int:
    if value.op is Op.PRODUCT:
        return len(value.args) + value.data.size
    return 0 if value.op is Op.RESULT else 1


def object_array(entries: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """An object array, without NumPy looking into the entries."""
    out = np.empty(len(entries), dtype=object)
    out[:] = entries
    return out.reshape(shape)
