"""Steps of one length."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from .._custom_types import Array, ArrayLike, Float, LaneState, LaneTime
from .._ensemble.layout import StateLayout
from ._base import AbstractController, Decision, Window
from ._checks import check_positive


class ConstantStep(AbstractController):
    """Steps of equal length.

    The interval is divided into `N = ceil(|t1 - t0| / dt)` equal steps, at the times
    `t0 + (t1 - t0) k / N`, so the step is `dt` when `dt` divides the interval and slightly shorter
    otherwise. Times are computed from `k`, not by adding up, so rounding does not accumulate.

    **Arguments:**

    - `dt`: the length of a step, positive whatever the direction of time, in units of `t`.
    """

    adaptive: ClassVar[bool] = False
    dt: Float[ArrayLike, ""]

    def __check_init__(self):
        check_positive("dt", self.dt)

    def bind(self, layout: StateLayout) -> "ConstantStep":
        return eqx.tree_at(lambda c: c.dt, self, jnp.asarray(self.dt, layout.dtype))

    def _time(self, window: Window, step: Array, steps: Array) -> LaneTime:
        t0, t1 = window
        fraction = step.astype(t0.dtype) / steps.astype(t0.dtype)
        return jnp.where(step >= steps, t1, t0 + (t1 - t0) * fraction)

    def first_step(
        self,
        field: Callable[[LaneTime, LaneState], LaneState],
        window: Window,
        y0: LaneState,
        f0: LaneState,
        error_order: float | None,
    ) -> None:
        return None

    def init(self, window: Window, dt0: LaneTime | None) -> tuple[LaneTime, tuple[Array, Array]]:
        del dt0
        t0, t1 = window
        # A quotient that rounding has pushed just above an integer must not cost a further step.
        quotient = (t1 - t0) / self.dt
        steps = jnp.ceil(quotient * (1 - 4 * jnp.finfo(t0.dtype).eps))
        steps = jnp.maximum(steps, 1).astype(jnp.int32)
        step = jnp.ones_like(steps)
        return self._time(window, step, steps), (step, steps)

    def adapt(
        self,
        window: Window,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        y1: LaneState,
        error: LaneState | None,
        error_order: float | None,
        state: tuple[Array, Array],
    ) -> Decision:
        del t0, y0, y1, error, error_order
        step, steps = state
        step = step + 1
        yes = jnp.ones_like(t1, dtype=bool)
        return Decision(yes, self._time(window, step, steps), ~yes, yes, (step, steps))
