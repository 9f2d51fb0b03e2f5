"""Kernels on the CPU: compiled by the machine's C++ compiler, loaded as a shared library."""

import ctypes
import functools as ft
import os

from .._build import build_host_library, host_compiler
from .launch import AbstractKernel, Handler
from .launcher import ON_HOST, Launcher, launcher
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

    def __init__(self, library: str, launcher: Launcher, threads: int) -> None:
        self._library = ctypes.CDLL(library)  # kept: unloading it would take the code away
        function = ctypes.cast(self._library.gs_kernel, ctypes.c_void_p).value
        assert function is not None
        launcher.add(library, [function])  # the file's name has the digest of its contents
        self._name = library
        self._threads = threads

    def handler(self, lanes: int, reduce: bool) -> Handler:
        del lanes, reduce
        return Handler(ON_HOST, self._name, {"threads": self._threads})


@ft.lru_cache(maxsize=512)
def host_kernel(unit: Unit, threads: int) -> HostKernel:
    """Compiles a unit, or finds it compiled."""
    compiler = host_compiler()
    # Explicit steps are straight text as they stand, and loops that should be say so: -O3 took
    # GCC 12 twice as long (10 s for the adjoint of 12 components with outputs), for kernels no
    # faster. A Rosenbrock step of 8 components needs it: 1.9 ms instead of 2.4.
    level = "-O3" if unit.linear_systems else "-O2"
    library = build_host_library(host_source(unit), compiler, level=level)
    return HostKernel(str(library), launcher(compiler), threads)
