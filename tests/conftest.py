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

# Compiling takes most of the time, and much of that goes into the optimization of code that runs
# once: an adjoint compiled in 1.2 s instead of 3.7 with these (jax 0.10.2).
_UNOPTIMIZED = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if jax.__version_info__ < (0, 11):  # jax 0.12 ends the process when it meets this one
    _UNOPTIMIZED += ["--xla_cpu_use_fusion_emitters=false"]


def _asks_for(config: pytest.Config, marker: str) -> bool:
    expression = config.getoption("markexpr") or ""
    return marker in expression and f"not {marker}" not in expression


def pytest_configure(config: pytest.Config) -> None:
    # The library never changes a global setting, so float64 is switched on here.
    jax.config.update("jax_enable_x64", True)
    # A persistent cache would hide compilation failures and falsify compilation counts.
    jax.config.update("jax_enable_compilation_cache", False)
    if _asks_for(config, "gpu"):
        return
    jax.config.update("jax_platforms", "cpu")
    if not _asks_for(config, "optimized"):
        # In a subprocess of a test, too.
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_UNOPTIMIZED]).strip()


_SKIPPED = {
    "gpu": "needs a CUDA device: run `pytest -m gpu` where there is one",
    "optimized": "about the rounding of optimized code: run `pytest -m optimized`",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker, reason in _SKIPPED.items():
        if _asks_for(config, marker):
            continue
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


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
