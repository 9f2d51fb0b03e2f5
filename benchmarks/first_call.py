"""How long first calls take, with an empty and with a filled cache of compiled kernels.

Lorenz: a solve and a gradient, each in a fresh process; what is timed is tracing, generating,
compiling and the first run, not importing and not starting the device. See README.md beside this
file.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _child import run_child

_WAYS = ("python", "jit")


def _child(way: str, backend: str, n: int) -> dict[str, Any]:
    """One process: the calls in the order in which a program makes them."""
    begin = time.perf_counter()
    import _gradsolve
    import jax
    import jax.numpy as jnp
    from _problems import PROBLEMS
    from _timing import timed

    import gradsolve as gs
    from gradsolve._build import BUILD_COUNTS

    imported = time.perf_counter() - begin
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    started, _ = timed(lambda: jax.jit(lambda x: 2.0 * x)(jnp.ones(3)))
    problem = PROBLEMS["lorenz"]
    system, y0 = jax.block_until_ready(problem.ensemble(n, "float64", "sorted"))
    options = _gradsolve.options(problem, 1e-6, 1e-9, backend, 2**31)
    made: list[gs.Trajectory] = []
    calls: dict[str, Callable[[], Any]]
    if way == "python":

        def solve() -> Any:
            made.append(gs.solve(system, y0, **options))
            return made[-1].ys

        calls = {
            "solve": solve,
            "gradient": lambda: _gradsolve.replay_gradient(made[-1], system, y0),
        }
    else:
        calls = {
            "solve": _gradsolve.forward(system, y0, 64, options),
            "gradient": _gradsolve.record_and_adjoint(system, y0, 64, options),
        }
    seconds: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        before = sum(BUILD_COUNTS.values())
        first, _ = timed(call)
        built = sum(BUILD_COUNTS.values()) - before
        second, _ = timed(call)
        seconds[name] = {"first_s": first, "second_s": second, "built": built}
    return {
        "import_s": imported,
        "start_device_s": started,
        "ran": gs.solve(system, y0, **options).backend.actual,
        "platform": jax.default_backend(),
        "calls": seconds,
    }


def _fresh_process(way: str, arguments: argparse.Namespace, cache: str) -> dict[str, Any]:
    words = ["--child", way, "--backend", arguments.backend, "--n", arguments.n]
    return run_child(__file__, words, GRADSOLVE_CACHE_DIR=cache)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--n", type=int, default=2048)
    add("--backend", default="auto", help="as in forward.py")
    add("--repetitions", type=int, default=3, help="empty caches, each filled and used again")
    add("--ways", nargs="+", choices=_WAYS, default=list(_WAYS), help="from Python, or inside jit")
    add("--out", type=Path, default=None)
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    add("--child", choices=_WAYS, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child is not None:
        print(json.dumps(_child(arguments.child, arguments.backend, arguments.n)))
        return 0

    runs: list[dict[str, Any]] = []
    for way in arguments.ways:
        for _ in range(arguments.repetitions):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    run = _fresh_process(way, arguments, cache)
                    runs.append({"way": way, "cache": state, **run})
                    print(_line(runs[-1]), flush=True)
    summary = [
        {
            "way": way,
            "call": call,
            **{
                f"{state}_s": statistics.median(
                    run["calls"][call]["first_s"]
                    for run in runs
                    if (run["way"], run["cache"]) == (way, state)
                )
                for state in ("cold", "warm")
            },
        }
        for way in arguments.ways
        for call in ("solve", "gradient")
    ]
    for row in summary:
        print(
            f"{row['way']:6s} {row['call']:8s} empty cache {row['cold_s']:.2f} s, "
            f"filled {row['warm_s']:.2f} s"
        )
    if arguments.out is not None:
        # Not before: looking for the device keeps it from the processes that are timed.
        import _report

        header = _report.header("first_call", argv, arguments.commit)
        report = {**header, "n": arguments.n, "summary": summary, "runs": runs}
        _report.write(report, arguments.out)
    # A warm cache that builds is none, and a cold one that does not was not empty.
    fused = [run for run in runs if run["ran"] != "XLA"]
    wrong = [
        run
        for run in fused
        if (sum(c["built"] for c in run["calls"].values()) > 0) != (run["cache"] == "cold")
    ]
    return 1 if wrong else 0


def _line(run: dict[str, Any]) -> str:
    calls = "  ".join(
        f"{name} {each['first_s']:.2f} s (then {1e3 * each['second_s']:.2f} ms, "
        f"{each['built']} built)"
        for name, each in run["calls"].items()
    )
    return f"{run['way']} {run['cache']}: {calls}  import {run['import_s']:.1f} s"


if __name__ == "__main__":
    raise SystemExit(main())
