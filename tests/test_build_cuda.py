"""Compiling kernels for GPUs. No GPU is needed, nor a driver: NVRTC is a library like any other."""

import re
import sys
import types

import pytest

from gradsolve._build import (
    BUILD_COUNTS,
    CompilationError,
    CompilerNotFoundError,
    Resources,
    build_cubin,
    cubin_resources,
    nvrtc,
)

_SOURCE = """
extern "C" __global__ void simple(double* x) { x[threadIdx.x] = 2 * x[threadIdx.x]; }

extern "C" __global__ void indexed(double* x, int n) {
    double a[40];
    for (int i = 0; i < 40; ++i) a[i] = x[i];
    x[n] = a[n % 40] * a[3 * n % 40];
}

// 64 numbers of two registers each are mixed, and a thread may have 64 registers.
extern "C" __global__ void __launch_bounds__(1024) spilling(double* x) {
    double a[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) a[i] = x[1024 * i + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 256; ++i) a[i % 64] = a[7 * i % 64] * a[(5 * i + 3) % 64];
#pragma unroll
    for (int i = 0; i < 64; ++i) x[1024 * i + threadIdx.x] = a[i];
}

__device__ __noinline__ double callee(const double* x, int n) {
    double a[30];
    for (int i = 0; i < 30; ++i) a[i] = x[i];
    return a[n] * a[2 * n % 30];
}

template <class Real> __global__ void calling(Real* x, int n) { *x = callee(x, n); }
template __global__ void calling<double>(double*, int);
"""
_ARCHS = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_120")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", str(path))
    return path


@pytest.fixture
def compiler():
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install gradsolve[test]")
    return nvrtc._compiler()


@pytest.fixture
def forgotten_compiler():
    nvrtc._compiler.cache_clear()
    yield
    nvrtc._compiler.cache_clear()


@pytest.mark.parametrize("arch", _ARCHS)
def test_resources_are_those_that_the_assembler_prints(compiler, arch):
    flags = (*nvrtc._FLAGS, f"--gpu-architecture={arch}", "--ptxas-options=-v")
    log = nvrtc._compile(compiler.nvrtc, _SOURCE, flags).log
    printed, kernel = {}, ""
    for line in log.splitlines():
        if match := re.search(r"entry function '(\w+)'", line):
            kernel = match[1]
        if match := re.search(r"Used (\d+) registers", line):
            stack = re.search(r"(\d+) bytes cumulative stack size", line)
            printed[kernel] = Resources(int(match[1]), int(stack[1]) if stack else 0)
    read = cubin_resources(build_cubin(_SOURCE, arch))
    assert read == printed
    # What the numbers must be, whatever the compiler: 40, 30 and some doubles.
    assert read["simple"].local_bytes == 0
    assert read["indexed"].local_bytes == 8 * 40
    assert read["spilling"].local_bytes > 0
    assert read["spilling"].registers <= 64
    (calling,) = (kernel for name, kernel in read.items() if "calling" in name)
    assert calling.local_bytes >= 8 * 30


def test_second_build_is_found(compiler, directory):
    before = BUILD_COUNTS["cuda"]
    cubin = build_cubin(_SOURCE, "sm_90")
    assert build_cubin(_SOURCE, "sm_90") == cubin
    assert BUILD_COUNTS["cuda"] == before + 1
    build_cubin(_SOURCE, "sm_80")
    build_cubin(f"{_SOURCE}\n", "sm_90")
    assert BUILD_COUNTS["cuda"] == before + 3
    assert len(list(directory.iterdir())) == 3


def test_headers_come_from_memory(compiler, tmp_path, monkeypatch):
    texts = {"gs/a.h": '#include "gs/b.h"\n', "gs/b.h": "inline int b() { return 4; }\n"}
    monkeypatch.setattr(nvrtc, "headers", lambda: texts)
    kernel = 'extern "C" __global__ void kernel(int* x) { *x = b(); }\n'
    assert "kernel" in cubin_resources(build_cubin(f'#include "gs/a.h"\n{kernel}', "sm_90"))
    # Not from the working directory.
    (tmp_path / "c.h").write_text(texts["gs/b.h"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompilationError, match=r'could not open source file "c\.h"'):
        build_cubin(f'#include "c.h"\n{kernel}', "sm_90")


def test_products_and_sums_are_rounded_one_by_one(compiler):
    kernel = 'extern "C" __global__ void kernel(double* x) { *x = x[1] * x[2] + x[3]; }\n'
    flags = (*nvrtc._FLAGS, "--gpu-architecture=compute_90")
    assert "fma" not in nvrtc._compile(compiler.nvrtc, kernel, flags).ptx
    contracting = tuple(flag for flag in flags if "fmad" not in flag)
    assert "fma" in nvrtc._compile(compiler.nvrtc, kernel, contracting).ptx


def test_identity_has_the_whole_version(compiler):
    name = compiler.name.removeprefix("NVRTC ")
    assert re.search(rf"release {re.escape(name)}, V{re.escape(name)}\.\d+", compiler.identity)


def test_refused_source(compiler, directory):
    with pytest.raises(CompilationError) as caught:
        build_cubin("__global__ void kernel() { undefined_name(); }\n", "sm_90")
    message = str(caught.value)
    assert f"{compiler.name} failed with NVRTC_ERROR_COMPILATION." in message
    assert 'identifier "undefined_name" is undefined' in message
    assert "--gpu-architecture=sm_90" in message
    (kept,) = directory.glob("failed/*/kernel.cu")
    assert message.endswith(f"kept in {kept}")
    assert "undefined_name" in kept.read_text()


def test_unknown_architecture(compiler):
    with pytest.raises(
        CompilerNotFoundError, match=r"does not compile for sm_999, only for .*sm_90"
    ):
        build_cubin(_SOURCE, "sm_999")


@pytest.mark.parametrize("arch", ["90", "compute_90", "sm_", "sm_90 -G", ""])
def test_wrong_name_of_an_architecture(arch):
    with pytest.raises(ValueError, match="named as in 'sm_90'"):
        build_cubin(_SOURCE, arch)


def test_bindings_are_not_installed(monkeypatch, forgotten_compiler):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(CompilerNotFoundError, match=r"gradsolve\[cuda12\].*gradsolve\[cuda13\]"):
        build_cubin(_SOURCE, "sm_90")


def test_library_is_not_installed(monkeypatch, forgotten_compiler):
    bindings = types.ModuleType("cuda.bindings.nvrtc")

    def nvrtcVersion():
        raise RuntimeError('Failure finding "libnvrtc.so"')

    bindings.nvrtcVersion = nvrtcVersion
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", bindings)
    with pytest.raises(
        CompilerNotFoundError, match=r'cannot be loaded \(Failure finding "libnvrtc'
    ):
        build_cubin(_SOURCE, "sm_90")


def test_not_a_cubin(compiler):
    with pytest.raises(ValueError, match="64-bit ELF file"):
        cubin_resources(b"PTX")
    cubin = build_cubin(_SOURCE, "sm_90")
    with pytest.raises(ValueError, match="no CUDA binary of a known layout"):
        cubin_resources(cubin[: len(cubin) // 2])
    with pytest.raises(ValueError, match="no CUDA binary of a known layout"):
        cubin_resources(cubin.replace(b".nv.info\0", b".nv.oops\0"))


def test_a_binary_of_an_unknown_layout_is_used_all_the_same(compiler, monkeypatch):
    """Its resources only decide whether another build is tried."""

    def unreadable(cubin):
        raise ValueError("unknown layout")

    monkeypatch.setattr(nvrtc, "cubin_resources", unreadable)
    assert build_cubin(_SOURCE, "sm_90")[:4] == b"\x7fELF"
