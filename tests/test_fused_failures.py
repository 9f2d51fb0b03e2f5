"""A trajectory that fails in a fused kernel leaves the bits of all others as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs

from .helpers import SAME_MESH, disagreement, same_bits, same_counts

TS = jnp.array([0.1, 0.4, 0.9, 1.0])


class Mixed(gs.ODESystem):
    """`y' = shared (k y^2 + 1e-9 sqrt(c - y))`: a pole for large k, a domain for small c."""

    k: Array
    c: Array
    shared: Array

    def vector_field(self, t, y):
        return self.shared * (self.k * y * y + 1e-9 * jnp.sqrt(self.c - y))


BIG = 1e6
#      fine, pole at 0.5, nan parameter, leaves the domain, fine, pole at 1 / 3, ...
KS = jnp.array([0.5, 2.0, jnp.nan, 0.9, 0.7, 3.0, 0.1, 0.3, 0.2, jnp.nan, -1.0])
CS = jnp.array([BIG, BIG, BIG, 2.0, BIG, BIG, BIG, BIG, BIG, 1.0, BIG])
FAILS = np.array([1, 2, 3, 5, 9])
FINE = np.array([0, 4, 6, 7, 8, 10])
AXES = gs.InAxes(system=Mixed(0, 0, None))


def record(ks, cs, backend, **kwargs):
    options = {"t0": 0.0, "t1": 1.0, "ts": TS, "in_axes": AXES, "throw": False, **kwargs}
    return gs.solve(Mixed(ks, cs, 1.0), jnp.asarray(1.0), backend=backend, **options)


def of_the_fine(ys):
    """A loss in which the members that fail have no part."""
    return jnp.sum(jnp.sin(ys[FINE]))


def test_statuses_and_rows(fused):
    got, want = record(KS, CS, fused), record(KS, CS, gs.XLA())
    assert (got.succeeded == want.succeeded).all()
    assert list(np.flatnonzero(~np.asarray(got.succeeded))) == list(FAILS)
    assert same_bits(got.result._value, want.result._value)
    assert (np.isnan(got.ys) == np.isnan(want.ys)).all()
    assert np.isfinite(got.ys[1, :2]).all()  # before its pole
    assert np.isnan(got.ys[1, 2:]).all()
    assert (got.stats.num_accepted_steps[FINE] == want.stats.num_accepted_steps[FINE]).all()
    assert (got.stats.num_rejected_steps[FINE] == want.stats.num_rejected_steps[FINE]).all()
    assert same_bits(got.replay(), got.ys)


def test_the_bits_of_the_others(fused):
    """The same ensemble with healthy members in the places of the failing ones."""
    healthy_k = KS.at[FAILS].set(jnp.array([0.1, 0.2, 0.3, -0.4, 0.8]))
    healthy_c = CS.at[FAILS].set(BIG)
    runs = []
    for ks, cs in ((KS, CS), (healthy_k, healthy_c)):
        trajectory = record(ks, cs, fused)
        names = ("system", "y0", "t0", "t1", "ts")
        _, (system, *others) = trajectory.loss_grad(of_the_fine, wrt=names)
        # In the shared gradients a member without a cotangent adds an exact zero.
        runs.append((trajectory.ys[FINE], system.k[FINE], system.shared, others))
        assert (system.k[FAILS] == 0).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves(runs[-1]))
    assert same_bits(*runs)


def test_the_gradient_of_a_traced_solve(fused):
    def loss(system, backend):
        options = {"t0": 0.0, "t1": 1.0, "ts": TS, "in_axes": AXES, "max_steps": 512}
        ys = gs.solve(system, jnp.asarray(1.0), backend=backend, throw=False, **options).ys
        return of_the_fine(ys)

    gradient = jax.grad(loss)(Mixed(KS, CS, 1.0), fused)
    _, want = record(KS, CS, fused).loss_grad(of_the_fine)
    assert (gradient.k[FAILS] == 0).all()
    assert np.max(np.abs(gradient.k - want.k)) < 1e-14
    assert abs(gradient.shared - want.shared) < 1e-13


def test_rows_before_a_failure_have_their_gradient(fused):
    trajectory = record(KS, CS, fused)
    for what, value in disagreement(trajectory).items():
        assert value < SAME_MESH, what
    _, gradient = trajectory.loss_grad(lambda ys: ys[1, 1])
    exact = 0.4 / (1 - 2.0 * 0.4) ** 2  # d/dk of 1 / (1 - k t)
    assert abs(gradient.k[1] / exact - 1) < 1e-3  # the tolerance, near the pole
    # A loss that takes the nan rows too is nan, and its gradient is not: their cotangents go
    # nowhere.
    value, gradient = trajectory.loss_grad(jnp.sum)
    assert np.isnan(value)
    assert np.isfinite(gradient.k).all()
    assert np.isfinite(gradient.shared)


def test_max_steps(fused):
    trajectory = record(jnp.array([0.5, 0.95, -1.0]), jnp.full(3, BIG), fused, max_steps=9)
    want = record(jnp.array([0.5, 0.95, -1.0]), jnp.full(3, BIG), gs.XLA(), max_steps=9)
    assert same_counts(trajectory, want)
    assert list(np.asarray(trajectory.succeeded)) == list(np.asarray(want.succeeded))
    assert (trajectory.result == gs.RESULTS.max_steps_reached)[1]
    assert int(trajectory.stats.num_steps[1]) == 9
    assert trajectory.succeeded[2]
    assert same_bits(trajectory.replay(), trajectory.ys)


def test_step_size_underflow(fused):
    controller = gs.PIDController(rtol=1e-8, atol=1e-10, dtmin=0.01, force_dtmin=False)
    got = record(KS, CS, fused, controller=controller)
    want = record(KS, CS, gs.XLA(), controller=controller)
    assert (got.result == gs.RESULTS.step_size_underflow)[1]
    assert same_bits(got.result._value, want.result._value)


def test_the_message(fused):
    ks = KS.at[jnp.array([2, 9])].set(0.1)
    with pytest.raises(gs.SolveError, match=r"4 of 11 trajectories .* trajectory 1, .* t = 0\.5"):
        record(ks, CS, fused, throw=True)


class Root(gs.ODESystem):
    p: Array

    def vector_field(self, t, y):
        return jnp.sqrt(y) * jnp.mean(self.p) + jnp.cos(3 * t) ** 2


def test_an_infinite_derivative_stays_with_its_lane(fused):
    """`sqrt` at zero is finite, its derivative is not; a lane that waits must not multiply it."""
    y0 = jnp.array([0.0, 4.0, 1.0])
    trajectory = gs.solve(
        Root(jnp.array([0.5, 1.0])),
        y0,
        t0=0.0,
        t1=2.0,
        in_axes=gs.InAxes(y0=0),
        integrator=gs.Bosh3(),
        backend=fused,
    )
    # No cotangent reaches the first lane.
    _, (gradient, g_y0) = trajectory.loss_grad(lambda ys: jnp.sum(ys[1:]), wrt=("system", "y0"))
    assert np.isfinite(gradient.p).all()
    assert g_y0[0] == 0
    assert np.isfinite(g_y0).all()
    _, gradient = trajectory.loss_grad(jnp.sum)
    assert np.isfinite(gradient.p).all()
