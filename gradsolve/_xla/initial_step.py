"""The first step when none is given."""

import jax.numpy as jnp

from .._controllers import PIDController, Window
from .._custom_types import LaneState, LaneTime
from .._ensemble.field import EnsembleField


def initial_step(
    controller: PIDController,
    field: EnsembleField,
    window: Window,
    y0: LaneState,
    f0: LaneState,
    error_order: float,
) -> LaneTime:
    """The starting step of Hairer, Nørsett & Wanner I, section II.4, algorithm 4.14.

    The algorithm's absolute constants (1e-6, used where the state or its derivative is tiny) are
    taken relative to the length of the window, so that a change of the unit of time changes
    nothing.
    """
    length = window.t1 - window.t0
    scale = controller.scale(y0)
    d0 = controller.scaled_norm(y0 / scale)
    d1 = controller.scaled_norm(f0 / scale)
    tiny = (d0 < 1e-5) | (d1 * length < 1e-5)
    h0 = jnp.where(tiny, 1e-6 * length, 0.01 * d0 / jnp.where(tiny, 1, d1))
    h0 = jnp.minimum(h0, length)
    f1 = field(window.t0 + h0, y0 + h0 * f0)
    d2 = controller.scaled_norm((f1 - f0) / scale) / jnp.where(h0 == 0, 1, h0)
    # d1 is a rate, d2 a rate per time: compare them over the window.
    largest = jnp.maximum(d1, d2)
    flat = jnp.maximum(d1 * length, d2 * length * length) <= 1e-15
    h1 = jnp.where(
        flat,
        jnp.maximum(1e-6 * length, h0 * 1e-3),
        (0.01 / jnp.where(flat, 1, largest)) ** (1 / error_order),
    )
    # Where the trial step leaves the domain of the field, h0 alone remains.
    h1 = jnp.where(jnp.isfinite(h1), h1, h0)
    return jnp.minimum(100 * h0, h1)
