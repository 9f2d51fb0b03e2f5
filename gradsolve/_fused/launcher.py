"""Compiled handlers, through which XLA launches kernels without calling Python."""

import ctypes
import threading
from collections.abc import Sequence

import jax

from .._build import HostCompiler, build_launcher

ON_HOST = "gradsolve_launch_on_host"
ON_GPU = "gradsolve_launch_on_gpu"

# The functions of the CUDA driver that a launch calls; `Driver` in csrc/launch.cpp.
_DRIVER_FUNCTIONS = (
    "cuLaunchKernel",
    "cuKernelGetFunction",
    "cuStreamGetCtx",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuGetErrorString",
)


class Launcher:
    """The library of handlers, registered with XLA."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)  # kept: unloading it would take the code away
        self._library.gs_add_kernel.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)
        self._library.gs_add_kernel.restype = None
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._on_gpu = False
        handler = jax.ffi.pycapsule(self._library.gs_launch_on_host)
        jax.ffi.register_ffi_target(ON_HOST, handler, platform="cpu")

    def add(self, name: str, functions: Sequence[int]) -> None:
        """Makes a kernel known; `name` must identify its binary."""
        with self._lock:
            if name in self._names:
                return
            first, second = (*functions, 0)[:2]
            self._library.gs_add_kernel(name.encode(), first, second)
            self._names.add(name)

    def prepare_gpu(self) -> None:
        """Finds the functions of the CUDA driver, once."""
        with self._lock:
            if self._on_gpu:
                return
            driver = ctypes.CDLL("libcuda.so.1")
            functions = [ctypes.cast(driver[name], ctypes.c_void_p) for name in _DRIVER_FUNCTIONS]
            self._library.gs_set_driver((ctypes.c_void_p * len(functions))(*functions))
            handler = jax.ffi.pycapsule(self._library.gs_launch_on_gpu)
            jax.ffi.register_ffi_target(ON_GPU, handler, platform="CUDA")
            self._on_gpu = True


_guard = threading.Lock()
_launchers: list[Launcher] = []


def launcher(compiler: HostCompiler) -> Launcher:
    """The handlers, compiled and registered when they are first needed.

    There is one library in a process, of the first compiler that builds it: XLA knows a handler by
    its name, and nothing in it depends on the kernels.
    """
    with _guard:
        if not _launchers:
            _launchers.append(Launcher(str(build_launcher(compiler))))
        return _launchers[0]
