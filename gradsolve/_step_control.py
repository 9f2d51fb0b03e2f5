"""What happens between two steps: the beginning, and the judgement of each attempt.

Pure functions of arrays, elementwise over the lanes. The plain-JAX backend calls them; the fused
backends trace them and generate code from the trace, so that step control is written once. Time
runs forwards here: a lane that integrates backwards has `direction` -1 and sees the times `-t`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import _results as codes
from ._controllers import AbstractController, Decision, Window
from ._custom_types import LaneCount, LaneFlag, LaneState, LaneTime, OutputTimes


class Beginning(NamedTuple):
    """Where the first attempt ends, and with what the loop starts."""

    t_next: LaneTime
    floor: LaneTime  # from here on a step goes to the end of the window
    status: LaneCount
    controller: Any


class Judgement(NamedTuple):
    """What becomes of an attempted step."""

    accepted: LaneFlag
    done: LaneFlag
    t_next: LaneTime
    status: LaneCount
    controller: Any


def forward_times(
    t0: LaneTime, t1: LaneTime, ts: OutputTimes | None
) -> tuple[LaneTime, LaneTime, LaneTime, OutputTimes | None]:
    """Direction of each lane, and its times turned so that they run forwards; padding is `inf`."""
    direction = jnp.where(t1 < t0, -1, 1).astype(t0.dtype)
    if ts is not None:
        ts = jnp.where(jnp.isinf(ts), jnp.inf, direction * ts)
    return direction, direction * t0, direction * t1, ts


def clip_floor(t1: LaneTime) -> LaneTime:
    """`t1` less 100 units in the last place: from there on a step goes to `t1` itself.

    Consecutive floating-point numbers of one sign are consecutive integers when their bits are
    read as such.
    """
    integer = jnp.int64 if t1.dtype == jnp.float64 else jnp.int32
    lowest = jnp.iinfo(integer).min
    bits = jax.lax.bitcast_convert_type(t1, integer)
    ordered = jnp.where(bits < 0, lowest - bits, bits) - 100
    return jax.lax.bitcast_convert_type(jnp.where(ordered < 0, lowest - ordered, ordered), t1.dtype)


def clip_to_end(
    t: LaneTime, t_next: LaneTime, t1: LaneTime, floor: LaneTime, accepted: LaneFlag
) -> LaneTime:
    """Ends the next step at `t1` if it would go past it, or nearly so.

    After a rejection half of the rest is taken, so that the step does get smaller.
    """
    clipped = jnp.where(accepted, t1, t + 0.5 * (t1 - t))
    return jnp.where(t_next > floor, clipped, t_next)


def begin(
    controller: AbstractController,
    field: Callable[[LaneTime, LaneState], LaneState],
    error_order: float | None,
    window: Window,
    dt0: LaneTime | None,
    y0: LaneState,
    f0: LaneState,
) -> Beginning:
    """The end of the first attempt of each lane, and whether there can be one."""
    t0, t1 = window
    defined = jnp.all(jnp.isfinite(f0) & jnp.isfinite(y0), axis=0)
    if dt0 is None:
        dt0 = controller.first_step(field, window, y0, f0, error_order)
    t_next, state = controller.init(window, dt0)
    t_next = jnp.minimum(t_next, t1)
    empty = t0 == t1  # one step of length zero, so that the window's ends have derivatives
    underflow = defined & ~empty & ~(t_next > t0)
    status = jnp.where(defined, _code(codes.SUCCESSFUL), _code(codes.NONFINITE))
    status = jnp.where(underflow, _code(codes.STEP_SIZE_UNDERFLOW), status)
    return Beginning(t_next, clip_floor(t1), status, state)


def judge(
    controller: AbstractController,
    error_order: float | None,
    window: Window,
    floor: LaneTime,
    t: LaneTime,
    attempted: LaneTime,
    y0: LaneState,
    y1: LaneState,
    error: LaneState | None,
    solved: LaneFlag | None,
    state: Any,
) -> Judgement:
    """Judges the step from `(t, y0)` to `(attempted, y1)`.

    `solved` is false where an implicit equation of the step was not solved.
    """
    finite = jnp.all(jnp.isfinite(y1), axis=0)
    if solved is not None:
        finite = finite & solved
    y1 = jnp.where(finite, y1, jnp.nan)
    decision: Decision = controller.adapt(window, t, attempted, y0, y1, error, error_order, state)
    accepted = decision.accept & finite
    t_new = jnp.where(accepted, attempted, t)
    t_next = clip_to_end(t_new, decision.t_next, window.t1, floor, accepted)
    done = accepted & (attempted >= window.t1)
    stuck = ~done & (decision.underflow | ~(t_next > t_new))
    hopeless = ~accepted & (stuck | decision.forced)
    status = jnp.where(stuck, _code(codes.STEP_SIZE_UNDERFLOW), _code(codes.SUCCESSFUL))
    status = jnp.where(hopeless & ~finite, _code(codes.NONFINITE), status)
    return Judgement(accepted, done, t_next, status, decision.state)


def _code(value: int) -> np.int32:
    # A plain integer would become one of 64 bits.
    return np.int32(value)
