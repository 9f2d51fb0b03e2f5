"""Stiff problems: gradsolve's Rodas5P against Diffrax's Kvaerno5. See README.md beside this file.

First gradsolve at every tolerance, then Diffrax's forward solves, which also count its steps, then
its gradients. Diffrax's functions are compiled in threads before any of them is timed.
"""

import argparse
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _diffrax
import _gradsolve
import _report
import _stiff_report
import jax
import numpy as np
from _ensemble import Ensemble
from _setup import configure_jax, keep_kernels_in
from _stiff_problems import STIFF
from _timing import Call, Clock, Timing, alternate, repetitions, timed

import gradsolve as gs

_RECORD_STEPS = 2**16
_DIFFRAX_REPETITIONS = 3
# p and i of Diffrax's controller. With its default, `i`, about half of all steps are rejected; `pi`
# is one of the choices that its documentation suggests, and takes less time for the same error.
_CONTROLLERS = {"pi": (0.3, 0.3), "i": (0.0, 1.0)}
# How much longer than its forward solve Diffrax's gradient is expected to take.
_GRADIENT_FACTOR = 6.0

Cell = dict[str, Any]
ErrorOf = Callable[[Any], float]


def _new_cell(ensemble: Ensemble, rtol: float) -> Cell:
    problem = ensemble.problem
    return {
        "problem": problem.name,
        "dim": problem.dim,
        "t1": problem.t1,
        "dt0": problem.dt0,
        "dtype": "float64",
        "n": ensemble.n,
        "rtol": rtol,
        "atol": np.asarray(problem.atol(rtol)).tolist(),
        "steps": {},
        "errors": {},
        "timings": {},
        "settings": {},
        "skipped": {},
    }


def measure_gradsolve(
    ensemble: Ensemble, cell: Cell, arguments: argparse.Namespace, clock: Clock
) -> None:
    """Forward solve, replayed gradient, and recording with adjoint, each in one `jit`."""
    problem, system, y0 = ensemble.problem, ensemble.system, ensemble.y0
    rtol = cell["rtol"]
    options = _gradsolve.options(
        problem, rtol, problem.atol(rtol), arguments.backend, arguments.memory_limit
    )
    trajectory = gs.solve(system, y0, max_steps=_RECORD_STEPS, **options)
    attempts = int(np.max(trajectory.stats.num_steps))
    cell["backend"] = {"ran": trajectory.backend.actual, "reason": trajectory.backend.reason}
    cell["steps"]["gradsolve_max_attempts"] = attempts
    cell["steps"]["gradsolve_max_rejected"] = int(np.max(trajectory.stats.num_rejected_steps))
    replay = _gradsolve.replay_gradient_compiled
    record = _gradsolve.record_and_adjoint
    calls: dict[str, tuple[Call, ErrorOf]] = {
        "forward": (
            _gradsolve.forward(system, y0, attempts, options),
            ensemble.state_error,
        ),
        "replay": (replay(trajectory, system, y0), ensemble.gradient_error),
        "record_adjoint": (record(system, y0, attempts, options), ensemble.gradient_error),
    }
    if arguments.xla:
        on_xla = _gradsolve.on_xla(options)
        replayed = _gradsolve.replayed_by_xla(trajectory)
        calls["xla_replay"] = replay(replayed, system, y0), ensemble.gradient_error
        calls["xla_record_adjoint"] = record(system, y0, attempts, on_xla), ensemble.gradient_error
    first: dict[str, float] = {}
    quickest: list[float] = []
    for group, (call, error_of) in calls.items():
        first[group], outputs = timed(call)
        cell["errors"][group] = error_of(outputs)
        del outputs
        quickest.append(min(timed(call)[0] for _ in range(2)))
    rounds = repetitions(sum(quickest), max(quickest), clock.left)
    seconds = alternate({group: call for group, (call, _) in calls.items()}, rounds)
    for group, warm in seconds.items():
        cell["timings"][group] = Timing(first[group], tuple(warm)).as_json()


def _compile(
    jobs: Mapping[Any, Callable[[], Any]], threads: int
) -> dict[Any, tuple[float, Any] | Exception]:
    """What each job returned and the seconds it took among the others, or why it failed."""

    def attempt(job: Callable[[], Any]) -> tuple[float, Any] | Exception:
        start = time.perf_counter()
        try:
            result = job()
        except Exception as error:
            return error
        return time.perf_counter() - start, result

    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(jobs, pool.map(attempt, jobs.values()), strict=True))


def _time_compiled(
    call: Call, compiling: float, slow_seconds: float, clock: Clock
) -> tuple[Timing, Any]:
    """A few warm calls, or only the first one, which does not compile, if that is slow."""
    first, outputs = timed(call)
    rounds = 0
    if first < slow_seconds:
        rounds = min(_DIFFRAX_REPETITIONS, int(max(clock.left, 0.0) / first))
    warm = [timed(call)[0] for _ in range(rounds)]
    return Timing(compiling + first, tuple(warm or [first])), outputs


class Diffrax:
    """Diffrax's part of the cells at its tolerances."""

    def __init__(
        self,
        cells: Sequence[tuple[Ensemble, Cell]],
        arguments: argparse.Namespace,
        clock: Clock,
        write: Callable[[Cell], None],
    ) -> None:
        self._cells = [(e, c) for e, c in cells if c["rtol"] in arguments.diffrax_rtol]
        self._arguments, self._clock, self._write = arguments, clock, write

    def forward(self) -> None:
        """End states, their errors, and the steps that they take."""
        ensembles = {(e.problem.name, e.n): e for e, _ in self._cells}
        jobs = {
            key: lambda e=e: _diffrax.compile_forward(e.problem, e.system, e.y0)
            for key, e in ensembles.items()
        }
        compiled = _compile(jobs, self._arguments.compile_threads)
        for ensemble, cell in self._cells:
            made = compiled[ensemble.problem.name, ensemble.n]
            ready = self._ready(made, cell, "diffrax_forward", 0.0)
            if ready is None:
                continue
            seconds, run = ready
            call = lambda run=run, cell=cell: run(cell["rtol"])
            timing, (states, stats, ok) = self._time(call, seconds)
            cell["steps"]["diffrax_max_attempts"] = int(np.max(stats["num_steps"]))
            cell["steps"]["diffrax_max_rejected"] = int(np.max(stats["num_rejected_steps"]))
            if not np.all(ok):
                cell["skipped"]["diffrax"] = "failed: Diffrax did not reach the end"
                continue
            cell["timings"]["diffrax_forward"] = timing.as_json()
            cell["errors"]["diffrax_forward"] = ensemble.state_error(states)
            self._write(cell)

    def gradient(self) -> None:
        """Gradients, with `max_steps` as many as the forward solve needed."""
        cells = [(e, c) for e, c in self._cells if "diffrax_forward" in c["timings"]]
        settings = self._arguments.checkpoints
        jobs = {
            (id(cell), setting): lambda e=e, cell=cell, setting=setting: _diffrax.compile_gradient(
                e.problem,
                cell["rtol"],
                cell["steps"]["diffrax_max_attempts"],
                setting,
                e.system,
                e.y0,
            )
            for (e, cell), setting in itertools.product(cells, settings)
        }
        compiled = _compile(jobs, self._arguments.compile_threads)
        for (ensemble, cell), setting in itertools.product(cells, settings):
            made = compiled.pop((id(cell), setting))
            expected = _GRADIENT_FACTOR * cell["timings"]["diffrax_forward"]["median_s"]
            ready = self._ready(made, cell, f"diffrax {setting}", expected)
            if ready is None:
                continue
            seconds, call = ready
            try:
                timing, gradient = self._time(call, seconds)
            except Exception as error:
                cell["skipped"][f"diffrax {setting}"] = _reason(error)
                continue
            best = cell["timings"].get("diffrax")
            if best is None or timing.median < best["median_s"]:
                cell["timings"]["diffrax"] = timing.as_json()
                cell["settings"]["diffrax"] = setting
                cell["errors"]["diffrax"] = ensemble.gradient_error(gradient)
            self._write(cell)

    def _time(self, call: Call, compiling: float) -> tuple[Timing, Any]:
        return _time_compiled(call, compiling, self._arguments.slow_seconds, self._clock)

    def _ready(
        self, made: tuple[float, Any] | Exception, cell: Cell, what: str, expected: float
    ) -> tuple[float, Any] | None:
        """What was compiled, if it was and there is time to run it."""
        if isinstance(made, Exception):
            cell["skipped"][what] = _reason(made)
            return None
        left = self._clock.left
        if left < expected or left <= 0.0:
            cell["skipped"][what] = (
                f"expected to take {expected:.0f} s, but {max(left, 0):.0f} s were left"
            )
            return None
        return made


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"failed: {type(error).__name__}: {lines[0] if lines else ''}"


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--problems", nargs="+", choices=list(STIFF), default=list(STIFF))
    add("--n", nargs="+", type=int, default=[512] if on_cpu else [8192, 128])
    add(
        "--rtol",
        nargs="+",
        type=float,
        default=[1e-4, 1e-5, 1e-6, 1e-7, 3e-8, 1e-8, 3e-9, 1e-9, 3e-10, 1e-10, 1e-11],
        help="gradsolve's tolerances",
    )
    add(
        "--diffrax-rtol",
        nargs="*",
        type=float,
        default=[1e-6, 1e-8],
        help="Diffrax's, in the order in which they are measured",
    )
    add("--diffrax-controller", choices=list(_CONTROLLERS), default="pi")
    add("--backend", choices=list(_gradsolve.backends()), default="auto", help="of gradsolve")
    add("--xla", action="store_true", help="gradsolve's gradients on plain JAX too")
    add(
        "--checkpoints",
        nargs="+",
        choices=_diffrax.CHECKPOINTS,
        default=["all"],
        help="settings of Diffrax's adjoint to try",
    )
    add(
        "--slow-seconds",
        type=float,
        default=30.0 if on_cpu else 5.0,
        help="a call of Diffrax that takes longer is not repeated",
    )
    add("--compile-threads", type=int, default=max((os.cpu_count() or 1) // 2, 1))
    add(
        "--budget-seconds",
        type=float,
        default=1800.0 if on_cpu else 540.0,
        help="what is not expected to fit is skipped, with the reason in the results",
    )
    add("--cache-dir", type=Path, default=None, help="of gradsolve's compiled kernels")
    add("--memory-limit", type=int, default=2**31 if on_cpu else 2**34)
    add("--out", type=Path, default=None, help="JSON file, written after every cell")
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    arguments = parser.parse_args(argv)
    arguments.order = "sorted"
    return arguments


def main(argv: Sequence[str]) -> int:
    configure_jax()
    arguments = _arguments(argv)
    keep_kernels_in(arguments.cache_dir)
    clock = Clock(arguments.budget_seconds)
    report = _report.start("stiff", argv, arguments)
    report["compile_threads"] = arguments.compile_threads

    def write(cell: Cell) -> None:
        _stiff_report.compare(report)
        print(_stiff_report.progress(cell), flush=True)
        if arguments.out is not None:
            _report.write(report, arguments.out)

    cells: list[tuple[Ensemble, Cell]] = []
    rtols = sorted({*arguments.rtol, *arguments.diffrax_rtol}, reverse=True)
    coefficients = _CONTROLLERS[arguments.diffrax_controller]
    report["diffrax_controller"] = arguments.diffrax_controller
    for name, n in itertools.product(arguments.problems, arguments.n):
        problem = dataclasses.replace(STIFF[name], diffrax_coefficients=coefficients)
        ensemble = Ensemble(problem, n)
        for rtol in rtols:
            cell = _new_cell(ensemble, rtol)
            report["cells"].append(cell)
            cells.append((ensemble, cell))
            try:
                measure_gradsolve(ensemble, cell, arguments, clock)
            except Exception as error:
                cell["skipped"]["gradsolve"] = _reason(error)
            write(cell)
    # In the order in which the tolerances were given, since time may run out.
    cells.sort(key=lambda pair: [*arguments.diffrax_rtol, pair[1]["rtol"]].index(pair[1]["rtol"]))
    diffrax = Diffrax(cells, arguments, clock, write)
    diffrax.forward()
    diffrax.gradient()
    report["load_average"]["end"] = _report.load()
    if arguments.out is not None:
        _report.write(report, arguments.out)
    print(_stiff_report.table(report))
    return int(any("failed" in why for _, cell in cells for why in cell["skipped"].values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
