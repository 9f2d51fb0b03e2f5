"""Times the gradient of an ensemble against Diffrax. See README.md beside this file."""

import equinox as eqx
from _diffrax import checkpoint_settings, flat_gradient
from _diffrax import gradient as diffrax_gradient
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

    def diffrax(kind: str) -> Call:
        attempts, _ = case.diffrax_steps()
        checkpoints = checkpoint_settings(attempts)[kind]
        run = diffrax_gradient(case.problem, case.rtol, case.atol, attempts, checkpoints)
        return lambda: run(case.system, case.y0)

    outputs = lambda gradient: flat_gradient(*gradient)
    return [
        Candidate("replay_eager", "", eager, outputs),
        Candidate("replay_jit", "", compiled, outputs),
        Candidate("record_adjoint_jit", "", recorded, outputs),
        *[
            Candidate("diffrax", kind, lambda kind=kind: diffrax(kind), outputs)
            for kind in ("sqrt", "all", "default")
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
