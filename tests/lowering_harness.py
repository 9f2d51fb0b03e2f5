"""Compiles lowered functions for the host and runs them, for the tests of the lowering.

Starting the compiler and including the headers takes most of the time, so that all functions of a
group go into one translation unit. Every function runs on `LANES` trajectories, once as scalar code
and once in packs: the same text, as on a GPU and on a CPU.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import gradsolve
from gradsolve._lowering import Block, Function, Leaf, Op, Sink, Value, lower, print_body
from gradsolve._lowering._ir import inner_blocks

HEADERS = Path(gradsolve.__file__).parent / "csrc"
LANES = 8

_TYPES = {
    "bool": ("Mask", "bool"),
    "int32": ("I32", "int32_t"),
    "int64": ("I64", "int64_t"),
    "uint32": ("U32", "uint32_t"),
    "uint64": ("U64", "uint64_t"),
    "float32": ("F32", "float"),
    "float64": ("F64", "double"),
}

# As the library compiles, except that nothing waits for the optimizer.
_FLAGS = ("-std=c++17", "-O0", "-march=native", "-ffp-contract=off", "-fwrapv", "-Wno-psabi")

_SUPPORT = """
#include "gs/called.h"
#include "gs/math.h"
#include "gs/product.h"
#include "gs/quotients.h"

using namespace gs;

// Flags are bytes in memory; everything else is stored as it is.
template <class T, class S>
void read(T* to, const S* from, int count, const Lanes& lanes) {
  for (int i = 0; i < count; ++i) {
    for (int l = 0; l < GS_LANES; ++l) {
      set_lane(to[i], l, static_cast<scalar_of<T>>(from[i * lanes.total + index_of(lanes, l)]));
    }
  }
}
template <class T, class S>
void write(S* to, const T* from, int count, const Lanes& lanes) {
  for (int i = 0; i < count; ++i) {
    for (int l = 0; l < GS_LANES; ++l) {
      to[i * lanes.total + index_of(lanes, l)] = static_cast<S>(lane(from[i], l));
    }
  }
}
"""


@dataclass(frozen=True)
class Case:
    """A function of one trajectory and the arguments of `LANES` trajectories.

    - `function`: takes one array per argument.
    - `args`: per-trajectory arguments have a leading axis of `LANES`.
    - `tables`: which arguments are leaves in memory, which all trajectories share.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    tables: frozenset[int] = frozenset()

    def example(self) -> list[jax.ShapeDtypeStruct]:
        """The arguments of one trajectory, as shapes and dtypes."""
        return [
            jax.ShapeDtypeStruct(
                np.shape(arg)[0 if i in self.tables else 1 :], np.asarray(arg).dtype
            )
            for i, arg in enumerate(self.args)
        ]

    def lowered(self) -> Function:
        """The lowered function; tables are leaves, the other arguments `a0`, `a1`, ..."""
        closed = jax.make_jaxpr(self.function)(*self.example())
        consts: list[Any] = []
        for i, const in enumerate(closed.consts):
            array = np.asarray(const)
            consts.append(Leaf(len(self.args) + i, array.shape, array.dtype))
        inputs = [
            Leaf(i, struct.shape, struct.dtype) if i in self.tables else f"a{i}"
            for i, struct in enumerate(self.example())
        ]
        return lower(closed.jaxpr, [*consts, *inputs])

    def arrays(self) -> list[np.ndarray]:
        """Everything the compiled function reads, entries first and trajectories last."""
        consts = jax.make_jaxpr(self.function)(*self.example()).consts
        out = []
        for i, arg in enumerate([*self.args, *consts]):
            array = np.asarray(arg)
            if i < len(self.args) and i not in self.tables:
                array = array.reshape(len(array), -1).T
            out.append(np.ascontiguousarray(array))
        return out


def body(function: Function, join_quotients: bool = False) -> str:
    """The text of a function with outputs `o0`, `o1`, ..."""
    return print_body(
        function,
        argument=lambda name, index: f"{name}[{index or 0}]",
        leaf_entry=lambda leaf, entry: f"p{leaf}[{entry}]",
        leaf_array=lambda leaf: f"p{leaf}",
        sinks=[
            [Sink(f"o{k}", i) for i in range(output.size)]
            for k, output in enumerate(function.outputs)
        ],
        join_quotients=join_quotients,
    )


def definitions_precede_uses(block: Block, known: Set[Value] = frozenset()) -> bool:
    """Whether all that a block reads is there before it, inner blocks included."""
    defined = set(known)
    free = (Op.CONSTANT, Op.ARGUMENT, Op.ENTRY, Op.CARRY)
    for value in block.values:
        if any(arg.op not in free and arg not in defined for arg in value.args):
            return False
        if not all(definitions_precede_uses(inner, defined) for inner in inner_blocks(value)):
            return False
        defined.add(value)
    return all(out.op in free or out in defined for out in block.outputs)


def _source(number: int, case: Case, function: Function, join_quotients: bool) -> str:
    lines = [
        f"// {case.name}",
        f'extern "C" void case_{number}(void* const* in, void* const* out, int64_t n) {{',
        "  for (int64_t first = 0; first < n; first += GS_LANES) {",
        "  const Lanes lanes = lanes_from(first, n);",
    ]
    for i, array in enumerate(case.arrays()):
        lane_type, type_ = _TYPES[array.dtype.name]
        if i in case.tables or i >= len(case.args):
            lines.append(
                f"  const LeafView<{lane_type}, {type_}> p{i}(LeafArgument{{in[{i}], 0}}, lanes);"
            )
        elif array.size:
            count = len(array)
            lines.append(f"  {lane_type} a{i}[{count}];")
            lines.append(f"  read(a{i}, static_cast<const {type_}*>(in[{i}]), {count}, lanes);")
    for k, output in enumerate(function.outputs):
        if output.size:
            lane_type, _ = _TYPES[output.flat[0].dtype.name]
            lines.append(f"  {lane_type} o{k}[{output.size}];")
    lines.append(body(function, join_quotients))
    for k, output in enumerate(function.outputs):
        if output.size:
            _, type_ = _TYPES[output.flat[0].dtype.name]
            lines.append(f"  write(static_cast<{type_}*>(out[{k}]), o{k}, {output.size}, lanes);")
    return "\n".join([*lines, "  }", "}", ""])


def compiler() -> str:
    """The host's compiler; without one the test is skipped."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = name and shutil.which(name)
        if path:
            return path
    pytest.skip("needs a C++ compiler: none of $CXX, c++, g++ and clang++ was found")


def compiled_library(text: str, directory: Path, lanes: int, real_bits: int = 64) -> ctypes.CDLL:
    """A shared library of a source that includes the package's headers.

    - `lanes`: 1 for scalar code, more for packs.
    """
    source, library = directory / f"lanes_{lanes}.cpp", directory / f"lanes_{lanes}.so"
    source.write_text(text)
    command = [
        compiler(),
        *_FLAGS,
        f"-DGS_LANES={lanes}",
        f"-DGS_REAL_BITS={real_bits}",
        f"-I{HEADERS}",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[:4000]}"
    return ctypes.CDLL(str(library))


class Compiled:
    """The functions of a group of cases, compiled together.

    **Arguments:**

    - `cases`: what to compile.
    - `directory`: where the source and the library are written.
    - `lanes`: 1 for scalar code, more for packs.
    - `real_bits`: the precision of the state.
    - `join_quotients`: as in `print_body`.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        directory: Path,
        lanes: int,
        real_bits: int = 64,
        join_quotients: bool = False,
    ) -> None:
        self.cases = list(cases)
        self.functions = [case.lowered() for case in cases]
        text = _SUPPORT + "\n".join(
            _source(i, case, function, join_quotients)
            for i, (case, function) in enumerate(zip(self.cases, self.functions, strict=True))
        )
        self._library = compiled_library(text, directory, lanes, real_bits)

    def run(self, number: int) -> list[np.ndarray]:
        """The outputs of one case, trajectories first."""
        case, function = self.cases[number], self.functions[number]
        inputs = case.arrays()
        structs = jax.tree.leaves(jax.eval_shape(case.function, *case.example()))
        outputs = [
            np.zeros((output.size, LANES), s.dtype)
            for output, s in zip(function.outputs, structs, strict=True)
        ]

        def pointers(arrays: Sequence[np.ndarray]) -> Any:
            return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))

        call = getattr(self._library, f"case_{number}")
        call(pointers(inputs), pointers(outputs), ctypes.c_int64(LANES))
        return [
            output.T.reshape(LANES, *s.shape) for output, s in zip(outputs, structs, strict=True)
        ]


def expected(cases: Sequence[Case]) -> list[list[np.ndarray]]:
    """What JAX computes, in one compilation for all cases."""

    def all_cases(arguments: list[tuple[Any, ...]]) -> list[Any]:
        return [
            jax.vmap(
                case.function,
                in_axes=tuple(None if i in case.tables else 0 for i in range(len(args))),
                axis_size=LANES,
            )(*args)
            for case, args in zip(cases, arguments, strict=True)
        ]

    # Most of the time goes into the optimization of code that runs once.
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    if jax.__version_info__ < (0, 11):
        # tests/conftest.py switches these off, and then XLA's cube root is off by 66 units.
        options["xla_cpu_use_fusion_emitters"] = True
    results = jax.jit(all_cases, compiler_options=options)(
        [tuple(map(np.asarray, case.args)) for case in cases]
    )
    return [[np.asarray(leaf) for leaf in jax.tree.leaves(result)] for result in results]


def ulps(got: np.ndarray, want: np.ndarray, scale: Any = None) -> float:
    """The largest distance in units of the last place of the reference.

    - `scale`: numbers as large as this entered a sum; its last place is then the unit.
    """
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return 0.0
    if got.dtype.kind != "f":
        return np.inf
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(want), 0 if scale is None else scale)
        unit = np.spacing(np.where(np.isfinite(size), size, 1).astype(got.dtype))
        distance = np.abs(got - want) / unit
    distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
    return float(distance.max())
