"""Kernels on the CPU: compiled by the machine's C++ compiler, loaded as a shared library."""

import ctypes
import functools as ft
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .._build import build_host_library, host_compiler
from .launch import AbstractKernel
from .unit import Unit

GROUP = 256
"""Trajectories whose shared cotangents are summed together; `kGroup` in `csrc/gs/host.h`."""


def available_threads() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def host_source(unit: Unit) -> str:
    """The complete source of a kernel for the CPU."""
    return f"""{unit.text}
#include "gs/host.h"

static_assert(gs::kGroup == {GROUP}, "the caller allocates one row of partial sums per group");

GS_EXPORT void gs_kernel(const void* arguments, int64_t threads) {{
  gs::{unit.job}_on_host<Problem>(*static_cast<const {unit.arguments}*>(arguments), threads);
}}
"""


class HostKernel(AbstractKernel):
    """A kernel in a shared library."""

    repeatable: ClassVar[bool] = False

    def __init__(self, library: str, threads: int) -> None:
        self._library = ctypes.CDLL(library)  # kept: unloading it would take the code away
        self._function = self._library.gs_kernel
        self._function.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        self._function.restype = None
        self._threads = threads

    def addresses(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[int]:
        try:
            arrays = [np.asarray(buffer) for buffer in (*outputs, *inputs)]
        except Exception as error:
            raise RuntimeError(
                "`HostCPU()` can only work on arrays in the memory of the CPU. Move them with "
                "`jax.device_put(..., jax.devices('cpu')[0])`, or use `CUDA()`."
            ) from error
        return [array.__array_interface__["data"][0] for array in arrays]

    def launch(self, context: Any, arguments: bytes, lanes: int, reduce: bool) -> None:
        del context, lanes, reduce
        self._function(arguments, self._threads)  # ctypes lets other Python threads run meanwhile


@ft.lru_cache(maxsize=512)
def host_kernel(unit: Unit, threads: int) -> HostKernel:
    """Compiles a unit, or finds it compiled."""
    compiler = host_compiler()
    return HostKernel(str(build_host_library(host_source(unit), compiler)), threads)
