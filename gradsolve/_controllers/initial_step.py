"""The first step when none is given."""

from collections.abc import Callable

import jax.numpy as jnp

from .._custom_types import LaneState, LaneTime
from ._base import Window


def hairer_step(
    tolerance: Callable[[LaneState], LaneState],
    norm: Callable[[LaneState], LaneTime],
    field: Callable[[LaneTime, LaneState], LaneState],
    window: Window,
    y0: LaneState,
    f0: LaneState,
    error_order: float,
) -> LaneTime:
    """The starting step of Hairer, Nørsett & Wanner I, section II.4, algorithm 4.14.

    The algorithm compares a rate with a rate per time and has an absolute constant, so its result
    depends on the unit of time. It is applied here in the problem's own unit, `d0 / d1` in the
    book's notation (the time in which the state changes by its own size), or the length of the
    window where the state or its derivative is tiny.
    """
    length = window.t1 - window.t0
    scale = tolerance(y0)
    scale = jnp.where(scale == 0, 1, scale)  # no absolute tolerance, and a component that is zero
    d0 = norm(y0 / scale)
    d1 = norm(f0 / scale)
    tiny = (d0 < 1e-5) | (d1 * length < 1e-5)
    unit = jnp.where(tiny, length, d0 / jnp.where(tiny, 1, d1))
    h0 = jnp.minimum(jnp.where(tiny, 1e-6, 0.01) * unit, length)
    f1 = field(window.t0 + h0, y0 + h0 * f0)
    d2 = norm((f1 - f0) / scale) / jnp.where(h0 == 0, 1, h0)
    largest = jnp.maximum(d1 * unit, d2 * unit * unit)
    flat = largest <= 1e-15
    h1 = jnp.where(
        flat,
        jnp.maximum(1e-6 * unit, h0 * 1e-3),
        unit * (0.01 / jnp.where(flat, 1, largest)) ** (1 / error_order),
    )
    # Where the trial step leaves the domain of the field, or the numbers overflow, h0 remains.
    h1 = jnp.where(jnp.isfinite(h1) & (h1 > 0), h1, h0)
    return jnp.minimum(100 * h0, h1)
