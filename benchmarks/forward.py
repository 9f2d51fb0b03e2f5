"""Times the adaptive forward solve against Diffrax. See README.md beside this file."""

import _diffrax
import numpy as np
from _gradsolve import forward, on_xla
from _run import Benchmark, Candidate, Case, main
from _timing import Call


def candidates(case: Case) -> list[Candidate]:
    system, y0 = case.system, case.y0

    def diffrax() -> Call:
        attempts, _ = case.diffrax_steps()
        return _diffrax.forward(case.problem, case.rtol, case.atol, attempts, system, y0)

    every = [
        Candidate("eager", "", lambda: lambda: case.record().ys, case.rows, case.record_seconds),
        Candidate("jit", "", lambda: forward(system, y0, case.max_steps, case.options), case.rows),
        Candidate("diffrax", "", diffrax, case.rows),
    ]
    if case.fused:
        xla = lambda: forward(system, y0, case.max_steps, on_xla(case.options))
        every.append(Candidate("xla", "", xla, case.rows))
    return every


def reference(solve: _diffrax.Reference, case: Case) -> np.ndarray:
    return solve(*case.sampled())[0]


BENCHMARK = Benchmark(
    "forward",
    "Forward solve: gradsolve against Diffrax.",
    candidates,
    reference,
    {"eager": "xla", "jit": "xla"},
)

if __name__ == "__main__":
    raise SystemExit(main(BENCHMARK))
