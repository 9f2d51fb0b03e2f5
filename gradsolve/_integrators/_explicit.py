"""Explicit Runge–Kutta methods: one stage loop for every tableau, and its adjoint."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from .._custom_types import LaneFlag, LaneState, LaneTime, Leaf
from .._ensemble.field import EnsembleField, Pullback, weighted_sum
from ._base import (
    AbstractIntegrator,
    AbstractTransposedStep,
    OutputCotangents,
    Step,
    StepCotangents,
)
from ._tableau import ButcherTableau

if TYPE_CHECKING:
    # Pyright knows a class variable by the name's import from `typing` in the same file.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


class DenseStages(NamedTuple):
    """Start of the step and its stages, in order."""

    y0: LaneState
    k: tuple[LaneState, ...]


def _floats(row: Sequence[Fraction]) -> list[float]:
    return [float(entry) for entry in row]


def _stage_time(c: Fraction, t0: LaneTime, t1: LaneTime) -> LaneTime:
    # The end of the step is t1 itself: t0 + (t1 - t0) may differ from it by rounding.
    if c == 0:
        return t0
    if c == 1:
        return t1
    return t0 + float(c) * (t1 - t0)


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
        y = _advance(y0, h, _floats(row), k)
        k = [*k, evaluate(_stage_time(c, t0, t1), y)]
    return k, y


def _advance(
    y0: LaneState, h: LaneTime, weights: Sequence[float], k: Sequence[LaneState]
) -> LaneState:
    """`y0 + h sum_i weights[i] k_i`, added up from `y0` on.

    Every addition has one product, so there is one way to contract it into a fused multiply-add.
    With two products in an addition the compiler's choice depends on the surroundings, and a replay
    would differ from its recording in the last bit.
    """
    y = y0
    for weight, stage in zip(weights, k, strict=False):
        if weight != 0:
            y = y + (h * weight) * stage
    return y


def _weights(tableau: ButcherTableau, theta: LaneTime) -> list[LaneTime | None]:
    """`b_i(theta)` by Horner's rule; `None` for a stage that the dense output does not use."""
    return [_horner(_floats(row), theta, theta) for row in tableau.dense.coefficients]


def _weight_slopes(tableau: ButcherTableau, theta: LaneTime) -> list[LaneTime | None]:
    """`b_i'(theta)`."""
    slopes = []
    for row in tableau.dense.coefficients:
        derivative = [(p + 1) * entry for p, entry in enumerate(row)]
        slopes.append(_horner(_floats(derivative), theta, None))
    return slopes


def _horner(row: Sequence[float], theta: LaneTime, factor: LaneTime | None) -> LaneTime | None:
    """`factor * sum_p row[p] theta^p`."""
    if not any(row):
        return None
    total = jnp.zeros_like(theta)
    for entry in reversed(row):
        total = total * theta + entry
    return total if factor is None else total * factor


def _theta(t0: LaneTime, t1: LaneTime, t: LaneTime) -> LaneTime:
    h = t1 - t0
    # An empty window has one step of length zero; every output inside it is its start.
    return jnp.where(h == 0, 0, (t - t0) / jnp.where(h == 0, 1, h))


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
        y1 = y if tableau.fsal else _advance(y0, h, _floats(tableau.b), k)
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
        h = t1 - t0
        y = dense.y0
        for weight, k in zip(_weights(self.tableau, _theta(t0, t1, t)), dense.k, strict=True):
            if weight is not None:
                y = y + (h * weight) * k  # one product per addition, see `_advance`
        return y

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
    total = weighted_sum(_floats(weights), k)
    assert total is not None
    return total


class _TransposedRK(AbstractTransposedStep):
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

    and an output time $t_m = t_0 + \theta_m h$ receives $u_m = c_m^T \sum_i b_i'(\theta_m) k_i$, of
    which $t_0$ gets $(\theta_m - 1) u_m$ and $t_1$ gets $-\theta_m u_m$, since
    $\partial\theta/\partial t_m = 1/h$. No division by $h$ remains, so a step of length zero is
    differentiated correctly too.
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
        self._tableau = tableau
        self._want_time = want_time
        self._t0, self._t1, self._y0 = t0, t1, y0
        self._pullbacks: list[Pullback] = []

        def evaluate(t: LaneTime, y: LaneState) -> LaneState:
            k, pullback = field.linearise(wanted, want_time, t, y)
            self._pullbacks.append(pullback)
            return k

        extra = with_outputs
        self._rows = [*tableau.a, *(tableau.dense.extra_a if extra else ())]
        self._nodes = [*tableau.c, *(tableau.dense.extra_c if extra else ())]
        self._k, _ = _run_stages(evaluate, self._rows, self._nodes, t0, t1, y0, [])
        y1 = _advance(y0, t1 - t0, _floats(tableau.b), self._k)
        memo = self._k[tableau.stages - 1] if tableau.fsal else None
        self.step = Step(y1, None, memo, DenseStages(y0, tuple(self._k)), None)
        self._zero_leaves = [jnp.zeros_like(field.leaves[index]) for index in wanted]

    def zero_outputs(self) -> OutputCotangents:
        zero_state = jnp.zeros_like(self._y0)
        k = tuple(zero_state if any(row) else None for row in self._tableau.dense.coefficients)
        zero_time = jnp.zeros_like(self._t0) if self._want_time else None
        return OutputCotangents((zero_state, k), zero_time, zero_time)

    def pull_output(
        self, so_far: OutputCotangents, t: LaneTime, ct: LaneState, at_end: LaneFlag
    ) -> tuple[OutputCotangents, LaneTime]:
        (ct_y0, ct_k), ct_t0, ct_t1 = so_far
        theta = jnp.where(at_end, 1, _theta(self._t0, self._t1, t))
        h = self._t1 - self._t0
        weights = _weights(self._tableau, theta)
        slopes = _weight_slopes(self._tableau, theta)
        zero = jnp.zeros_like(theta)
        u = sum(
            (w * _dot(ct, k) for w, k in zip(slopes, self._k, strict=True) if w is not None), zero
        )
        inside = jnp.where(at_end, 0, ct)
        new_k = tuple(
            None if weight is None else ct_k[i] + (h * weight) * inside
            for i, weight in enumerate(weights)
        )
        if ct_t0 is not None and ct_t1 is not None:
            ct_h = sum(
                (
                    w * _dot(inside, k)
                    for w, k in zip(weights, self._k, strict=True)
                    if w is not None
                ),
                zero,
            )
            ct_t0 = ct_t0 - ct_h + (theta - 1) * u
            ct_t1 = ct_t1 + ct_h - theta * u
        return OutputCotangents((ct_y0 + inside, new_k), ct_t0, ct_t1), u

    def pull(
        self, outputs: OutputCotangents | None, ct_y1: LaneState, ct_memo: Any
    ) -> StepCotangents:
        del ct_memo
        tableau = self._tableau
        h = self._t1 - self._t0
        stages = len(self._k)
        ct_k: list[LaneState | None] = [None] * stages
        for i, weight in enumerate(_floats(tableau.b)):
            if weight != 0:
                ct_k[i] = (h * weight) * ct_y1
        ct_y0 = ct_y1
        ct_t0 = ct_t1 = None
        if self._want_time:
            ct_h = _dot(ct_y1, _sum(tableau.b, self._k))
            ct_t0, ct_t1 = -ct_h, ct_h
        if outputs is not None:
            from_y0, from_k = outputs.dense
            ct_y0 = ct_y0 + from_y0
            ct_k = [_add(a, b) for a, b in zip(ct_k, from_k, strict=True)]
            ct_t0, ct_t1 = _add(ct_t0, outputs.t0), _add(ct_t1, outputs.t1)

        leaves = self._zero_leaves
        for i in reversed(range(stages)):
            cotangent = ct_k[i]
            if cotangent is None:
                continue  # nothing depends on this stage: it only entered the error estimate
            more, ct_tau, w = self._pullbacks[i](cotangent)
            leaves = [a + b for a, b in zip(leaves, more, strict=True)]
            ct_y0 = ct_y0 + w
            for j, weight in enumerate(_floats(self._rows[i])):
                if weight != 0:
                    ct_k[j] = _add(ct_k[j], (h * weight) * w)
            if ct_t0 is not None and ct_t1 is not None and ct_tau is not None:
                c = float(self._nodes[i])
                total = weighted_sum(_floats(self._rows[i]), self._k)
                ct_h = jnp.zeros_like(h) if total is None else _dot(w, total)
                ct_t0 = ct_t0 + (1 - c) * ct_tau - ct_h
                ct_t1 = ct_t1 + c * ct_tau + ct_h
        return StepCotangents(leaves, ct_t0, ct_t1, ct_y0, None)


def _dot(a: LaneState, b: LaneState) -> LaneTime:
    return jnp.sum(a * b, axis=0)


def _add(a: Leaf | None, b: Leaf | None) -> Leaf | None:
    """The sum of two cotangents, either of which may be absent."""
    if a is None:
        return b
    return a if b is None else a + b
