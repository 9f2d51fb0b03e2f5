"""Kernels alone: compiled by NVRTC, launched through the driver, timed by CUDA events."""

import contextlib
import ctypes
import importlib
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

from gradsolve import CUDA, HostCPU
from gradsolve._fused import cuda
from gradsolve._fused.arguments import ArgumentList, pack
from gradsolve._fused.cuda import CudaKernel
from gradsolve._fused.host import HostKernel
from gradsolve._fused.unit import Unit


def checked(answer: tuple[Any, ...]) -> Any:
    """The value of a call of the driver or of the compiler, which must have succeeded."""
    code, *values = answer
    if int(code) != 0:
        raise RuntimeError(f"CUDA answered {code!r}.")
    return values[0] if values else None


def compile_cuda(source: str, architecture: str, options: Sequence[str]) -> bytes:
    """A CUDA binary, by the compiler's own defaults."""
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    words = ["--std=c++17", f"--gpu-architecture={architecture}", *options]
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    (code,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    if int(code) != 0:
        log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(bytes(log).rstrip(b"\0").decode())
    cubin = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program)))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return bytes(cubin)


class Gpu:
    """The first GPU, in the context that JAX uses too, with a stream of its own."""

    def __init__(self) -> None:
        self.driver = driver = importlib.import_module("cuda.bindings.driver")
        checked(driver.cuInit(0))
        device = checked(driver.cuDeviceGet(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
        self.stream = int(checked(driver.cuStreamCreate(0)))

    def functions(self, cubin: bytes, names: Sequence[str]) -> dict[str, Any]:
        """The kernels of a binary."""
        driver = self.driver
        module = checked(driver.cuModuleLoadData(cubin))
        return {name: checked(driver.cuModuleGetFunction(module, name.encode())) for name in names}

    def upload(self, array: np.ndarray) -> int:
        """The address of a copy on the GPU."""
        array = np.ascontiguousarray(array)
        address = self.allocate(array.nbytes)
        checked(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return address

    def allocate(self, size: int) -> int:
        return int(checked(self.driver.cuMemAlloc(max(size, 8))))

    def download(self, address: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
        checked(self.driver.cuStreamSynchronize(self.stream))
        array = np.empty(shape, dtype)
        checked(self.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
        return array

    def free(self, addresses: Sequence[int]) -> None:
        checked(self.driver.cuStreamSynchronize(self.stream))
        for address in addresses:
            checked(self.driver.cuMemFree(address))


class Launch:
    """A launch of a kernel that takes one structure, packed as `struct` has it."""

    def __init__(
        self, gpu: Gpu, function: Any, lanes: int, threads: int, layout: str, words: Sequence[Any]
    ) -> None:
        packed = struct.pack(f"={layout}", *words)
        self._words = ctypes.create_string_buffer(packed, len(packed))
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._words))
        self._call = gpu.driver.cuLaunchKernel
        grid = (-(-lanes // threads), 1, 1, threads, 1, 1)
        self._arguments = (function, *grid, 0, gpu.stream, ctypes.addressof(self._pointers), 0)

    def __call__(self) -> None:
        checked(self._call(*self._arguments))


def event_seconds(driver: Any, stream: int, launch: Callable[[], None], repeats: int) -> float:
    """Seconds per launch, of many in a row, by events around them."""
    begin, end = (checked(driver.cuEventCreate(0)) for _ in range(2))
    launch()
    checked(driver.cuEventRecord(begin, stream))
    for _ in range(repeats):
        launch()
    checked(driver.cuEventRecord(end, stream))
    checked(driver.cuEventSynchronize(end))
    seconds = checked(driver.cuEventElapsedTime(begin, end)) * 1e-3 / repeats
    for event in (begin, end):
        checked(driver.cuEventDestroy(event))
    return seconds


def _repeated(
    kernel: CudaKernel,
    stream: int,
    arguments: ArgumentList,
    buffers: Sequence[Any],
    lanes: int,
    reduce: bool,
) -> Callable[[], None]:
    """Makes a launch with nothing left to do in Python, which is slower than a small kernel."""
    words = pack(arguments, cuda._addresses(buffers))
    packed = ctypes.create_string_buffer(words, len(words))
    threads = cuda.block_size(lanes)
    blocks = -(-lanes // threads)
    count = ctypes.c_int64(blocks)
    pointers = (ctypes.c_void_p * 2)(ctypes.addressof(packed), ctypes.addressof(count))
    at = ctypes.addressof(pointers)
    kernels = [(kernel._load()[0], blocks, 1, 1, threads, 1, 1, 0, stream, at, 0)]
    if reduce:
        sums = kernel._entries
        kernels.append((kernel._load()[1], sums, 1, 1, cuda._MAX_BLOCK, 1, 1, 0, stream, at, 0))
    call = kernel._driver.cuLaunchKernel

    def launch(keep: Any = (packed, count, pointers)) -> None:
        del keep  # what the driver is pointed to
        for each in kernels:
            checked(call(*each))

    return launch


class TimedLaunches(contextlib.AbstractContextManager["TimedLaunches"]):
    """While entered, gradsolve's launches are made by Python, and timed: repeated on a GPU.

    To be entered before the first solve, since kernels are told apart when they are made.

    Kernels read their inputs and overwrite their outputs, so repeating them changes nothing. What
    was timed since `clear` is in `seconds`: for each job the last launch.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.repeats = 20
        self._jobs: dict[int, str] = {}
        self._patches = contextlib.ExitStack()

    def clear(self) -> None:
        self.seconds = {}

    def median_of(self, call: Callable[[], Any], rounds: int = 5) -> dict[str, float]:
        """The kernels of a call by their jobs: each the median of several calls, after a first."""
        jax.block_until_ready(call())
        every = []
        for _ in range(rounds):
            self.clear()
            jax.block_until_ready(call())
            every.append(self.seconds)
        return {job: statistics.median(each[job] for each in every) for job in every[0]}

    def __enter__(self) -> "TimedLaunches":
        def timed_on_gpu(
            kernel: CudaKernel,
            context: Any,
            arguments: ArgumentList,
            buffers: Sequence[Any],
            lanes: int,
            reduce: bool,
        ) -> None:
            driver = importlib.import_module("cuda.bindings.driver")
            stream = driver.CUstream(context.stream)
            checked(driver.cuCtxPushCurrent(checked(driver.cuStreamGetCtx(stream))))
            try:
                again = _repeated(kernel, context.stream, arguments, buffers, lanes, reduce)
                seconds = event_seconds(driver, context.stream, again, self.repeats)
            finally:
                checked(driver.cuCtxPopCurrent())
            self.seconds[self._jobs[id(kernel)]] = seconds

        def timed_on_host(
            kernel: HostKernel,
            context: Any,
            arguments: ArgumentList,
            buffers: Sequence[Any],
            lanes: int,
            reduce: bool,
        ) -> None:
            arrays = [np.asarray(buffer) for buffer in buffers]
            words = pack(arguments, [array.__array_interface__["data"][0] for array in arrays])
            run = kernel._library.gs_kernel
            begin = time.perf_counter()
            run(words, ctypes.c_int64(kernel._threads))
            self.seconds[self._jobs[id(kernel)]] = time.perf_counter() - begin

        for kind, timed in ((CudaKernel, timed_on_gpu), (HostKernel, timed_on_host)):
            changes = {
                "launch": timed,
                "handler": lambda kernel, lanes, reduce: None,
                # Events cannot be waited for while XLA records a graph.
                "repeatable": False,
            }
            for name, value in changes.items():
                self._patches.enter_context(mock.patch.object(kind, name, value))
        for runner in (CUDA, HostCPU):
            self._patches.enter_context(
                mock.patch.object(runner, "compile_unit", self._named(runner.compile_unit))
            )
        return self

    def _named(self, compile_unit: Callable[[Any, Unit], Any]) -> Callable[[Any, Unit], Any]:
        def compile_named(runner: Any, unit: Unit) -> Any:
            kernel = compile_unit(runner, unit)
            self._jobs[id(kernel)] = unit.job
            return kernel

        return compile_named

    def __exit__(self, *exception: object) -> None:
        self._patches.close()
