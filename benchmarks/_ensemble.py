"""An ensemble together with the errors of what was computed for it."""

from typing import Any

import _diffrax
import numpy as np
import stiff_reference
from _problems import Problem
from _stiff_problems import STIFF, positions, sampled
from jaxtyping import Array


class Ensemble:
    """One problem at one size. The reference is the stored one, or Dopri8's if it is not stiff."""

    def __init__(self, problem: Problem, n: int) -> None:
        self.problem, self.n = problem, n
        self.system, self.y0 = problem.sample(positions(n), "float64")
        if problem.name in STIFF:
            self._states, self._gradients = stiff_reference.load(problem)
        else:
            solve = _diffrax.Reference(problem, self.system)
            states, gradient = solve(*problem.part(self.system, self.y0, sampled(n)))
            self._states, self._gradients = states, _diffrax.gradient_rows(gradient)

    def state_error(self, states: Array) -> float:
        return stiff_reference.relative_error(np.asarray(states)[sampled(self.n)], self._states)

    def gradient_error(self, gradient: Any) -> float:
        rows = _diffrax.gradient_rows(gradient)[sampled(self.n)]
        return stiff_reference.relative_error(rows, self._gradients)
