"""Kernels on NVIDIA GPUs: compiled by NVRTC, launched on XLA's own stream."""

import ctypes
import functools as ft
import hashlib
import importlib
import threading
from collections.abc import Sequence
from typing import Any

from .._build import (
    CacheDirectoryError,
    CompilationError,
    CompilerNotFoundError,
    HostCompiler,
    build_cubin,
    host_compiler,
)
from .arguments import ArgumentList, pack
from .launch import AbstractKernel, Handler
from .launcher import ON_GPU, Launcher, launcher
from .unit import Unit

_MAX_BLOCK = 128
_BY_PYTHON = "Kernels are launched by Python, which takes longer"


def block_size(lanes: int) -> int:
    """Threads per block: small ensembles are spread over as many multiprocessors as possible.

    The shared memory of a block (`csrc/gs/kept.h`) is that of the largest, whatever its threads: of
    more blocks than these, a GPU could not run all at once, where registers would let it.
    """
    return 32 if lanes <= 16384 else 64 if lanes <= 32768 else _MAX_BLOCK


def cuda_source(unit: Unit) -> str:
    """The complete source of a kernel for the GPU."""
    # The compiler spills a number or two to fit one more block on a multiprocessor, unless told
    # that one is enough. A recording then takes a few registers more and no spill; the adjoint of
    # Lorenz would take 20 more, for nothing. The adjoint of a stiff system of 20 components would
    # get half of the registers. Functions side by side would come one after the other, to save the
    # registers in which each keeps its numbers: in the compiler's schedules for sm_90, four tanh of
    # doubles then take 680 cycles instead of 290; quotients side by side spill in the adjoint of a
    # repressilator.
    stiff_adjoint = unit.linear_systems and unit.job == "adjoint"
    spacious = unit.job == "record" or stiff_adjoint or unit.side_by_side
    bounds = "gs::kMaxBlock, 1" if spacious else "gs::kMaxBlock"
    text = f"""{unit.text}
#include "gs/cuda.h"

static_assert(gs::kMaxBlock == {_MAX_BLOCK}, "blocks are launched with this many threads at most");

using Arguments = {unit.arguments};

extern "C" __global__ void __launch_bounds__({bounds})
gs_kernel(const __grid_constant__ Arguments arguments) {{
  gs::{unit.job}_on_gpu<Problem>(arguments);
}}
"""
    if unit.job == "adjoint":
        text += """
extern "C" __global__ void __launch_bounds__(gs::kMaxBlock)
gs_reduce(const __grid_constant__ Arguments arguments, int64_t blocks) {
  gs::reduce_on_gpu<Problem>(arguments, blocks);
}
"""
    return text


def architecture_of(device: Any) -> str:
    """The name that NVRTC has for a device of JAX, such as `sm_90`."""
    return f"sm_{str(device.compute_capability).replace('.', '')}"


def _checked(result: tuple[Any, ...]) -> Any:
    """The values of a driver call, which come behind its error code."""
    code, *values = result
    if int(code) != 0:
        raise RuntimeError(f"The CUDA driver refused a call: {code!r}.")
    return values[0] if len(values) == 1 else None


def launcher_for_gpu() -> Launcher | str:
    """The compiled handlers, or why there are none, as a sentence: then Python launches."""
    try:
        compiler = host_compiler()
    except CompilerNotFoundError:
        return f"{_BY_PYTHON}, since no C++ compiler was found."
    except CompilationError as error:
        return _by_python(error)
    return _compiled_launcher(compiler)


@ft.cache  # a compiler that fails is not asked again
def _compiled_launcher(compiler: HostCompiler) -> Launcher | str:
    try:
        return launcher(compiler)
    except (CompilationError, CacheDirectoryError, OSError) as error:
        return _by_python(error)


def _by_python(error: Exception) -> str:
    return f"{_BY_PYTHON}: {str(error).splitlines()[0]}"


class CudaKernel(AbstractKernel):
    """A kernel for one architecture; a `CUlibrary` serves every context of the process."""

    def __init__(self, unit: Unit, architecture: str) -> None:
        # Not at the top of the file: gradsolve can be imported where there is no driver.
        self._driver = importlib.import_module("cuda.bindings.driver")
        self._cubin = build_cubin(cuda_source(unit), architecture)
        self._name = hashlib.sha256(self._cubin).hexdigest()
        self._entries = unit.entries if unit.job == "adjoint" else 0
        self._lock = threading.Lock()
        self._functions: tuple[Any, ...] = ()
        self._contexts: dict[int, int] = {}

    def handler(self, lanes: int, reduce: bool) -> Handler | None:
        launcher = launcher_for_gpu()
        if isinstance(launcher, str):
            return None
        launcher.prepare_gpu()
        launcher.add(self._name, [int(function) for function in self._load()])
        threads = block_size(lanes)
        numbers = {
            "blocks": -(-lanes // threads),
            "block_size": threads,
            "reduce_blocks": self._entries if reduce else 0,
            "reduce_block_size": _MAX_BLOCK,
        }
        return Handler(ON_GPU, self._name, numbers)

    def launch(
        self,
        context: Any,
        arguments: ArgumentList,
        buffers: Sequence[Any],
        lanes: int,
        reduce: bool,
    ) -> None:
        driver = self._driver
        stream = context.stream
        functions = self._load()
        words = pack(arguments, _addresses(buffers))
        # The launch goes to the context that is current, which must be the stream's.
        owner = self._contexts.get(stream)
        if owner is None:
            owner = int(_checked(driver.cuStreamGetCtx(driver.CUstream(stream))))
            for function in functions:  # see `make_ready` in csrc/launch.cpp
                _checked(driver.cuKernelGetFunction(driver.CUkernel(int(function))))
            self._contexts[stream] = owner
        switch = int(_checked(driver.cuCtxGetCurrent())) != owner
        if switch:
            _checked(driver.cuCtxPushCurrent(driver.CUcontext(owner)))
        try:
            self._launch(functions, stream, words, lanes, reduce)
        finally:
            if switch:
                _checked(driver.cuCtxPopCurrent())

    def _launch(
        self,
        functions: tuple[Any, ...],
        stream: int,
        arguments: bytes,
        lanes: int,
        reduce: bool,
    ) -> None:
        threads = block_size(lanes)
        blocks = -(-lanes // threads)
        # The driver copies the arguments before the call returns.
        words = ctypes.create_string_buffer(arguments, len(arguments))
        count = ctypes.c_int64(blocks)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(words), ctypes.addressof(count))
        at = ctypes.addressof(pointers)
        driver = self._driver
        code = driver.cuLaunchKernel(functions[0], blocks, 1, 1, threads, 1, 1, 0, stream, at, 0)
        if reduce and not int(code[0]):
            code = driver.cuLaunchKernel(
                functions[1], self._entries, 1, 1, _MAX_BLOCK, 1, 1, 0, stream, at, 0
            )
        _checked(code)

    def _load(self) -> tuple[Any, ...]:
        driver = self._driver
        with self._lock:
            if not self._functions:
                library = _checked(driver.cuLibraryLoadData(self._cubin, [], [], 0, [], [], 0))
                names = (b"gs_kernel", b"gs_reduce") if self._entries else (b"gs_kernel",)
                kernels = [_checked(driver.cuLibraryGetKernel(library, name)) for name in names]
                self._functions = tuple(driver.CUfunction(int(kernel)) for kernel in kernels)
        return self._functions


def _addresses(buffers: Sequence[Any]) -> list[int]:
    try:
        return [buffer.__cuda_array_interface__["data"][0] for buffer in buffers]
    except AttributeError as error:
        raise RuntimeError(
            "`CUDA()` can only work on arrays on an NVIDIA GPU. Move them with "
            "`jax.device_put(..., jax.devices('cuda')[0])`, or use `HostCPU()`."
        ) from error


@ft.lru_cache(maxsize=512)
def cuda_kernel(unit: Unit, architecture: str) -> CudaKernel:
    """Compiles a unit, or finds it compiled."""
    return CudaKernel(unit, architecture)
