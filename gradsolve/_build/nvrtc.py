"""C++ source to a CUDA binary, by NVRTC, the CUDA compiler that is a library.

It needs neither a GPU nor a driver. `cuda.core.Program` would do, but it cannot be given headers
from memory, so the functions below it are called.
"""

import functools
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from .cache import cached_file, keep_failed
from .cubin import Resources, cubin_resources
from .errors import CompilerNotFoundError, compilation_error
from .headers import headers, headers_digest, write_sources
from .key import BuildKey

_FLAGS = (
    "--std=c++17",
    # Sums and products are rounded one by one, as on the host: see there.
    "--fmad=false",
    # The headers are those of the host and say nothing about where a function runs.
    "--device-as-default-execution-space",
    # A header in the working directory is none of ours.
    "--no-source-include",
)

# The assembler's register allocation gives up on long code that has much to keep: the kernel is left
# with a few registers and all else in local memory, and takes five times as long as what the
# assembler makes of it with fewer optimisations. (Lorenz-96 with 40 states on an H200, the gradient
# of 32768 trajectories: 45 ms and 8 ms.) Where it does not give up, its optimisations are worth it.
_FRUGAL = "--ptxas-options=-O1"
_FEW_REGISTERS = 40
_MUCH_LOCAL_MEMORY = 2048

_SOURCE = "kernel.cu"
_BINARY = "kernel.cubin"
_ARCH = re.compile(r"sm_(\d+)[af]?", re.ASCII)

_REMEDY = (
    "Install CUDA's compiler with `pip install gradsolve[cuda12]` or `pip install "
    "gradsolve[cuda13]`, whichever your driver supports."
)


def build_cubin(source: str, arch: str) -> bytes:
    """Compiles a source, or finds what was compiled from it before.

    **Arguments:**

    - `source`: CUDA C++ that may include the package's headers, as `"gs/..."`. There are no other
      headers, those of the standard library included.
    - `arch`: the GPU's architecture, as `"sm_90"`.

    **Raises:**

    `CompilerNotFoundError` if NVRTC is not installed or does not know the architecture;
    `CompilationError` with the compiler's own message.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise ValueError(f"A GPU architecture is named as in 'sm_90', got {arch!r}.")
    compiler = _compiler()
    if int(match[1]) not in compiler.archs:
        raise CompilerNotFoundError(
            f"{compiler.name} does not compile for {arch}, only for "
            f"{', '.join(f'sm_{number}' for number in compiler.archs)}. {_REMEDY}"
        )
    options = (*_FLAGS, f"--gpu-architecture={arch}")
    key = BuildKey(
        source=source,
        headers=headers_digest(),
        compiler=compiler.identity,
        flags=(*options, f"else {_FRUGAL}"),
        arch=arch,
    ).digest()

    def compile_into(work: Path) -> Path:
        result = _compile(compiler.nvrtc, source, options)
        if result.problem is None:
            cubin, taken = result.cubin, _resources(result.cubin)
            if _gave_up(taken):
                frugal = _compile(compiler.nvrtc, source, (*options, _FRUGAL))
                if frugal.problem is None and _local_bytes(_resources(frugal.cubin)) < _local_bytes(
                    taken
                ):
                    cubin = frugal.cubin
            binary = work / _BINARY
            binary.write_bytes(cubin)
            return binary
        write_sources(work, _SOURCE, source)
        kept = keep_failed(key, work)
        raise compilation_error(
            f"{compiler.name} {result.problem}.",
            result.log,
            f"nvrtcCompileProgram with {' '.join(options)}",
            kept / _SOURCE,
        )

    return cached_file("cuda", key, ".cubin", compile_into).read_bytes()


def _resources(cubin: bytes) -> Sequence[Resources]:
    """What each kernel takes; nothing where a new compiler has changed the layout of a binary.

    The layout is not documented, and a kernel runs whether we can read it or not.
    """
    try:
        return tuple(cubin_resources(cubin).values())
    except ValueError:
        return ()


def _gave_up(kernels: Sequence[Resources]) -> bool:
    return any(
        kernel.registers <= _FEW_REGISTERS and kernel.local_bytes >= _MUCH_LOCAL_MEMORY
        for kernel in kernels
    )


def _local_bytes(kernels: Sequence[Resources]) -> int:
    return sum(kernel.local_bytes for kernel in kernels)


class _Compiler(NamedTuple):
    nvrtc: ModuleType
    name: str
    identity: str
    archs: tuple[int, ...]


@functools.cache
def _compiler() -> _Compiler:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise CompilerNotFoundError(
            f"Python's bindings of CUDA's compiler cannot be imported ({error}). {_REMEDY}"
        ) from error
    try:
        major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    except RuntimeError as error:  # the library itself is loaded by the first call
        raise CompilerNotFoundError(
            f"CUDA's compiler, libnvrtc, cannot be loaded ({error}). {_REMEDY}"
        ) from error
    (archs,) = _checked(nvrtc, nvrtc.nvrtcGetSupportedArchs())
    return _Compiler(nvrtc, f"NVRTC {major}.{minor}", _identity(nvrtc, archs[-1]), tuple(archs))


def _identity(nvrtc: ModuleType, arch: int) -> str:
    """The version to the last digit, and the build.

    The library says its major and minor version only; the rest is in the comments at the head of
    the assembly text that it makes of nothing.
    """
    result = _compile(nvrtc, "", (f"--gpu-architecture=compute_{arch}",))
    comments = [line[2:].strip() for line in result.ptx.splitlines() if line.startswith("//")]
    return "; ".join(filter(None, comments))


class _Result(NamedTuple):
    problem: str | None  # completes "The compiler ..."
    log: str
    cubin: bytes
    ptx: str


def _compile(nvrtc: ModuleType, source: str, options: tuple[str, ...]) -> _Result:
    names = [name.encode() for name in headers()]
    texts = [text.encode() for text in headers().values()]
    (program,) = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(source.encode(), _SOURCE.encode(), len(names), texts, names),
    )
    try:
        status, *_ = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        log = _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return _Result(f"failed with {status.name}", log, b"", "")
        cubin = _fetch(nvrtc, program, "CUBIN")
        ptx = _fetch(nvrtc, program, "PTX").rstrip(b"\0").decode()
        return _Result(None, log, cubin, ptx)
    finally:
        _checked(nvrtc, nvrtc.nvrtcDestroyProgram(program))


def _fetch(nvrtc: ModuleType, program: Any, what: str) -> bytes:
    (size,) = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer = bytearray(size)
    if size:
        _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return bytes(buffer)


def _checked(nvrtc: ModuleType, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a call without its status, which must be success."""
    status, *results = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"CUDA's compiler answered {status.name}.")
    return tuple(results)
