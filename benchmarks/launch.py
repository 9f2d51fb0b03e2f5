"""Where the time of a call from Python goes when the ensemble is small.

For Lorenz, on the GPU if there is one and on the CPU otherwise. On a GPU calls are timed twice,
each time in a process of its own: `graph`, where XLA may record a launch in a CUDA graph and repeat
it without calling Python, and `callback`, where it may not. See README.md beside this file.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

_GPU_MODES = ("kernels", "graph", "callback")
_PARTS = ("addresses", "pack", "launch")


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


@contextlib.contextmanager
def _parts(kernel: Any) -> Iterator[dict[str, list[float]]]:
    """Seconds of what a callback does, call by call."""
    from gradsolve._fused.arguments import Packer

    seconds: dict[str, list[float]] = {name: [] for name in _PARTS}

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = function(*arguments)
            seconds[name].append(time.perf_counter() - begin)
            return result

        return call

    with contextlib.ExitStack() as stack:
        places = ((kernel, "addresses", "addresses"), (Packer, "__call__", "pack"))
        for owner, attribute, name in (*places, (kernel, "launch", "launch")):
            function = wrapped(name, getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, function))
        yield seconds


def _in_callback(kernel: Any, call: Callable[[], Any], repetitions: int) -> dict[str, float]:
    """Medians of the parts, each summed over a call; and how often a call comes back to Python."""
    import jax

    jax.block_until_ready(call())
    with _parts(kernel) as seconds:
        for _ in range(repetitions):
            jax.block_until_ready(call())
    out = {}
    for name, values in seconds.items():
        per_call = len(values) // repetitions  # 0 where a recorded graph is repeated
        sums = [sum(values[i * per_call : (i + 1) * per_call]) for i in range(repetitions)]
        out[f"{name}_s"] = statistics.median(sums)
    out["callbacks_per_call"] = len(seconds["launch"]) / repetitions
    return out


def _child(mode: str, n: int, repetitions: int) -> dict[str, Any]:
    """One ensemble size in one mode, in this process."""
    import _gradsolve
    import jax
    from _problems import PROBLEMS

    import gradsolve as gs
    from gradsolve._fused.cuda import CudaKernel
    from gradsolve._fused.host import HostKernel

    jax.config.update("jax_enable_x64", True)
    problem = PROBLEMS["lorenz"]
    system, y0 = problem.ensemble(n, "float64", "sorted")
    backend = "hostcpu" if mode == "host" else "cuda"
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
            return {name: _kernel_seconds(launches, call) for name, call in calls().items()}
    kernel = HostKernel if mode == "host" else CudaKernel
    if mode == "callback":
        CudaKernel.repeatable = False
    empty = jax.jit(lambda y: 2.0 * y)
    every = {"empty_jit": lambda: empty(y0), **calls()}
    return {
        name: {
            "median_s": _median(call, repetitions),
            "pipelined_s": _pipelined(call, repetitions),
            "in_callback": _in_callback(kernel, call, repetitions),
        }
        for name, call in every.items()
    }


def _kernel_seconds(launches: Any, call: Callable[[], Any]) -> dict[str, float]:
    """The kernels of a call alone, by events around many launches: medians."""
    import jax

    jax.block_until_ready(call())
    rounds = []
    for _ in range(5):
        launches.clear()
        jax.block_until_ready(call())
        rounds.append(launches.seconds)
    return {job: statistics.median(each[job] for each in rounds) for job in rounds[0]}


def _fresh_process(mode: str, n: int, repetitions: int) -> dict[str, Any]:
    words = ["--child", mode, "--n", str(n), "--repetitions", str(repetitions)]
    environment = dict(os.environ)
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _has_gpu() -> bool:
    # In a process of its own: one that has looked for the GPU holds on to it.
    code = "import jax; print(jax.default_backend())"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()[-1] == "gpu"


def _with_overhead(timed: dict[str, Any], kernels: dict[str, Any] | None) -> dict[str, Any]:
    """Adds what each call costs beyond its kernels."""
    for name, each in timed.items():
        if name == "empty_jit":
            continue
        if kernels is None:  # on a CPU the launch is the kernel
            each["kernels_s"] = each["in_callback"]["launch_s"]
        else:
            each["kernels_by_job_s"] = kernels[name]
            each["kernels_s"] = sum(kernels[name].values())
        each["overhead_s"] = each["median_s"] - each["kernels_s"]
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
    add("--child", choices=(*_GPU_MODES, "host"), default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    repetitions = arguments.repetitions
    if arguments.child is not None:
        print(json.dumps(_child(arguments.child, arguments.n[0], repetitions)))
        return 0

    on_gpu = _has_gpu()
    cells = []
    for n in arguments.n:
        kernels = _fresh_process("kernels", n, repetitions) if on_gpu else None
        for mode in _GPU_MODES[1:] if on_gpu else ("host",):
            calls = _with_overhead(_fresh_process(mode, n, repetitions), kernels)
            cells.append({"n": n, "mode": mode, "calls": calls})
            print(_table(cells[-1]), flush=True)
    if arguments.out is not None:
        import _report

        report = {**_report.header("launch", argv, arguments.commit), "cells": cells}
        _report.write(report, arguments.out)
    return 0


def _table(cell: dict[str, Any]) -> str:
    columns = ("call", "pipelined", "kernels", "overhead", *_PARTS, "callbacks")
    lines = [f"\nn {cell['n']}, {cell['mode']}; microseconds"]
    lines.append(f"{'':12s}" + "".join(f"{name:>11s}" for name in columns))
    for name, each in cell["calls"].items():
        inside = each["in_callback"]
        seconds = [each["median_s"], each["pipelined_s"]]
        seconds += [each.get("kernels_s"), each.get("overhead_s")]
        seconds += [inside[f"{part}_s"] for part in _PARTS]
        words = ["" if value is None else f"{1e6 * value:.1f}" for value in seconds]
        words.append(f"{inside['callbacks_per_call']:g}")
        lines.append(f"{name:12s}" + "".join(f"{word:>11s}" for word in words))
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
