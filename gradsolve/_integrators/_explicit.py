"""Explicit Runge–Kutta methods: one stage loop for every tableau, and its adjoint."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from .._custom_types import LaneState, LaneTime, Leaf
from .._ensemble.field import EnsembleField, Pullback, weighted_sum
from ._base import AbstractIntegrator, OutputCotangents, Step, StepCotangents
from ._stages import (
    DenseStages,
    TransposedStages,
    add,
    advance,
    dot,
    floats,
    interpolate,
    stage_time,
)
from ._tableau import ButcherTableau

if TYPE_CHECKING:
    # Pyright knows a class variable by the name's import from `typing` in the same file.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


def _run_stages(
    evaluate: Callable[[LaneTime, LaneState], LaneState],
    rows: Sequence[Sequence[Fraction]],
    nodes: Sequence[Fraction],
    t0: LaneTime,
    t1: LaneTime,
    y0: LaneState,
    k: list[LaneState],
) -> tuple[list[LaneState], LaneState]:
    """Appends to `k` the stages `k_i = f(t0 + c_i h, y0 + h sum_j a_ij k_j)` of the given rows.

    Returns the stages and the argument of the last one.
    """
    h = t1 - t0
    y = y0
    for row, c in zip(rows, nodes, strict=True):
        y = advance(y0, h, floats(row), k)
        k = [*k, evaluate(stage_time(c, t0, t1), y)]
    return k, y


class AbstractExplicitRK(AbstractIntegrator):
    """An explicit Runge–Kutta method, given by its tableau.

    `k_i = f(t + c_i h, Y_i)`, `Y_i = y + h sum_{j<i} a_ij k_j`, `y1 = y + h sum_i b_i k_i`, dense
    output `y(t + theta h) = y + h sum_i b_i(theta) k_i`.
    """

    tableau: AbstractClassVar[ButcherTableau]
    carries_memo: ClassVar[bool] = False

    @property
    def order(self) -> int:
        return self.tableau.order

    @property
    def error_order(self) -> float | None:
        embedded = self.tableau.embedded_order
        return None if embedded is None else float(min(embedded, self.tableau.order) + 1)

    @property
    def evaluations(self) -> int:
        return self.tableau.stages + len(self.tableau.dense.extra_a)

    def start(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState
    ) -> LaneState | None:
        del t1
        return field(t0, y0) if self.tableau.fsal else None

    def step(
        self,
        field: EnsembleField,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        memo: LaneState | None,
    ) -> Step:
        tableau = self.tableau
        done = 0 if memo is None else 1
        k = [] if memo is None else [memo]
        k, y = _run_stages(field, tableau.a[done:], tableau.c[done:], t0, t1, y0, k)
        h = t1 - t0
        y1 = y if tableau.fsal else advance(y0, h, floats(tableau.b), k)
        error = None if tableau.b_error is None else h * _sum(tableau.b_error, k)
        return Step(y1, error, k[-1] if tableau.fsal else None, DenseStages(y0, tuple(k)), None)

    def complete_dense(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, step: Step, needed: Leaf
    ) -> DenseStages:
        y0, k = step.dense
        dense = self.tableau.dense
        if not dense.extra_a:
            return step.dense

        def compute(k: tuple[LaneState, ...]) -> tuple[LaneState, ...]:
            stages, _ = _run_stages(field, dense.extra_a, dense.extra_c, t0, t1, y0, list(k))
            return tuple(stages)

        def skip(k: tuple[LaneState, ...]) -> tuple[LaneState, ...]:
            return (*k, *[jnp.zeros_like(y0) for _ in dense.extra_a])

        return DenseStages(y0, jax.lax.cond(needed, compute, skip, k))

    def interpolate(self, dense: DenseStages, t0: LaneTime, t1: LaneTime, t: LaneTime) -> LaneState:
        return interpolate(self.tableau.dense, dense, t0, t1, t)

    def transpose(
        self,
        field: EnsembleField,
        wanted: Sequence[int],
        want_time: bool,
        with_outputs: bool,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        memo: Any,
    ) -> "_TransposedRK":
        del memo  # recomputed, so that its dependence on y0 is differentiated
        return _TransposedRK(self, field, wanted, want_time, with_outputs, t0, t1, y0)

    def pull_start(
        self,
        field: EnsembleField,
        wanted: Sequence[int],
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        ct_memo: Any,
    ) -> None:
        return None


def _sum(weights: Sequence[Fraction], k: Sequence[LaneState]) -> LaneState:
    total = weighted_sum(floats(weights), k)
    assert total is not None
    return total


class _TransposedRK(TransposedStages):
    r"""The adjoint of an explicit Runge–Kutta step and of its dense output.

    Given the cotangent $\lambda$ of $y_1$ and cotangents $c_m$ of the outputs
    $y(\theta_m) = y + h \sum_i b_i(\theta_m) k_i$ inside the step, for $i = s, \ldots, 1$:

    $$\bar k_i = h \Big(b_i \lambda + \sum_m b_i(\theta_m) c_m + \sum_{j>i} a_{ji} w_j\Big), \qquad
    w_i, \bar\theta \mathrel{+}= \partial f(t + c_i h, Y_i)^T \bar k_i$$

    and then $\bar y = \lambda + \sum_m c_m + \sum_i w_i$.

    Times: the stage times $\tau_i = t_0 + c_i (t_1 - t_0)$ receive $\bar\tau_i$ from the field; the
    factors $h = t_1 - t_0$ that stand before the sums receive

    $$\bar h = \lambda^T \sum_i b_i k_i + \sum_m c_m^T \sum_i b_i(\theta_m) k_i
    + \sum_i w_i^T \sum_j a_{ij} k_j,$$

    beside what `TransposedStages` says of the outputs.
    """

    def __init__(
        self,
        method: AbstractExplicitRK,
        field: EnsembleField,
        wanted: Sequence[int],
        want_time: bool,
        with_outputs: bool,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
    ) -> None:
        tableau = method.tableau
        super().__init__(tableau.dense, want_time, t0, t1, y0)
        self._tableau = tableau
        self._pullbacks: list[Pullback] = []

        def evaluate(t: LaneTime, y: LaneState) -> LaneState:
            k, pullback = field.linearise(wanted, want_time, t, y)
            self._pullbacks.append(pullback)
            return k

        extra = with_outputs
        self._rows = [*tableau.a, *(tableau.dense.extra_a if extra else ())]
        self._nodes = [*tableau.c, *(tableau.dense.extra_c if extra else ())]
        self._k, _ = _run_stages(evaluate, self._rows, self._nodes, t0, t1, y0, [])
        y1 = advance(y0, t1 - t0, floats(tableau.b), self._k)
        memo = self._k[tableau.stages - 1] if tableau.fsal else None
        self.step = Step(y1, None, memo, DenseStages(y0, tuple(self._k)), None)
        self._zero_leaves = [jnp.zeros_like(field.leaves[index]) for index in wanted]

    def pull(
        self, outputs: OutputCotangents | None, ct_y1: LaneState, ct_memo: Any
    ) -> StepCotangents:
        del ct_memo
        tableau = self._tableau
        h = self._t1 - self._t0
        stages = len(self._k)
        ct_k: list[LaneState | None] = [None] * stages
        for i, weight in enumerate(floats(tableau.b)):
            if weight != 0:
                ct_k[i] = (h * weight) * ct_y1
        ct_y0 = ct_y1
        ct_t0 = ct_t1 = None
        if self._want_time:
            ct_h = dot(ct_y1, _sum(tableau.b, self._k))
            ct_t0, ct_t1 = -ct_h, ct_h
        if outputs is not None:
            from_y0, from_k = outputs.dense
            ct_y0 = ct_y0 + from_y0
            ct_k = [add(a, b) for a, b in zip(ct_k, from_k, strict=True)]
            ct_t0, ct_t1 = add(ct_t0, outputs.t0), add(ct_t1, outputs.t1)

        leaves = self._zero_leaves
        for i in reversed(range(stages)):
            cotangent = ct_k[i]
            if cotangent is None:
                continue  # nothing depends on this stage: it only entered the error estimate
            more, ct_tau, w = self._pullbacks[i](cotangent)
            leaves = [a + b for a, b in zip(leaves, more, strict=True)]
            ct_y0 = ct_y0 + w
            for j, weight in enumerate(floats(self._rows[i])):
                if weight != 0:
                    ct_k[j] = add(ct_k[j], (h * weight) * w)
            if ct_t0 is not None and ct_t1 is not None and ct_tau is not None:
                c = float(self._nodes[i])
                total = weighted_sum(floats(self._rows[i]), self._k)
                ct_h = jnp.zeros_like(h) if total is None else dot(w, total)
                ct_t0 = ct_t0 + (1 - c) * ct_tau - ct_h
                ct_t1 = ct_t1 + c * ct_tau + ct_h
        return StepCotangents(leaves, ct_t0, ct_t1, ct_y0, None)
