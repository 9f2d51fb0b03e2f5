"""The non-stiff reference problems as fused kernels, against the plain-JAX backend."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs

from .helpers import (
    NON_STIFF,
    SAME_MESH,
    ReferenceSystem,
    disagreement,
    reference_case,
    same_bits,
    same_counts,
)

# Where neighbouring solutions part quickly, a fraction of the window: over the whole of it
# arenstorf amplifies rounding two million times, pleiades five hundred times.
FRACTION = {"arenstorf": 0.05, "pleiades": 0.2, "lorenz63_t2": 0.5, "kepler_e05": 0.2}


@pytest.mark.parametrize("name", NON_STIFF)
def test_against_plain_jax(name, fused):
    """Three trajectories with parameters a percent apart; Bosh3, of few stages to compile."""
    system, y0, problem = reference_case(name)
    t0, t1 = problem["t0"], problem["t1"]
    t1 = t0 + FRACTION.get(name, 1.0) * (t1 - t0)
    p = system.p * jnp.linspace(0.99, 1.01, 3)[:, None]
    scale = jnp.asarray(problem["scale"])

    def record(backend):
        return gs.solve(
            ReferenceSystem(p, name),
            y0,
            t0=t0,
            t1=t1,
            integrator=gs.Bosh3(),
            controller=gs.PIDController(rtol=1e-3, atol=1e-3 * scale),
            in_axes=gs.InAxes(system=eqx.if_array(0)),
            backend=backend,
        )

    trajectory = record(fused)
    assert same_counts(trajectory, record(gs.XLA()))
    assert same_bits(trajectory.replay(), trajectory.ys)
    loss = lambda ys: jnp.sum((ys / scale) ** 2 * (1 + jnp.arange(ys.shape[-1])))
    for what, value in disagreement(trajectory, loss).items():
        assert value < SAME_MESH, what
    assert np.isfinite(trajectory.ys).all()
