"""Rosenbrock methods: one stage loop for every tableau, and its adjoint."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np

from .._custom_types import LaneMatrix, LaneState, LaneTime, Leaf
from .._ensemble.field import EnsembleField, Pullback, weighted_sum
from .._ensemble.linear import Factors, factorise
from .._null_spaces import regularised
from ._base import AbstractIntegrator, OutputCotangents, Step, StepCotangents
from ._rosenbrock_tableau import RosenbrockTableau
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

if TYPE_CHECKING:
    # Pyright knows a class variable by the name's import from `typing` in the same file.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


def _run_stages(
    tableau: RosenbrockTableau,
    evaluate: Callable[[LaneTime, LaneState], LaneState],
    factors: Factors,
    slope: LaneState | None,
    mass: np.ndarray | None,
    t0: LaneTime,
    t1: LaneTime,
    y0: LaneState,
) -> list[LaneState]:
    """All stages of a step.

    The published equations, for `k_i = u_i / h`:

        (M / gamma - h J) k_i = f(t + c_i h, Y_i) + M sum_j C_ij k_j + h d_i f_t,

    where no division by `h` is left: a step of length zero is the identity.
    """
    h = t1 - t0
    k: list[LaneState] = []
    values: list[LaneState] = []
    for i, same in enumerate(tableau.same_value):
        if same < i:
            value = values[same]
        else:
            argument = advance(y0, h, floats(tableau.a[i]), k)
            value = evaluate(stage_time(tableau.c[i], t0, t1), argument)
        values.append(value)
        right = value
        if mass is None:
            for weight, stage in zip(floats(tableau.C[i]), k, strict=True):
                if weight != 0:
                    right = right + weight * stage
        else:
            total = weighted_sum(floats(tableau.C[i]), k)
            if total is not None:
                right = right + _multiply(mass, total)
        if slope is not None and tableau.d[i] != 0:
            right = right + (h * float(tableau.d[i])) * slope
        k.append(factors.solve(right))
    return k


def _matrix(
    tableau: RosenbrockTableau, h: LaneTime, jacobian: LaneMatrix, mass: np.ndarray | None
) -> LaneMatrix:
    """`M / gamma - h J`; a singular mass matrix is made regular in a step of length zero.

    Such a step pads the mesh of a lane that has finished, and is the whole mesh of an empty window.
    It is the identity, and must have a solution.
    """
    if mass is None:
        matrix = jnp.eye(jacobian.shape[0], dtype=jacobian.dtype)[..., None]
    else:
        matrix = jnp.where(h == 0, regularised(mass)[..., None], mass[..., None])
    return float(1 / tableau.gamma) * matrix - h * jacobian


def _multiply(matrix: np.ndarray, x: LaneState) -> LaneState:
    return jnp.einsum("ij,jl->il", matrix, x, precision="highest")


class AbstractRosenbrock(AbstractIntegrator):
    r"""A Rosenbrock method, given by its tableau; for stiff systems.

    With $J = \partial f/\partial y$ and $f_t = \partial f/\partial t$ at the start of the step,
    both by JAX, the mass matrix $M$ of the system (the identity, if it defines none), and one LU
    decomposition per step,

    $$\Big(\frac{M}{\gamma} - h J\Big) k_i = f(t + c_i h, Y_i) + M \sum_{j<i} C_{ij} k_j
    + h\, d_i f_t, \qquad Y_i = y + h \sum_{j<i} a_{ij} k_j, \qquad
    y_1 = y + h \sum_i m_i k_i.$$

    A step whose matrix is singular or not finite is rejected. In plain JAX a replay may differ from
    its recording in the last bits: the compiler contracts the sums of a step as its surroundings
    suggest.
    """

    tableau: AbstractClassVar[RosenbrockTableau]
    carries_memo: ClassVar[bool] = False

    @property
    def order(self) -> int:
        return self.tableau.order

    @property
    def error_order(self) -> float:
        return float(min(self.tableau.embedded_order, self.tableau.order) + 1)

    @property
    def evaluations(self) -> int:
        return self.tableau.stages + 2

    def start(self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState) -> None:
        del field, t0, t1, y0

    def step(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState, memo: None
    ) -> Step:
        del memo
        tableau = self.tableau
        h = t1 - t0
        jacobian, slope = field.jacobian(t0, y0)
        factors = factorise(_matrix(tableau, h, jacobian, field.mass))
        k = _run_stages(tableau, field, factors, slope, field.mass, t0, t1, y0)
        y1 = advance(y0, h, floats(tableau.m), k)
        error = advance(jnp.zeros_like(y0), h, floats(tableau.m_error), k)
        return Step(y1, error, None, DenseStages(y0, tuple(k)), factors.solved)

    def complete_dense(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, step: Step, needed: Leaf
    ) -> DenseStages:
        del field, t0, t1, needed
        return step.dense

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
    ) -> "_TransposedRosenbrock":
        del memo, with_outputs
        return _TransposedRosenbrock(self, field, wanted, want_time, t0, t1, y0)

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


class _TransposedRosenbrock(TransposedStages):
    r"""The adjoint of a Rosenbrock step and of its dense output.

    Given the cotangent $\lambda$ of $y_1$ and cotangents $c_m$ of the outputs
    $y(\theta_m) = y + h \sum_i b_i(\theta_m) k_i$ inside the step, with $W = M / \gamma - h J$, for
    $i = s, \ldots, 1$:

    $$\bar k_i = h \Big(m_i \lambda + \sum_m b_i(\theta_m) c_m + \sum_{j>i} a_{ji} w_j\Big)
    + M^T \sum_{j>i} C_{ji} v_j, \qquad v_i = W^{-T} \bar k_i, \qquad
    w_i, \bar\theta \mathrel{+}= \partial f(t + c_i h, Y_i)^T v_i$$

    and then $\bar y = \lambda + \sum_m c_m + \sum_i w_i$. The matrix and the slope depend on
    $y$, $\theta$ and $t$ too: $\bar y, \bar\theta, \bar t_0$ also receive what their own transposes
    make of

    $$\bar J = h \sum_i v_i k_i^T, \qquad \bar f_t = h \sum_i d_i v_i.$$

    Times: the stage times $\tau_i = t_0 + c_i (t_1 - t_0)$ receive $\bar\tau_i$ from the field; the
    factors $h = t_1 - t_0$ outside the outputs receive

    $$\bar h = \lambda^T \sum_i m_i k_i + \sum_i w_i^T \sum_j a_{ij} k_j
    + \sum_i v_i^T (J k_i + d_i f_t).$$

    Stages that share a value of the field share its transpose: it is pulled back once, with the
    sum of their $v_i$, when the first of them is reached.
    """

    def __init__(
        self,
        method: AbstractRosenbrock,
        field: EnsembleField,
        wanted: Sequence[int],
        want_time: bool,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
    ) -> None:
        tableau = method.tableau
        super().__init__(tableau.dense, want_time, t0, t1, y0)
        self._tableau = tableau
        self._pullbacks: list[Pullback] = []

        def evaluate(t: LaneTime, y: LaneState) -> LaneState:
            value, pullback = field.linearise(wanted, want_time, t, y)
            self._pullbacks.append(pullback)
            return value

        h = t1 - t0
        (self._jacobian, self._slope), self._pull_jacobian = field.linearise_jacobian(
            wanted, want_time, t0, y0
        )
        self._mass = field.mass
        self._factors = factorise(_matrix(tableau, h, self._jacobian, self._mass))
        self._k = _run_stages(tableau, evaluate, self._factors, self._slope, self._mass, t0, t1, y0)
        y1 = advance(y0, h, floats(tableau.m), self._k)
        self.step = Step(y1, None, None, DenseStages(y0, tuple(self._k)), self._factors.solved)
        self._zero_leaves = [jnp.zeros_like(field.leaves[index]) for index in wanted]

    def pull(
        self, outputs: OutputCotangents | None, ct_y1: LaneState, ct_memo: Any
    ) -> StepCotangents:
        del ct_memo
        tableau, k = self._tableau, self._k
        stages = tableau.stages
        h = self._t1 - self._t0
        ct_y0, ct_t0, ct_t1 = ct_y1, None, None
        ct_k: list[LaneState | None] = [
            (h * weight) * ct_y1 if weight != 0 else None for weight in floats(tableau.m)
        ]
        ct_h = jnp.zeros_like(h)
        if self._want_time:
            ct_t0 = ct_t1 = jnp.zeros_like(h)
            total = weighted_sum(floats(tableau.m), k)
            assert total is not None
            ct_h = dot(ct_y1, total)
        if outputs is not None:
            of_y0, of_k = outputs.dense
            ct_y0 = ct_y0 + of_y0
            ct_k = [add(a, b) for a, b in zip(ct_k, of_k, strict=True)]
            ct_t0, ct_t1 = add(ct_t0, outputs.t0), add(ct_t1, outputs.t1)

        leaves = self._zero_leaves
        evaluated = [i for i, same in enumerate(tableau.same_value) if same == i]
        pullbacks = dict(zip(evaluated, self._pullbacks, strict=True))
        ct_values: list[LaneState | None] = [None] * stages
        ct_jacobian: LaneMatrix | None = None
        ct_slope: LaneState | None = None

        def take(more: list[Leaf]) -> None:
            nonlocal leaves
            leaves = [a + b for a, b in zip(leaves, more, strict=True)]

        for i in reversed(range(stages)):
            cotangent, same = ct_k[i], tableau.same_value[i]
            if cotangent is not None:
                v = self._factors.solve_transposed(cotangent)
                ct_values[same] = add(ct_values[same], v)
                ct_jacobian = add(ct_jacobian, h * (v[:, None] * k[i][None]))
                if self._want_time:
                    moved = jnp.sum(self._jacobian * k[i][None], axis=1)
                    if self._slope is not None:
                        moved = moved + float(tableau.d[i]) * self._slope
                    ct_h = ct_h + dot(v, moved)
                if self._slope is not None and tableau.d[i] != 0:
                    ct_slope = add(ct_slope, (h * float(tableau.d[i])) * v)
                of_sum = v if self._mass is None else _multiply(self._mass.T, v)
                for j, weight in enumerate(floats(tableau.C[i])):
                    if weight != 0:
                        ct_k[j] = add(ct_k[j], weight * of_sum)
            of_value = ct_values[i]
            if same != i or of_value is None:
                continue
            more, ct_tau, w = pullbacks[i](of_value)
            take(more)
            ct_y0 = ct_y0 + w
            for j, weight in enumerate(floats(tableau.a[i])):
                if weight != 0:
                    ct_k[j] = add(ct_k[j], (h * weight) * w)
            if ct_t0 is not None and ct_t1 is not None and ct_tau is not None:
                c = float(tableau.c[i])
                ct_t0 = ct_t0 + (1 - c) * ct_tau
                ct_t1 = ct_t1 + c * ct_tau
                total = weighted_sum(floats(tableau.a[i]), k)
                if total is not None:
                    ct_h = ct_h + dot(w, total)
        if ct_jacobian is not None:
            more, ct_start, w = self._pull_jacobian(ct_jacobian, ct_slope)
            take(more)
            ct_y0 = ct_y0 + w
            ct_t0 = add(ct_t0, ct_start)
        if ct_t0 is not None and ct_t1 is not None:
            ct_t0, ct_t1 = ct_t0 - ct_h, ct_t1 + ct_h
        return StepCotangents(leaves, ct_t0, ct_t1, ct_y0, None)
