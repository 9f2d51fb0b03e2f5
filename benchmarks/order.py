"""What it costs when the trajectories of an ensemble are in no order. See README.md beside it.

Lorenz, sorted by the swept parameter and shuffled, in one run: calls in turn, and the kernels alone
in a process of their own.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _child import run_child

_ORDERS = ("sorted", "shuffled")


def _calls(n: int, rtol: float, order: str) -> dict[str, Callable[[], Any]]:
    """A forward solve, a gradient by replay, and recording with adjoint, each in one `jit`."""
    import _gradsolve
    import jax
    from _problems import PROBLEMS

    import gradsolve as gs

    problem = PROBLEMS["lorenz"]
    system, y0 = problem.ensemble(n, "float64", order)
    backend = "cuda" if jax.default_backend() == "gpu" else "hostcpu"
    options = _gradsolve.options(problem, rtol, 1e-3 * rtol, backend, 2**35)
    trajectory = gs.solve(system, y0, **options)
    attempts = int(trajectory.stats.num_steps.max())
    return {
        "forward": _gradsolve.forward(system, y0, attempts, options),
        "replay": _gradsolve.replay_gradient_compiled(trajectory, system, y0),
        "record_adjoint": _gradsolve.record_and_adjoint(system, y0, attempts, options),
    }


def _times_of_calls(n: int, rtol: float, rounds: int) -> dict[str, dict[str, float]]:
    from _timing import alternate, timed

    calls = {order: _calls(n, rtol, order) for order in _ORDERS}
    every = {f"{order} {name}": call for order in _ORDERS for name, call in calls[order].items()}
    for call in every.values():
        for _ in range(3):
            timed(call)
    seconds = alternate(every, rounds)
    return {
        order: {name: statistics.median(seconds[f"{order} {name}"]) for name in calls[order]}
        for order in _ORDERS
    }


def _times_of_kernels(n: int, rtol: float, rounds: int) -> dict[str, dict[str, float]]:
    """Of each call the sum of its kernels, by events around many launches on a GPU."""
    from _kernels import TimedLaunches

    del rounds
    with TimedLaunches() as launches:
        return {
            order: {
                name: sum(launches.median_of(call).values())
                for name, call in _calls(n, rtol, order).items()
            }
            for order in _ORDERS
        }


_MODES = {"calls": _times_of_calls, "kernels": _times_of_kernels}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--n", type=int, default=524288)
    add("--rtol", nargs="+", type=float, default=[1e-6, 1e-8])
    add("--rounds", type=int, default=40)
    add("--out", type=Path, default=None)
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    add("--child", choices=list(_MODES), default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    n, rounds = arguments.n, arguments.rounds
    if arguments.child is not None:
        import jax

        jax.config.update("jax_enable_x64", True)
        print(json.dumps(_MODES[arguments.child](n, arguments.rtol[0], rounds)))
        return 0

    cells = []
    for rtol in arguments.rtol:
        for mode in _MODES:
            words = ["--child", mode, "--n", n, "--rtol", rtol, "--rounds", rounds]
            times = run_child(__file__, words)
            ratios = {name: times["shuffled"][name] / s for name, s in times["sorted"].items()}
            cells.append({"n": n, "rtol": rtol, "what": mode, "seconds": times, "ratio": ratios})
            for name, ratio in ratios.items():
                both = "  ".join(f"{order} {1e6 * times[order][name]:8.1f}" for order in _ORDERS)
                print(f"rtol {rtol:g}  {mode:8s}{name:16s}{both} us  ratio {ratio:.3f}", flush=True)
    if arguments.out is not None:
        import _report

        report = {**_report.header("order", argv, arguments.commit), "cells": cells}
        _report.write(report, arguments.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
