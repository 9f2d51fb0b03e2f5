"""What one-step methods with stages share: sums of stages, dense output, and its transpose."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import jax.numpy as jnp

from .._custom_types import LaneFlag, LaneState, LaneTime, Leaf
from ._base import AbstractTransposedStep, OutputCotangents
from ._tableau import DenseOutput


class DenseStages(NamedTuple):
    """Start of the step and its stages, in order."""

    y0: LaneState
    k: tuple[LaneState, ...]


def floats(row: Sequence[Fraction]) -> list[float]:
    """The numbers of a tableau, each rounded once."""
    return [float(entry) for entry in row]


def stage_time(c: Fraction, t0: LaneTime, t1: LaneTime) -> LaneTime:
    """The time of a stage, `t0 + c (t1 - t0)`."""
    # The end of the step is t1 itself: t0 + (t1 - t0) may differ from it by rounding.
    if c == 0:
        return t0
    if c == 1:
        return t1
    return t0 + float(c) * (t1 - t0)


def advance(
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


def weights_at(dense: DenseOutput, theta: LaneTime) -> list[LaneTime | None]:
    """`b_i(theta)` by Horner's rule; `None` for a stage that the dense output does not use."""
    return [_horner(floats(row), theta, theta) for row in dense.coefficients]


def slopes_at(dense: DenseOutput, theta: LaneTime) -> list[LaneTime | None]:
    """`b_i'(theta)`."""
    slopes = []
    for row in dense.coefficients:
        derivative = [(p + 1) * entry for p, entry in enumerate(row)]
        slopes.append(_horner(floats(derivative), theta, None))
    return slopes


def _horner(row: Sequence[float], theta: LaneTime, factor: LaneTime | None) -> LaneTime | None:
    """`factor * sum_p row[p] theta^p`."""
    if not any(row):
        return None
    total = jnp.zeros_like(theta)
    for entry in reversed(row):
        total = total * theta + entry
    return total if factor is None else total * factor


def fraction_at(t0: LaneTime, t1: LaneTime, t: LaneTime) -> LaneTime:
    """The fraction of the step from `t0` to `t1` at which `t` lies."""
    h = t1 - t0
    # An empty window has one step of length zero; every output inside it is its start.
    return jnp.where(h == 0, 0, (t - t0) / jnp.where(h == 0, 1, h))


def interpolate(
    output: DenseOutput, stages: DenseStages, t0: LaneTime, t1: LaneTime, t: LaneTime
) -> LaneState:
    """`y0 + h sum_i b_i(theta) k_i`."""
    h = t1 - t0
    y = stages.y0
    for weight, k in zip(weights_at(output, fraction_at(t0, t1, t)), stages.k, strict=True):
        if weight is not None:
            y = y + (h * weight) * k  # one product per addition, see `advance`
    return y


def dot(a: LaneState, b: LaneState) -> LaneTime:
    """The scalar product of two states, lane by lane."""
    return jnp.sum(a * b, axis=0)


def add(a: Leaf | None, b: Leaf | None) -> Leaf | None:
    """The sum of two cotangents, either of which may be absent."""
    if a is None:
        return b
    return a if b is None else a + b


class TransposedStages(AbstractTransposedStep):
    r"""The part of an adjoint that is the same for all methods with stages: dense output.

    An output $y(\theta_m) = y_0 + h \sum_i b_i(\theta_m) k_i$ with the cotangent $c_m$ leaves
    $h\, b_i(\theta_m) c_m$ to the stages and $c_m$ to $y_0$. Its time $t_m = t_0 + \theta_m h$
    receives $u_m = c_m^T \sum_i b_i'(\theta_m) k_i$, of which $t_0$ gets $(\theta_m - 1) u_m$ and
    $t_1$ gets $-\theta_m u_m$, since $\partial\theta/\partial t_m = 1/h$; the factor $h$ receives
    $c_m^T \sum_i b_i(\theta_m) k_i$. No division by $h$ remains, so a step of length zero is
    differentiated correctly too.
    """

    def __init__(
        self, dense: DenseOutput, want_time: bool, t0: LaneTime, t1: LaneTime, y0: LaneState
    ) -> None:
        self._dense = dense
        self._want_time = want_time
        self._t0, self._t1, self._y0 = t0, t1, y0
        self._k: list[LaneState] = []

    def zero_outputs(self) -> OutputCotangents:
        zero_state = jnp.zeros_like(self._y0)
        k = tuple(zero_state if any(row) else None for row in self._dense.coefficients)
        zero_time = jnp.zeros_like(self._t0) if self._want_time else None
        return OutputCotangents((zero_state, k), zero_time, zero_time)

    def pull_output(
        self, so_far: OutputCotangents, t: LaneTime, ct: LaneState, at_end: LaneFlag
    ) -> tuple[OutputCotangents, LaneTime]:
        (ct_y0, ct_k), ct_t0, ct_t1 = so_far
        theta = jnp.where(at_end, 1, fraction_at(self._t0, self._t1, t))
        h = self._t1 - self._t0
        weights = weights_at(self._dense, theta)
        slopes = slopes_at(self._dense, theta)
        zero = jnp.zeros_like(theta)
        u = sum(
            (w * dot(ct, k) for w, k in zip(slopes, self._k, strict=True) if w is not None), zero
        )
        inside = jnp.where(at_end, 0, ct)
        new_k = tuple(
            None if weight is None else ct_k[i] + (h * weight) * inside
            for i, weight in enumerate(weights)
        )
        if ct_t0 is not None and ct_t1 is not None:
            ct_h = sum(
                (
                    w * dot(inside, k)
                    for w, k in zip(weights, self._k, strict=True)
                    if w is not None
                ),
                zero,
            )
            ct_t0 = ct_t0 - ct_h + (theta - 1) * u
            ct_t1 = ct_t1 + ct_h - theta * u
        return OutputCotangents((ct_y0 + inside, new_k), ct_t0, ct_t1), u
