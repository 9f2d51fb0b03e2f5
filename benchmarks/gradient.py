"""Times the gradient of an ensemble against Diffrax. See README.md beside this file."""

import _diffrax
import equinox as eqx
from _gradsolve import record_and_adjoint, replay_gradient
from _run import Benchmark, Candidate, Case, main
from _timing import Call


def candidates(case: Case) -> list[Candidate]:
    def eager() -> Call:
        return lambda: replay_gradient(case.trajectory, case.system, case.y0)

    def compiled() -> Call:
        run = eqx.filter_jit(replay_gradient)
        return lambda: run(case.trajectory, case.system, case.y0)

    def recorded() -> Call:
        run = record_and_adjoint(case.max_steps, case.options)
        return lambda: run(case.system, case.y0)

    def diffrax(setting: str) -> Call:
        attempts, _ = case.diffrax_steps()
        checkpoints = _diffrax.checkpoints(setting, attempts)
        run = _diffrax.gradient(case.problem, case.rtol, case.atol, attempts, checkpoints)
        return lambda: run(case.system, case.y0)

    outputs = lambda gradient: _diffrax.flat_gradient(*gradient)
    return [
        Candidate("replay_eager", "", eager, outputs),
        Candidate("replay_jit", "", compiled, outputs),
        Candidate("record_adjoint_jit", "", recorded, outputs),
        *[
            Candidate("diffrax", setting, lambda setting=setting: diffrax(setting), outputs)
            for setting in case.checkpoints
        ],
    ]


BENCHMARK = Benchmark(
    "gradient",
    "Gradient by the parameter and the initial states: gradsolve against Diffrax.",
    candidates,
    lambda reference: reference[1],
)

if __name__ == "__main__":
    raise SystemExit(main(BENCHMARK))
