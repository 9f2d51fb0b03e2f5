"""Observed orders of step and dense output, and agreement of dense output with its tableau."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs
from tests.helpers import EXPLICIT, ROSENBROCK


class Nonlinear(gs.ODESystem):
    """Nonlinear, nonautonomous, smooth: no order condition holds by accident."""

    a: jax.Array

    def vector_field(self, t, y):
        u, v = y
        return jnp.stack([v - self.a * t * u**3, -u * v + jnp.cos(t)])


SYSTEM = Nonlinear(1.0)
Y0 = jnp.array([0.7, 0.4])
T1 = 1.0
INNER = jnp.linspace(0.05, 0.95, 37)  # in every part of a step


@pytest.fixture(scope="module")
def exact():
    """The solution at `INNER` and `T1`, far more accurate than what is compared with it."""
    ts = jnp.append(INNER, T1)
    return gs.solve(
        SYSTEM,
        Y0,
        t0=0.0,
        t1=T1,
        ts=ts,
        integrator=gs.Vern9(),
        controller=gs.PIDController(rtol=1e-14, atol=1e-15),
    ).ys


def errors(integrator, steps, exact):
    trajectory = gs.solve(
        SYSTEM,
        Y0,
        t0=0.0,
        t1=T1,
        ts=jnp.append(INNER, T1),
        integrator=integrator,
        controller=gs.ConstantStep(T1 / steps),
    )
    assert int(trajectory.mesh.num_steps) == steps
    difference = jnp.abs(trajectory.ys - exact)
    return float(jnp.max(difference[-1])), float(jnp.max(difference[:-1]))


@pytest.mark.parametrize("integrator", [*EXPLICIT, *ROSENBROCK], ids=lambda i: type(i).__name__)
def test_observed_orders(integrator, exact):
    """Halving the step divides the error by two to the power of the order.

    The dense output of order q has a local error of order q + 1, beside the error of the steps:
    together min(p, q + 1). Steps are few for high orders, so that errors stay above rounding; a
    slope between so few points is within 0.35 of the order (0.6 for orders of 7 and more, where
    the next term of the error is not yet small).
    """
    tableau = integrator.tableau
    order, dense_order = tableau.order, tableau.dense.order
    steps = 32 if order <= 3 else 8 if order <= 5 else 4
    coarse, fine = errors(integrator, steps, exact), errors(integrator, 2 * steps, exact)
    slack = 0.35 if order < 7 else 0.6
    observed = np.log2(np.divide(coarse, fine))
    assert observed[0] > order - slack
    assert observed[0] < order + 1.5  # not a method of another order
    # Dopri8's interpolant of order 5, for one, is worse than its steps.
    assert observed[1] > min(order, dense_order + 1) - slack


@pytest.mark.parametrize("integrator", EXPLICIT, ids=lambda i: type(i).__name__)
def test_dense_output_meets_the_steps(integrator):
    """At the ends of a step the interpolant is the step, to what its tableau promises."""
    options = {
        "t0": 0.0,
        "t1": T1,
        "integrator": integrator,
        "controller": gs.ConstantStep(0.25),
    }
    nodes = jnp.array([0.0, 0.25, 0.5, 0.75, 1.0])
    on_nodes = gs.solve(SYSTEM, Y0, ts=nodes, **options).ys
    assert (on_nodes[0] == Y0).all()
    assert (on_nodes[-1] == gs.solve(SYSTEM, Y0, **options).ys).all()
    for side in (-1e-9, 1e-9):
        beside = gs.solve(SYSTEM, Y0, ts=nodes[1:4] + side, **options).ys
        assert jnp.max(jnp.abs(beside - on_nodes[1:4])) < 1e-8


def test_evaluate():
    trajectory = gs.solve(SYSTEM, Y0, t0=0.0, t1=T1, ts=jnp.array([0.3, 0.8]))
    assert (trajectory.evaluate(trajectory.ts) == trajectory.ys).all()
    shuffled = jnp.array([0.8, 0.1, 0.3, 0.8])
    values = trajectory.evaluate(shuffled)
    assert values.shape == (4, 2)
    assert (values[0] == trajectory.ys[1]).all()
    assert (values[2] == trajectory.ys[0]).all()
    assert (values[0] == values[3]).all()
    assert trajectory.evaluate(0.5).shape == (2,)
    assert (trajectory.evaluate(0.0) == Y0).all()
    backwards = gs.solve(SYSTEM, Y0, t0=T1, t1=0.0)
    assert (backwards.evaluate(jnp.array([0.2, 0.9]))[1] == backwards.evaluate(0.9)).all()

    y0s = jnp.stack([Y0, 2 * Y0, 0.5 * Y0])
    ensemble = gs.solve(SYSTEM, y0s, t0=0.0, t1=T1, in_axes=gs.InAxes(y0=0))
    shared = ensemble.evaluate(jnp.array([0.9, 0.2]))
    assert shared.shape == (3, 2, 2)
    assert ensemble.evaluate(0.9).shape == (3, 2)
    own = ensemble.evaluate(jnp.array([[0.9, 0.2], [0.2, 0.9], [0.9, 0.9]]))
    assert (own[0] == shared[0]).all()
    assert (own[1] == shared[1][::-1]).all()
    assert (own[2, 0] == shared[2, 0]).all()
    mixed = gs.solve(
        SYSTEM,
        y0s[::2],
        t0=jnp.array([0.0, 1.0]),
        t1=jnp.array([1.0, 0.0]),
        in_axes=gs.InAxes(y0=0, t0=0, t1=0),
    )
    values = mixed.evaluate(jnp.array([0.6, 0.0, 1.0]))
    assert (values[0, 1] == y0s[0]).all()
    assert (values[1, 2] == y0s[2]).all()
    assert (values[:, 0] == mixed.evaluate(0.6)).all()
    # Its derivative with respect to time is the field's value, to the accuracy of the interpolant.
    derivative = jax.jacrev(lambda t: trajectory.evaluate(t))(jnp.asarray(0.5))
    field = SYSTEM.vector_field(0.5, trajectory.evaluate(0.5))
    assert jnp.max(jnp.abs(derivative - field)) < 1e-4
