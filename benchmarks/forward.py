"""Times the adaptive forward solve against Diffrax. See README.md beside this file."""

import _diffrax
import numpy as np
from _gradsolve import forward
from _run import Benchmark, Candidate, Case, main
from _timing import Call


def candidates(case: Case) -> list[Candidate]:
    def compiled() -> Call:
        run = forward(case.max_steps, case.options)
        return lambda: run(case.system, case.y0)

    def diffrax() -> Call:
        attempts, _ = case.diffrax_steps()
        run = _diffrax.forward(case.problem, case.rtol, case.atol, attempts)
        return lambda: run(case.system, case.y0)

    return [
        Candidate("eager", "", lambda: lambda: case.record().ys, np.asarray, case.record_seconds),
        Candidate("jit", "", compiled, np.asarray),
        Candidate("diffrax", "", diffrax, np.asarray),
    ]


BENCHMARK = Benchmark(
    "forward",
    "Forward solve: gradsolve against Diffrax.",
    candidates,
    lambda reference: reference[0],
)

if __name__ == "__main__":
    raise SystemExit(main(BENCHMARK))
