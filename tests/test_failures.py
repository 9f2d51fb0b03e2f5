"""A trajectory that fails has a status; its own rows are nan; nothing else is touched."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs
from gradsolve import _results as codes

TS = jnp.linspace(0.0, 1.0, 6)


class Mixed(gs.ODESystem):
    """`y' = k y^2 + 0 sqrt(c - y)`: a pole for large k, a domain for small c."""

    k: Array
    c: Array
    shared: Array

    def vector_field(self, t, y):
        return self.shared * (self.k * y * y + 0 * jnp.sqrt(self.c - y))


BIG = 1e30
#                  fine, pole at 0.5, nan parameter, leaves the domain, fine
KS = jnp.array([0.5, 2.0, jnp.nan, 0.9, 0.7])
CS = jnp.array([BIG, BIG, BIG, 2.0, BIG])
EXPECTED = ["successful", None, "nonfinite", None, "successful"]
FINE = np.array([0, 4])


def solve(ks=KS, cs=CS, **kwargs):
    axes = gs.InAxes(system=Mixed(0, 0, None))
    options = {"t0": 0.0, "t1": 1.0, "ts": TS, "in_axes": axes, "throw": False, **kwargs}
    return gs.solve(Mixed(ks, cs, 1.0), jnp.asarray(1.0), **options)


def test_statuses():
    trajectory = solve()
    for i, name in enumerate(EXPECTED):
        if name is not None:
            assert (trajectory.result == getattr(gs.RESULTS, name))[i], name
    assert not trajectory.succeeded[1]
    assert not trajectory.succeeded[3]
    assert (trajectory.result == gs.RESULTS.nonfinite)[3]  # its last candidates were nan
    assert list(np.asarray(trajectory.succeeded)) == [True, False, False, False, True]


def test_rows_are_exact_up_to_the_failure_and_nan_from_there():
    trajectory = solve()
    exact = 1 / (1 - KS[1] * TS)
    reached = float(trajectory.mesh.times[trajectory.mesh.num_steps[1], 1])
    assert abs(reached - 0.5) < 1e-3
    before = np.asarray(reached > TS)
    assert np.isfinite(trajectory.ys[1][before]).all()
    assert np.max(np.abs(trajectory.ys[1][before] / exact[before] - 1)) < 1e-4
    assert np.isnan(trajectory.ys[1][~before]).all()
    assert np.isnan(trajectory.ys[2]).all()


@pytest.mark.parametrize("through", ["loss_grad", "grad"])
def test_the_others_are_not_touched(through):
    """Bit for bit: the same ensemble, once with failing members and once with healthy ones."""
    healthy_k = KS.at[jnp.array([1, 2, 3])].set(0.1)
    healthy_c = CS.at[3].set(BIG)
    runs = []
    for ks, cs in ((KS, CS), (healthy_k, healthy_c)):
        trajectory = solve(ks, cs)
        weights = jnp.zeros((5, 1)).at[FINE].set(1.0)
        loss = lambda ys, w=weights: jnp.sum(jnp.where(w > 0, ys, 0.0) ** 2)
        if through == "loss_grad":
            _, (gradient, g_ts) = trajectory.loss_grad(loss, wrt=("system", "ts"))
        else:
            gradient = eqx.filter_grad(
                lambda s, loss=loss: loss(
                    gs.solve(
                        s,
                        jnp.asarray(1.0),
                        t0=0.0,
                        t1=1.0,
                        ts=TS,
                        in_axes=gs.InAxes(system=Mixed(0, 0, None)),
                        max_steps=512,
                        throw=False,
                    ).ys
                )
            )(trajectory.system)
        runs.append((trajectory.ys[FINE], gradient.k[FINE], gradient.shared))
        assert np.isfinite(gradient.shared)
        assert (gradient.k[np.array([1, 2, 3])] == 0).all()
    for failing, healthy in zip(*runs, strict=True):
        assert (np.asarray(failing) == np.asarray(healthy)).all()


def test_a_loss_that_keeps_the_nan_rows_still_has_finite_gradients_elsewhere():
    """The cotangents of nan rows are dropped, whatever they are."""
    trajectory = solve()
    _, gradient = trajectory.loss_grad(lambda ys: jnp.nansum(ys[:, -1]))
    assert np.isfinite(gradient.k).all()
    _, gradient = trajectory.loss_grad(lambda ys: jnp.sum(ys))
    assert np.isfinite(gradient.shared)


def test_rows_before_the_failure_keep_their_gradient():
    trajectory = solve()
    _, gradient = trajectory.loss_grad(lambda ys: ys[1, 1])  # t = 0.2, pole at 0.5
    exact = 0.2 / (1 - 2.0 * 0.2) ** 2  # d/dk of 1 / (1 - k t)
    assert abs(float(gradient.k[1]) / exact - 1) < 1e-4


def test_max_steps_is_per_trajectory():
    ks = jnp.array([0.5, 5000.0])

    class Decay(gs.ODESystem):
        k: Array

        def vector_field(self, t, y):
            return -self.k * (y - jnp.cos(20 * t))

    trajectory = gs.solve(
        Decay(ks),
        jnp.asarray(1.0),
        t0=0.0,
        t1=10.0,
        in_axes=gs.InAxes(system=eqx.if_array(0)),
        max_steps=1000,
        throw=False,
    )
    assert list(np.asarray(trajectory.succeeded)) == [True, False]
    assert (trajectory.result == gs.RESULTS.max_steps_reached)[1]
    assert int(trajectory.stats.num_steps[1]) == 1000
    assert int(trajectory.stats.num_steps[0]) < 1000
    assert np.isnan(trajectory.ys[1])


def test_step_size_underflow_at_dtmin():
    controller = gs.PIDController(rtol=1e-8, atol=1e-10, dtmin=0.1, force_dtmin=False)
    trajectory = gs.solve(
        Mixed(2.0, BIG, 1.0), jnp.asarray(1.0), t0=0.0, t1=1.0, controller=controller, throw=False
    )
    assert trajectory.result == gs.RESULTS.step_size_underflow


def test_fixed_steps_over_an_undefined_point():
    trajectory = gs.solve(
        Mixed(0.9, 2.0, 1.0),
        jnp.asarray(1.0),
        t0=0.0,
        t1=1.0,
        controller=gs.ConstantStep(0.1),
        throw=False,
    )
    assert trajectory.result == gs.RESULTS.nonfinite
    assert int(trajectory.mesh.num_steps) == int(trajectory.stats.num_accepted_steps) < 10


def test_traced_solves_do_not_raise():
    ys = jax.jit(
        lambda k: gs.solve(Mixed(k, BIG, 1.0), jnp.asarray(1.0), t0=0.0, t1=1.0, max_steps=200).ys
    )(2.0)
    assert np.isnan(ys)


def test_codes_are_the_members_in_order():
    names = ("successful", "max_steps_reached", "step_size_underflow", "nonfinite", "event")
    for code, (name, member) in enumerate(zip(names, codes.MEMBERS, strict=True)):
        assert int(member._value) == code
        assert member == getattr(gs.RESULTS, name)
        assert gs.RESULTS[member] == codes.MESSAGES[code]


@pytest.mark.parametrize("parameters", [3, 70])
def test_an_infinite_derivative_at_the_start_stays_with_its_lane(parameters):
    """`sqrt` at zero is finite and its derivative is not; idle lanes must not multiply it by zero.

    Few shared parameters get one cotangent per lane, many are contracted inside the field's VJP.
    """

    class Root(gs.ODESystem):
        p: Array

        def vector_field(self, t, y):
            return jnp.sqrt(y) * jnp.mean(self.p) + jnp.cos(3 * t) ** 2 + jnp.sum(self.p**2) / 100

    y0 = jnp.array([0.0, 4.0])
    system = Root(jnp.linspace(0.5, 1.0, parameters))
    options = {"t0": 0.0, "t1": 2.0}
    together = gs.solve(system, y0, in_axes=gs.InAxes(y0=0), **options)
    assert int(together.mesh.num_steps[0]) != int(together.mesh.num_steps[1])
    loss = lambda ys: jnp.sum(ys**2)
    _, gradient = together.loss_grad(loss)
    alone = [gs.solve(system, y, **options).loss_grad(loss)[1].p for y in y0]
    assert np.isfinite(gradient.p).all()
    # A trajectory alone records the same mesh up to rounding in its step sizes.
    assert np.max(np.abs(gradient.p / sum(alone) - 1)) < 1e-7
