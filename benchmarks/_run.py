"""One benchmark run: which cells, in which order, within which time."""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import _diffrax
import _gradsolve
import _report
import jax
import numpy as np
from _problems import ORDERS, PROBLEMS, Problem
from _setup import configure_jax, keep_kernels_in
from _timing import Call, Clock, Timing, alternate, ratio, repetitions, timed
from jaxtyping import Array

import gradsolve as gs

_SAMPLE = 32
_RECORD_STEPS = 4096  # the default of `gradsolve.solve`
_FIRST_GUESS_SECONDS = 1.0
_WARM_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to time. Of several with one `group` the fastest is kept.

    `build` returns the call (it may compute inputs first), `outputs` turns the call's result into
    the rows that are compared with the reference. `first` is set when the first call has already
    been made and timed.
    """

    group: str
    setting: str
    build: Callable[[], Call]
    outputs: Callable[[Any], np.ndarray]
    first: float | None = None


class Case:
    """One cell: an ensemble, its tolerances, and what both libraries need to know about it."""

    def __init__(
        self, problem: Problem, n: int, rtol: float, dtype: str, arguments: argparse.Namespace
    ) -> None:
        self.problem, self.n, self.dtype = problem, n, dtype
        self.rtol, self.atol = rtol, rtol * 1e-3
        self.checkpoints: list[str] = arguments.checkpoints
        self.options = _gradsolve.options(
            problem, rtol, self.atol, arguments.backend, arguments.memory_limit
        )
        self.system, self.y0 = problem.ensemble(n, dtype, arguments.order)
        self.sample = np.unique(np.linspace(0, n - 1, _SAMPLE).round().astype(int))
        self._diffrax_steps: tuple[int, np.ndarray] | None = None

    def record(self) -> gs.Trajectory:
        """`gradsolve.solve` as called from Python."""
        return gs.solve(self.system, self.y0, max_steps=_RECORD_STEPS, **self.options)

    def prepare(self) -> None:
        """Records the mesh, which also says how many steps the compiled variants need."""
        self.record_seconds, self.trajectory = timed(self.record)
        self.max_steps = int(np.max(self.trajectory.stats.num_steps))
        self.accepted = np.asarray(self.trajectory.stats.num_accepted_steps)

    def diffrax_steps(self) -> tuple[int, np.ndarray]:
        """The most attempts of a trajectory, and the accepted steps of each."""
        if self._diffrax_steps is None:
            self._diffrax_steps = _diffrax.count_steps(
                self.problem, self.rtol, self.atol, self.system, self.y0
            )
        return self._diffrax_steps

    @property
    def fused(self) -> bool:
        """Whether there is something to compare with gradsolve's own plain JAX."""
        return self.trajectory.backend.actual != "XLA"

    def sampled(self) -> tuple[gs.ODESystem, Array]:
        """The trajectories that are compared with the reference."""
        return self.problem.part(self.system, self.y0, self.sample)

    def rows(self, outputs: Any) -> np.ndarray:
        """Those of an array with a row per trajectory."""
        return np.asarray(outputs)[self.sample]

    def steps_as_json(self) -> dict[str, Any]:
        steps: dict[str, Any] = {
            "gradsolve_max_attempts": self.max_steps,
            "gradsolve_mean_accepted": float(self.accepted.mean()),
        }
        if self._diffrax_steps is not None:
            attempts, accepted = self._diffrax_steps
            steps["diffrax_max_attempts"] = attempts
            steps["diffrax_mean_accepted"] = float(accepted.mean())
            steps["trajectories_with_equal_accepted"] = float((accepted == self.accepted).mean())
        return steps


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What a script compares: its candidates, and what they should have computed.

    `xla` names for each group of fused calls the one that makes the same call on plain JAX.
    """

    name: str
    description: str
    candidates: Callable[[Case], Sequence[Candidate]]
    reference: Callable[[_diffrax.Reference, Case], np.ndarray]
    xla: Mapping[str, str]


def _relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest `|got - want| / |want|` of a row, in the Euclidean norm."""
    got = np.asarray(got, np.float64)
    scale = np.linalg.norm(want, axis=1)
    return float(np.max(np.linalg.norm(got - want, axis=1) / scale))


@dataclasses.dataclass(frozen=True)
class _Warm:
    candidate: Candidate
    call: Call
    first: float
    seconds: float
    outputs: np.ndarray


class LeftOut(Exception):
    """Something is not measured on purpose; the message says why."""


class _Runner:
    def __init__(self, benchmark: Benchmark, arguments: argparse.Namespace) -> None:
        self._benchmark = benchmark
        self._arguments = arguments
        self._references: dict[str, _diffrax.Reference] = {}
        # (problem, dtype, group, setting) -> n, compile seconds, warm seconds
        self._history: dict[tuple[str, str, str, str], tuple[int, float, float]] = {}

    def cell(
        self, problem: Problem, n: int, rtol: float, dtype: str, clock: Clock
    ) -> dict[str, Any]:
        """Measures one cell; whatever could not be measured is in `skipped`, with the reason."""
        cell: dict[str, Any] = {
            "problem": problem.name,
            "dim": problem.dim,
            "t1": problem.t1,
            "dt0": problem.dt0,
            "dtype": dtype,
            "n": n,
            "order": self._arguments.order,
            "rtol": rtol,
            "atol": rtol * 1e-3,
            "steps": {},
            "errors": {},
            "timings": {},
            "ratios": {},
            "ratios_to_xla": {},
            "settings": {},
            "tried": {},
            "skipped": {},
        }
        if dtype == "float32" and rtol < 1e-6:
            cell["skipped"]["all"] = "the tolerance is near or below the rounding of float32"
            return cell
        if clock.left <= 0:
            cell["skipped"]["all"] = "the time of this problem was used up"
            return cell
        case = Case(problem, n, rtol, dtype, self._arguments)
        try:
            self._check_time(case, "prepare", "", clock)
            case.prepare()
        except Exception as error:
            cell["skipped"]["all"] = _reason(error)
            return cell
        self._remember(case, "prepare", "", case.record_seconds, 0.0)
        report = case.trajectory.backend
        cell["backend"] = {"ran": report.actual, "reason": report.reason}

        warm: dict[str, list[_Warm]] = {}
        for candidate in self._benchmark.candidates(case):
            group, setting = candidate.group, candidate.setting
            try:
                self._check_time(case, group, setting, clock)
                one = self._warm_up(case, candidate)
            except Exception as error:
                cell["skipped"][f"{group} {setting}".strip()] = _reason(error)
                continue
            warm.setdefault(group, []).append(one)
            self._remember(case, group, setting, one.first, one.seconds)
            cell["tried"].setdefault(group, {})[setting] = one.seconds
        cell["steps"] = case.steps_as_json()
        if not warm:
            return cell
        best = {group: min(members, key=lambda one: one.seconds) for group, members in warm.items()}
        slowest = max(one.seconds for one in best.values())
        rounds = repetitions(sum(one.seconds for one in best.values()), slowest, clock.left)
        try:
            seconds = alternate({group: one.call for group, one in best.items()}, rounds)
        except Exception as error:
            cell["skipped"]["repetitions"] = _reason(error)
            return cell
        timings = {group: Timing(one.first, tuple(seconds[group])) for group, one in best.items()}
        cell["timings"] = {group: timing.as_json() for group, timing in timings.items()}
        cell["settings"] = {
            group: one.candidate.setting for group, one in best.items() if one.candidate.setting
        }
        if "diffrax" in timings:
            cell["ratios"] = {
                group: ratio(timings["diffrax"], timing)
                for group, timing in timings.items()
                if group != "diffrax"
            }
        cell["ratios_to_xla"] = {
            group: ratio(timings[xla], timings[group])
            for group, xla in self._benchmark.xla.items()
            if group in timings and xla in timings
        }
        self._compare(case, best, cell)
        return cell

    def _compare(self, case: Case, best: dict[str, _Warm], cell: dict[str, Any]) -> None:
        """Adds the errors against the reference."""
        try:
            want = self._reference(case)
        except Exception as error:
            cell["skipped"]["errors"] = _reason(error)
            return
        for group, one in best.items():
            error = _relative_error(one.outputs, want)
            if math.isfinite(error):
                cell["errors"][group] = error
            else:
                cell["skipped"][f"{group} error"] = "failed: the result is not finite"

    def _warm_up(self, case: Case, candidate: Candidate) -> _Warm:
        call = candidate.build()
        first = candidate.first
        if first is None:
            first, _ = timed(call)
        quickest, result = timed(call)
        outputs = candidate.outputs(result)
        del result
        if quickest < 1.0:
            quickest = min(quickest, *[timed(call)[0] for _ in range(_WARM_CALLS)])
        return _Warm(candidate, call, first, quickest, outputs)

    def _reference(self, case: Case) -> np.ndarray:
        name = case.problem.name
        if name not in self._references:
            self._references[name] = _diffrax.Reference(case.problem, case.system)
        return self._benchmark.reference(self._references[name], case)

    def _check_time(self, case: Case, group: str, setting: str, clock: Clock) -> None:
        """Raises `LeftOut` unless the candidate is expected to finish.

        The expectation comes from the last cell of this problem: compiling takes as long again,
        and a call is at most proportional to `n`.
        """
        known = self._history.get(_key(case, group, setting))
        if known is None:
            if clock.left < _FIRST_GUESS_SECONDS:
                raise LeftOut("the time of this problem was used up")
            return
        n, compiling, seconds = known
        call = seconds * max(case.n / n, 1.0)
        expected = compiling + 4 * call
        limit = self._arguments.call_seconds
        if call > limit:
            raise LeftOut(f"one call is expected to take {call:.0f} s, more than {limit:g} s")
        if expected > clock.left:
            raise LeftOut(
                f"expected to take {expected:.0f} s, but {max(clock.left, 0):.0f} s were left"
            )

    def _remember(self, case: Case, group: str, setting: str, first: float, seconds: float) -> None:
        self._history[_key(case, group, setting)] = (case.n, max(first - seconds, 0.0), seconds)


def _key(case: Case, group: str, setting: str) -> tuple[str, str, str, str]:
    return case.problem.name, case.dtype, group, setting


def _reason(error: Exception) -> str:
    if isinstance(error, LeftOut):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"failed: {type(error).__name__}: {lines[0] if lines else ''}"


def _arguments(benchmark: Benchmark, argv: Sequence[str]) -> argparse.Namespace:
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(
        description=benchmark.description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    add(
        "--n",
        nargs="+",
        type=int,
        default=[128, 2048] if on_cpu else [2048, 32768, 524288, 128],
        help="ensemble sizes in the order in which they are measured",
    )
    add(
        "--rtol",
        nargs="+",
        type=float,
        default=[1e-6, 1e-4, 1e-8],
        help="tolerances in the order in which they are measured; atol is a thousandth",
    )
    add("--dtype", nargs="+", choices=["float64", "float32"], default=["float64"])
    add("--backend", choices=list(_gradsolve.backends()), default="auto", help="of gradsolve")
    add("--order", choices=ORDERS, default=ORDERS[0], help="of the ensemble")
    add(
        "--cache-dir",
        type=Path,
        default=None,
        help="of gradsolve's compiled kernels; an empty one makes first calls compile",
    )
    add(
        "--budget-seconds",
        type=float,
        default=1800.0 if on_cpu else 540.0,
        help="the whole run; what does not fit is skipped, with the reason in the results",
    )
    add(
        "--checkpoints",
        nargs="+",
        choices=_diffrax.CHECKPOINTS,
        default=list(_diffrax.CHECKPOINTS),
        help="settings of Diffrax's adjoint to try; fewer take less time to compile",
    )
    add("--call-seconds", type=float, default=60.0, help="the longest single call")
    add(
        "--memory-limit",
        type=int,
        default=2**31 if on_cpu else 2**34,
        help="bytes of gradsolve's checkpoints",
    )
    add("--quick", action="store_true", help="two problems, n = 128 and 2048, rtol 1e-6")
    add("--out", type=Path, default=None, help="JSON file; a plot is written beside it")
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.problems = ["lorenz", "lotka_volterra"]
        arguments.n, arguments.rtol = [128, 2048], [1e-6]
    return arguments


def main(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 1 if anything failed, as opposed to not fitting in time."""
    argv = sys.argv[1:] if argv is None else argv
    configure_jax()
    arguments = _arguments(benchmark, argv)
    keep_kernels_in(arguments.cache_dir)
    total = Clock(arguments.budget_seconds)
    report = _report.start(benchmark.name, argv, arguments)
    runner = _Runner(benchmark, arguments)
    for number, name in enumerate(arguments.problems):
        clock = Clock(total.left / (len(arguments.problems) - number))
        for dtype, rtol, n in itertools.product(arguments.dtype, arguments.rtol, arguments.n):
            cell = runner.cell(PROBLEMS[name], n, rtol, dtype, clock)
            report["cells"].append(cell)
            print(_report.progress(cell), flush=True)
            if arguments.out is not None:
                _report.write(report, arguments.out)
    _report.finish(report)
    if arguments.out is not None:
        _report.write(report, arguments.out)
    print(_report.table(report))
    if arguments.out is not None:
        print(_report.plot(report, arguments.out.with_suffix(".png")))
    failed = any(
        "failed" in reason for cell in report["cells"] for reason in cell["skipped"].values()
    )
    return 1 if failed else 0
