"""Every explicit method as fused kernels: the numbers of the plain-JAX backend, and their own bits.

The model is one short equation: what is compiled is mostly the method.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs

from .helpers import (
    EXPLICIT,
    SAME_MESH,
    disagreement,
    replayed,
    same_bits,
    same_counts,
)

# At both ends of the window and inside steps.
TS = jnp.array([0.3, 0.7, 0.75, 2.2, 3.1])
# Five trajectories are less than a pack and no power of two.
RATES = jnp.array([0.2, 0.9, 1.7, 2.8, 6.0])
Y0S = jnp.array([0.5, 0.1, 2.0, 1.4, 0.9])


class Growth(gs.ODESystem):
    """Logistic growth in a changing environment; the rate is per trajectory, the rest shared."""

    rate: Array
    capacity: Array
    drift: Array

    def vector_field(self, t, y):
        return self.rate * y * (self.capacity - y) + self.drift * t * t


AXES = gs.InAxes(system=Growth(0, None, None), y0=0)


def record(integrator, ts, backend, dtype=float):
    if integrator.error_order is None:
        controller = gs.ConstantStep(0.11)
    else:
        controller = gs.PIDController(rtol=1e-4, atol=1e-6)
    convert = lambda x: jnp.asarray(x, dtype)
    return gs.solve(
        Growth(convert(RATES), convert(1.3), convert(0.05)),
        convert(Y0S),
        t0=0.3,
        t1=3.1,
        ts=None if ts is None else convert(ts),
        integrator=integrator,
        controller=controller,
        in_axes=AXES,
        backend=backend,
    )


def check(integrator, ts, fused):
    trajectory = record(integrator, ts, fused)
    assert trajectory.backend.actual == type(fused).__name__
    assert len(set(np.asarray(trajectory.mesh.num_steps))) > 1 or integrator.error_order is None

    assert same_counts(trajectory, record(integrator, ts, gs.XLA()))
    assert all(value < SAME_MESH for value in disagreement(trajectory).values())
    assert same_bits(trajectory.replay(), trajectory.ys)
    again = record(integrator, ts, fused)
    assert same_bits((again.ys, again.mesh), (trajectory.ys, trajectory.mesh))
    assert same_bits(replayed(again), replayed(trajectory))


@pytest.mark.parametrize("integrator", EXPLICIT, ids=lambda i: type(i).__name__)
def test_with_output_times(integrator, fused):
    check(integrator, TS, fused)


# Without output times kernels leave the dense output out, which is one branch for all methods: one
# of fixed steps, one first-same-as-last, and one with extra stages for its dense output.
@pytest.mark.parametrize(
    "integrator", [gs.Ralston(), gs.Bosh3(), gs.Vern7()], ids=lambda i: type(i).__name__
)
def test_final_state_only(integrator, fused):
    check(integrator, None, fused)


@pytest.mark.parametrize(
    "integrator", [gs.RK4(), gs.Bosh3(), gs.Tsit5()], ids=lambda i: type(i).__name__
)
def test_float32(integrator, fused):
    trajectory = record(integrator, TS, fused, jnp.float32)
    assert trajectory.ys.dtype == jnp.float32
    assert same_bits(trajectory.replay(), trajectory.ys)
    # The rounding of some dozen operations, on numbers as large as the interpolant's coefficients
    # (88 for Tsit5), which cancel.
    dense = integrator.tableau.dense.coefficients
    largest = max(abs(float(x)) for row in dense for x in row)
    for what, value in disagreement(trajectory).items():
        assert value < 16 * jnp.finfo(jnp.float32).eps * max(largest, 8), what
