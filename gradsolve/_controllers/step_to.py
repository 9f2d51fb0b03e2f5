"""Steps between given times."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._custom_types import Array, ArrayLike, Float, LaneState, LaneTime
from .._ensemble.layout import StateLayout
from ._base import AbstractController, Decision, Window


class StepTo(AbstractController):
    """Steps exactly from one given time to the next.

    **Arguments:**

    - `ts`: the times, at least two, strictly monotonic, the first equal to `t0` and the last to
        `t1`. For an ensemble whose trajectories step to different times pass an array with a
        leading axis and `InAxes(controller=eqx.if_array(0))`; shorter rows are padded by `inf`.
    """

    adaptive: ClassVar[bool] = False
    ts: Float[ArrayLike, "*lanes times"]

    def __check_init__(self):
        if isinstance(self.ts, Tracer):
            return
        ts = np.asarray(self.ts)
        if ts.ndim == 0 or ts.shape[-1] < 2:
            raise ValueError(
                f"`StepTo(ts=...)` needs at least two times, got the shape {ts.shape}."
            )
        # Padding by inf makes steps of inf or nan, which are of no concern.
        steps = np.diff(np.where(np.isinf(ts), np.nan, ts), axis=-1)
        up, down = (~(steps <= 0)).all(axis=-1), (~(steps >= 0)).all(axis=-1)
        if np.isnan(ts).any() or not (up | down).all():
            raise ValueError(
                "`StepTo(ts=...)` needs strictly increasing (or strictly decreasing) times, got "
                f"{ts}."
            )

    def bind(self, layout: StateLayout) -> "StepTo":
        return eqx.tree_at(lambda c: c.ts, self, jnp.asarray(self.ts, layout.dtype))

    def _time(self, window: Window, index: Array) -> LaneTime:
        t0, t1 = window
        ts = jnp.asarray(self.ts)
        ts = jnp.broadcast_to(ts, (ts.shape[0], t0.shape[0]))
        index = jnp.minimum(index, ts.shape[0] - 1)
        t = jnp.take_along_axis(ts, index[None], axis=0)[0]
        # Times are given as the user counts them; inside, time runs forwards.
        reverse = jnp.sign(ts[1] - ts[0])
        return jnp.where(jnp.isfinite(t), reverse * t, t1)

    def first_step(
        self,
        field: Callable[[LaneTime, LaneState], LaneState],
        window: Window,
        y0: LaneState,
        f0: LaneState,
        error_order: float | None,
    ) -> None:
        return None

    def init(self, window: Window, dt0: LaneTime | None) -> tuple[LaneTime, Array]:
        del dt0
        index = jnp.ones(window.t0.shape, jnp.int32)
        return self._time(window, index), index

    def adapt(
        self,
        window: Window,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        y1: LaneState,
        error: LaneState | None,
        error_order: float | None,
        state: Array,
    ) -> Decision:
        del t0, y0, y1, error, error_order
        index = state + 1
        yes = jnp.ones_like(t1, dtype=bool)
        return Decision(yes, self._time(window, index), ~yes, yes, index)
