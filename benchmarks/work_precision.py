"""Which integrator needs the least time for a given error? See README.md beside this file.

Every integrator at every tolerance, on the stiff problems and on Lorenz: the time and the achieved
error of the forward solve, and of recording with adjoint.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _diffrax
import _gradsolve
import _report
import _work_precision_report
import diffrax
import jax
import numpy as np
from _ensemble import Ensemble
from _problems import PROBLEMS
from _setup import configure_jax, keep_kernels_in
from _stiff_problems import STIFF
from _timing import Timing, alternate, timed

import gradsolve as gs

_EVERY = {**STIFF, "lorenz": PROBLEMS["lorenz"]}
_ROSENBROCK = (
    *("Rosenbrock23", "Ros3p", "Rodas3", "ROS34PW2"),
    *("GRK4T", "Rodas4", "Rodas4P", "Rodas5P"),
)
_EXPLICIT = ("Bosh3", "Tsit5", "Vern7")
_DIFFRAX = ("Kvaerno3", "Kvaerno5")

_MOST_ROUNDS = 15

Point = dict[str, Any]


def _rounds(seconds: float, wanted: float) -> int:
    return min(max(int(wanted / seconds), 3), _MOST_ROUNDS)


def _gradsolve_point(ensemble: Ensemble, rtol: float, arguments: argparse.Namespace) -> Point:
    problem, system, y0 = ensemble.problem, ensemble.system, ensemble.y0
    options = _gradsolve.options(
        problem, rtol, problem.atol(rtol), arguments.backend, arguments.memory_limit
    )
    trajectory = gs.solve(system, y0, max_steps=arguments.max_steps, throw=False, **options)
    if not np.all(trajectory.succeeded):
        raise RuntimeError(f"not at the end after {arguments.max_steps} steps")
    attempts = int(np.max(trajectory.stats.num_steps))
    calls = {
        "forward": _gradsolve.forward(system, y0, attempts, options),
        "gradient": _gradsolve.record_and_adjoint(system, y0, attempts, options),
    }
    error_of = {"forward": ensemble.state_error, "gradient": ensemble.gradient_error}
    point: Point = {
        "backend": trajectory.backend.actual,
        "max_attempts": attempts,
        "max_rejected": int(np.max(trajectory.stats.num_rejected_steps)),
        "errors": {},
        "timings": {},
    }
    first, quickest = {}, 0.0
    for name, call in calls.items():
        first[name], outputs = timed(call)
        point["errors"][name] = error_of[name](outputs)
        quickest += timed(call)[0]
    warm = alternate(calls, _rounds(quickest, arguments.point_seconds))
    point["timings"] = {name: Timing(first[name], tuple(warm[name])).as_json() for name in calls}
    return point


def _diffrax_points(ensemble: Ensemble, arguments: argparse.Namespace) -> list[Point]:
    """Forward solves only: their gradients take minutes. It stops where a call is slow."""
    run = _diffrax.compile_forward(ensemble.problem, ensemble.system, ensemble.y0)
    points: list[Point] = []
    for rtol in arguments.rtol:
        first, (states, stats, ok) = timed(lambda rtol=rtol: run(rtol))
        if np.all(ok):
            slow = first > arguments.diffrax_seconds
            warm = [] if slow else [timed(lambda rtol=rtol: run(rtol))[0] for _ in range(3)]
            points.append(
                {
                    "rtol": rtol,
                    "max_attempts": int(np.max(stats["num_steps"])),
                    "errors": {"forward": ensemble.state_error(states)},
                    "timings": {"forward": Timing(first, tuple(warm or [first])).as_json()},
                }
            )
        if first > arguments.diffrax_seconds:
            break
    return points


def _curve(name: str, integrator: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One integrator on one problem, from loose to tight tolerances as far as it is worth while."""
    problem = dataclasses.replace(_EVERY[name], integrator=getattr(gs, integrator)())
    ensemble = Ensemble(problem, arguments.n)
    curve: dict[str, Any] = {"problem": name, "integrator": integrator, "points": [], "skipped": {}}
    for rtol in sorted(arguments.rtol, reverse=True):
        try:
            point = _gradsolve_point(ensemble, rtol, arguments)
        except Exception as error:
            curve["skipped"] = {"rtol": rtol, "reason": str(error).strip().splitlines()[0]}
            break
        curve["points"].append({"rtol": rtol, **point})
        seconds = point["timings"]["gradient"]["median_s"]
        if seconds > arguments.call_seconds:
            curve["skipped"] = {
                "rtol": rtol,
                "reason": f"the last, a gradient took {seconds:.1f} s",
            }
            break
    return curve


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--problems", nargs="+", choices=list(_EVERY), default=list(_EVERY))
    add(
        "--integrators",
        nargs="+",
        choices=(*_ROSENBROCK, *_EXPLICIT),
        default=[*_ROSENBROCK, *_EXPLICIT],
        help="explicit ones run on Lorenz only",
    )
    add(
        "--diffrax",
        nargs="*",
        choices=_DIFFRAX,
        default=[],
        help="solvers of Diffrax, forward only, on the stiff problems",
    )
    add("--diffrax-seconds", type=float, default=5.0, help="a slower call is the last")
    add("--n", type=int, default=512 if on_cpu else 8192)
    add("--rtol", nargs="+", type=float, default=[10.0**-k for k in range(3, 11)])
    add("--max-steps", type=int, default=20_000, help="what needs more is skipped")
    add(
        "--call-seconds", type=float, default=1.0, help="a slower gradient is the last of its curve"
    )
    add("--point-seconds", type=float, default=0.3, help="spent on repeating one measurement")
    add("--backend", choices=list(_gradsolve.backends()), default="auto", help="of gradsolve")
    add("--cache-dir", type=Path, default=None, help="of gradsolve's compiled kernels")
    add("--memory-limit", type=int, default=2**31 if on_cpu else 2**34)
    add("--out", type=Path, default=None, help="JSON file; a plot is written beside it")
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    arguments = parser.parse_args(argv)
    arguments.order = "sorted"
    return arguments


def main(argv: Sequence[str]) -> int:
    configure_jax()
    arguments = _arguments(argv)
    keep_kernels_in(arguments.cache_dir)
    report = _report.start("work_precision", argv, arguments)
    del report["cells"]
    report.update(n=arguments.n, curves=[])

    def add(curve: dict[str, Any]) -> None:
        report["curves"].append(curve)
        report["fastest"] = _work_precision_report.fastest(report)
        print(_work_precision_report.lines(curve), flush=True)
        if arguments.out is not None:
            _report.write(report, arguments.out)

    for name in arguments.problems:
        for integrator in arguments.integrators:
            if integrator in _ROSENBROCK or name not in STIFF:
                add(_curve(name, integrator, arguments))
        for solver in arguments.diffrax if name in STIFF else ():
            problem = dataclasses.replace(
                STIFF[name],
                diffrax_solver=getattr(diffrax, solver)(),
                diffrax_coefficients=(0.3, 0.3),
            )
            points = _diffrax_points(Ensemble(problem, arguments.n), arguments)
            curve = {"problem": name, "integrator": f"Diffrax {solver}", "points": points}
            add({**curve, "skipped": {}})
    report["load_average"]["end"] = _report.load()
    print(_work_precision_report.table(report))
    if arguments.out is not None:
        _report.write(report, arguments.out)
        picture = arguments.out.with_suffix(".png")
        titles = {name: _EVERY[name].title for name in arguments.problems}
        print(_work_precision_report.plot(report, titles, picture))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
