"""Times the gradient of an ensemble against Diffrax. See README.md beside this file."""

from typing import Any

import _diffrax
import jax
import numpy as np
from _gradsolve import (
    on_xla,
    record_and_adjoint,
    replay_gradient,
    replay_gradient_compiled,
    replayed_by_xla,
)
from _run import Benchmark, Candidate, Case, LeftOut, main
from _timing import Call

# The gradient by shared weights is a sum over all trajectories, and so is its reference.
_LARGEST_SUM = 2048


def candidates(case: Case) -> list[Candidate]:
    system, y0 = case.system, case.y0

    def recorded(options: dict[str, Any]) -> Call:
        return record_and_adjoint(system, y0, case.max_steps, options)

    def diffrax(setting: str) -> Call:
        attempts, _ = case.diffrax_steps()
        checkpoints = _diffrax.checkpoints(setting, attempts)
        return _diffrax.gradient(
            case.problem, case.rtol, case.atol, attempts, checkpoints, system, y0
        )

    def outputs(gradient: Any) -> np.ndarray:
        if case.problem.shared:
            return _diffrax.shared_row(gradient)
        return case.rows(_diffrax.gradient_rows(gradient))

    trajectory = case.trajectory
    eager = lambda: lambda: replay_gradient(trajectory, system, y0)
    compiled = lambda: replay_gradient_compiled(trajectory, system, y0)
    every = [
        Candidate("replay_eager", "", eager, outputs),
        Candidate("replay_jit", "", compiled, outputs),
        Candidate("record_adjoint_jit", "", lambda: recorded(case.options), outputs),
        *[
            Candidate("diffrax", setting, lambda setting=setting: diffrax(setting), outputs)
            for setting in case.checkpoints
        ],
    ]
    if case.fused:
        replayed = lambda: replay_gradient_compiled(replayed_by_xla(trajectory), system, y0)
        both = lambda: recorded(on_xla(case.options))
        every.append(Candidate("xla", "", replayed, outputs))
        every.append(Candidate("xla_record_adjoint", "", both, outputs))
    return every


def reference(solve: _diffrax.Reference, case: Case) -> np.ndarray:
    if not case.problem.shared:
        return _diffrax.gradient_rows(solve(*case.sampled())[1])
    if case.n > _LARGEST_SUM:
        raise LeftOut(f"there is no reference for a sum over more than {_LARGEST_SUM} trajectories")
    *weights, ct_y0 = jax.tree.leaves(solve(case.system, case.y0)[1])
    return _diffrax.shared_row([*(weight.sum(axis=0) for weight in weights), ct_y0])


BENCHMARK = Benchmark(
    "gradient",
    "Gradient by the parameters and the initial states: gradsolve against Diffrax.",
    candidates,
    reference,
    {"replay_eager": "xla", "replay_jit": "xla", "record_adjoint_jit": "xla_record_adjoint"},
)

if __name__ == "__main__":
    raise SystemExit(main(BENCHMARK))
