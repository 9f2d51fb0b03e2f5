"""Settings of the test process: where JAX runs, with which precision, on how many threads.

Nothing here imports gradsolve: jaxtyping's plugin must see that import first.
"""

import gc
import os

_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _workers > 1:
    # XLA starts one thread per core in every process. Under xdist the workers share the cores; with
    # a thread pool each they only take turns. Both variables are read when the backend starts.
    _cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("NPROC", str(max(1, _cores // _workers)))
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    ).strip()
os.environ.setdefault("MPLBACKEND", "Agg")  # no window, and none in the tests' subprocesses either

import jax
import pytest


def _wants_gpu(config: pytest.Config) -> bool:
    expression = config.getoption("markexpr") or ""
    return "gpu" in expression and "not gpu" not in expression


def pytest_configure(config: pytest.Config) -> None:
    # The library never changes a global setting, so float64 is switched on here.
    jax.config.update("jax_enable_x64", True)
    # A persistent cache would hide compilation failures and falsify compilation counts.
    jax.config.update("jax_enable_compilation_cache", False)
    if not _wants_gpu(config):
        jax.config.update("jax_platforms", "cpu")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _wants_gpu(config):
        return
    skip = pytest.mark.skip(reason="needs a CUDA device: run `pytest -m gpu` where there is one")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(
    params=["HostCPU", pytest.param("CUDA", marks=pytest.mark.gpu)],
    scope="session",
)
def fused(request: pytest.FixtureRequest):
    """A backend of fused kernels; the same tests run on a GPU with `-m gpu`."""
    import gradsolve

    return getattr(gradsolve, request.param)()


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_code():
    """Compiled code stays in memory, gigabytes of it over all tests; no two modules share much."""
    yield
    jax.clear_caches()
    gc.collect()
