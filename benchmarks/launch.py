"""Where the time of a call from Python goes when the ensemble is small.

For Lorenz, on the GPU if there is one and on the CPU otherwise. On a GPU calls are timed twice,
each time in a process of its own: `handler`, where XLA calls compiled code to launch, and `python`,
which is what happens where there is no C++ compiler. See README.md beside this file.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from _child import run_child

_MODES = ("kernels", "handler", "python")


def _median(call: Callable[[], Any], repetitions: int) -> float:
    from _timing import timed

    for _ in range(5):
        timed(call)
    return statistics.median(timed(call)[0] for _ in range(repetitions))


def _pipelined(call: Callable[[], Any], repetitions: int) -> float:
    """Seconds per call when nobody waits for the results but the last."""
    import jax

    begin = time.perf_counter()
    results = [call() for _ in range(repetitions)]
    jax.block_until_ready(results)
    return (time.perf_counter() - begin) / repetitions


def _in_python(call: Callable[[], Any], repetitions: int) -> dict[str, float]:
    """How often a call comes back to Python for a launch, and how long it is there."""
    import jax

    from gradsolve._fused.cuda import CudaKernel

    seconds: list[float] = []
    launch = CudaKernel.launch

    def timed(*arguments: Any) -> None:
        begin = time.perf_counter()
        launch(*arguments)
        seconds.append(time.perf_counter() - begin)

    jax.block_until_ready(call())
    with mock.patch.object(CudaKernel, "launch", timed):
        for _ in range(repetitions):
            jax.block_until_ready(call())
    return {
        "python_s": sum(seconds) / repetitions,
        "callbacks_per_call": len(seconds) / repetitions,
    }


def _child(mode: str, n: int, repetitions: int) -> dict[str, Any]:
    """One ensemble size in one mode, in this process."""
    import _gradsolve
    import jax
    from _problems import PROBLEMS

    import gradsolve as gs
    from gradsolve._fused import cuda

    jax.config.update("jax_enable_x64", True)
    problem = PROBLEMS["lorenz"]
    system, y0 = problem.ensemble(n, "float64", "sorted")
    backend = "cuda" if jax.default_backend() == "gpu" else "hostcpu"
    options = _gradsolve.options(problem, 1e-6, 1e-9, backend, 2**31)

    def calls() -> dict[str, Callable[[], Any]]:
        trajectory = gs.solve(system, y0, **options)
        attempts = int(trajectory.stats.num_steps.max())
        return {
            "solve": lambda: gs.solve(system, y0, **options).ys,
            "loss_grad": lambda: _gradsolve.replay_gradient(trajectory, system, y0),
            "forward_jit": _gradsolve.forward(system, y0, attempts, options),
            "replay_jit": _gradsolve.replay_gradient_compiled(trajectory, system, y0),
        }

    if mode == "kernels":
        from _kernels import TimedLaunches

        with TimedLaunches() as launches:
            return {name: launches.median_of(call) for name, call in calls().items()}
    if mode == "python":
        cuda.launcher_for_gpu = lambda: "This benchmark launches through Python."
    empty = jax.jit(lambda y: 2.0 * y)
    every = {"empty_jit": lambda: empty(y0), **calls()}
    return {
        name: {
            "median_s": _median(call, repetitions),
            "pipelined_s": _pipelined(call, repetitions),
            **_in_python(call, repetitions),
        }
        for name, call in every.items()
    }


def _fresh_process(mode: str, n: int, repetitions: int) -> dict[str, Any]:
    return run_child(__file__, ["--child", mode, "--n", n, "--repetitions", repetitions])


def _has_gpu() -> bool:
    # In a process of its own: one that has looked for the GPU holds on to it.
    code = "import jax; print(jax.default_backend())"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()[-1] == "gpu"


def _with_overhead(timed: dict[str, Any], kernels: dict[str, Any]) -> dict[str, Any]:
    """Adds what each call costs beyond its kernels, and beyond an empty jitted call."""
    for name, each in timed.items():
        if name == "empty_jit":
            continue
        each["kernels_by_job_s"] = kernels[name]
        each["kernels_s"] = sum(kernels[name].values())
        each["overhead_s"] = each["median_s"] - each["kernels_s"]
        each["beyond_empty_jit_s"] = each["overhead_s"] - timed["empty_jit"]["median_s"]
    return timed


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--n", nargs="+", type=int, default=[128, 2048])
    add("--repetitions", type=int, default=200)
    add("--out", type=Path, default=None)
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    add("--child", choices=_MODES, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    repetitions = arguments.repetitions
    if arguments.child is not None:
        print(json.dumps(_child(arguments.child, arguments.n[0], repetitions)))
        return 0

    on_gpu = _has_gpu()
    cells = []
    for n in arguments.n:
        kernels = _fresh_process("kernels", n, repetitions)
        for mode in _MODES[1:] if on_gpu else ("handler",):
            calls = _with_overhead(_fresh_process(mode, n, repetitions), kernels)
            cells.append({"n": n, "mode": mode, "calls": calls})
            print(_table(cells[-1]), flush=True)
    if arguments.out is not None:
        import _report

        report = {**_report.header("launch", argv, arguments.commit), "cells": cells}
        _report.write(report, arguments.out)
    return 0


def _table(cell: dict[str, Any]) -> str:
    columns = {
        "call": "median_s",
        "pipelined": "pipelined_s",
        "kernels": "kernels_s",
        "overhead": "overhead_s",
        "beyond": "beyond_empty_jit_s",
        "python": "python_s",
    }
    lines = [f"\nn {cell['n']}, {cell['mode']}; microseconds"]
    lines.append(f"{'':12s}" + "".join(f"{name:>11s}" for name in (*columns, "callbacks")))
    for name, each in cell["calls"].items():
        seconds = [each.get(key) for key in columns.values()]
        words = ["" if value is None else f"{1e6 * value:.1f}" for value in seconds]
        words.append(f"{each['callbacks_per_call']:g}")
        lines.append(f"{name:12s}" + "".join(f"{word:>11s}" for word in words))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
