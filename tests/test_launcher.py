"""XLA launches kernels through compiled handlers, and through Python only without a compiler."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs
from gradsolve import _choice
from gradsolve._build import CompilationError, host_compiler
from gradsolve._fused import cuda
from gradsolve._fused.launcher import ON_HOST, launcher
from tests.helpers import LotkaVolterra


def test_a_kernel_of_another_process():
    # As from a computation that JAX's compilation cache has kept: the program is there, the kernel
    # was never loaded.
    launcher(host_compiler())
    call = jax.ffi.ffi_call(ON_HOST, jax.ShapeDtypeStruct((2,), jnp.float32))
    numbers = {"words": np.zeros(2, np.int64), "slots": np.arange(2), "threads": np.int64(1)}
    run = jax.jit(lambda x: call(x, kernel="/nowhere/kernel.so", **numbers))
    with pytest.raises(Exception, match=r"another process.*Trace it here"):
        jax.block_until_ready(run(jnp.ones(2, jnp.float32)))


@pytest.fixture
def forgotten():
    """Forgets kernels and choices, now and when called."""

    def forget():
        _choice._choices.clear()
        cuda.cuda_kernel.cache_clear()
        jax.clear_caches()

    forget()
    yield forget
    forget()


def test_a_gpu_without_a_compiler_says_so(monkeypatch):
    monkeypatch.setenv("GRADSOLVE_CXX", "no-such-compiler")
    assert (
        gs.CUDA()
        .remark()
        .endswith("by Python, which takes longer, since no C++ compiler was found.")
    )


def test_a_gpu_with_a_compiler_that_does_not_start_says_so(monkeypatch):
    monkeypatch.setenv("GRADSOLVE_CXX", "false")
    assert "takes longer: The C++ compiler" in gs.CUDA().remark()


def test_another_compiler_uses_the_same_handlers():
    compiler = host_compiler()
    other = dataclasses.replace(compiler, identity="another")
    assert launcher(other) is launcher(compiler)


def test_a_gpu_with_a_compiler_that_fails_says_so(monkeypatch):
    attempts = []

    def fail(compiler):
        attempts.append(compiler)
        raise CompilationError("The C++ compiler failed with status 1.\nIts output.")

    monkeypatch.setattr(cuda, "launcher", fail)
    cuda._compiled_launcher.cache_clear()
    for _ in range(2):
        assert gs.CUDA().remark().endswith("takes longer: The C++ compiler failed with status 1.")
    cuda._compiled_launcher.cache_clear()
    assert len(attempts) == 1


@pytest.mark.gpu
def test_python_launches_the_same(monkeypatch, forgotten):
    def gradient():
        trajectory = gs.solve(
            LotkaVolterra(0.55, 0.028, 0.80, 0.024),
            jnp.linspace(5.0, 40.0, 200).reshape(100, 2),
            t0=0.0,
            t1=jnp.linspace(1.0, 5.0, 100),
            in_axes=gs.InAxes(y0=0, t1=0),
            backend=gs.CUDA(),
        )
        value, (system, y0) = trajectory.loss_grad(jnp.sum, wrt=("system", "y0"))
        return trajectory.backend.reason, jax.tree.leaves((value, system, y0, trajectory.ys))

    reason, expected = gradient()
    assert reason == "CUDA was asked for."
    monkeypatch.setenv("GRADSOLVE_CXX", "no-such-compiler")
    forgotten()
    reason, found = gradient()
    assert "launched by Python" in reason
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
