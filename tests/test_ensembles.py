"""Ensembles, vmap, jit, grad and their combinations agree with a Python loop over single solves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs
from tests.helpers import LotkaVolterra, relative

TS = jnp.array([0.7, 2.0, 3.5])
ALPHAS = jnp.array([0.5, 0.9, 1.3, 0.7, 1.1, 0.6])
Y0S = jnp.stack([jnp.linspace(8.0, 12.0, 6), jnp.linspace(3.0, 9.0, 6)], axis=1)


def system(alpha=1.1):
    return LotkaVolterra(jnp.asarray(alpha), 0.4, 0.4, 0.1)


def final(system, y0, **kwargs):
    return gs.solve(system, y0, t0=0.0, t1=4.0, ts=TS, **kwargs)


def batched(alphas=ALPHAS):
    return eqx.tree_at(lambda s: s.alpha, system(), alphas)


AXES = gs.InAxes(system=LotkaVolterra(0, None, None, None), y0=0)

# Trajectories do not interact, so only the order of operations within one differs: XLA compiles
# one trajectory and six of them differently. Rounding feeds the next step size, hence not eps.
SAME = 1e-9


@pytest.fixture(scope="module")
def loop():
    """The trajectories one by one, with the gradient of the sum of squares."""
    out = []
    for alpha, y0 in zip(ALPHAS, Y0S, strict=True):
        trajectory = final(system(alpha), y0)
        _, gradients = trajectory.loss_grad(
            lambda ys: jnp.sum(ys**2), wrt=("system", "y0", "ts", "t0", "t1")
        )
        out.append((trajectory, gradients))
    return out


def test_in_axes_is_a_loop(loop):
    ensemble = final(batched(), Y0S, in_axes=AXES)
    assert ensemble.ys.shape == (6, 3, 2)
    for i, (single, _) in enumerate(loop):
        assert relative(ensemble.ys[i], single.ys) < SAME
        assert int(ensemble.stats.num_accepted_steps[i]) == int(single.stats.num_accepted_steps)
        assert int(ensemble.stats.num_rejected_steps[i]) == int(single.stats.num_rejected_steps)
        count = int(single.mesh.num_steps) + 1
        assert relative(ensemble.mesh.times[:count, i], single.mesh.times[:count]) < SAME
    assert len({int(n) for n in ensemble.stats.num_accepted_steps}) > 1  # each has its own mesh


def test_in_axes_gradient_is_a_loop(loop):
    ensemble = final(batched(), Y0S, in_axes=AXES)
    _, (g_system, g_y0, g_ts, g_t0, g_t1) = ensemble.loss_grad(
        lambda ys: jnp.sum(ys**2), wrt=("system", "y0", "ts", "t0", "t1")
    )
    gradients = [g for _, g in loop]
    assert relative(g_system.alpha, jnp.stack([g[0].alpha for g in gradients])) < SAME
    assert relative(g_y0, jnp.stack([g[1] for g in gradients])) < SAME
    # What the trajectories share collects the sum of their gradients.
    for name in ("beta", "gamma", "delta"):
        total = sum(getattr(g[0], name) for g in gradients)
        assert relative(getattr(g_system, name), total) < SAME
    assert relative(g_ts, sum(g[2] for g in gradients)) < SAME
    assert relative(g_t0, sum(g[3] for g in gradients)) < SAME
    assert relative(g_t1, sum(g[4] for g in gradients)) < SAME


def test_vmap_is_a_loop(loop):
    ys = jax.vmap(lambda alpha, y0: final(system(alpha), y0).ys)(ALPHAS, Y0S)
    assert relative(ys, jnp.stack([single.ys for single, _ in loop])) < SAME


def test_filter_vmap_of_a_batched_module(loop):
    axes = (LotkaVolterra(0, None, None, None), 0)
    axes = jax.tree_util.tree_map(lambda a: None if a is None else int(a), axes)
    trajectory = eqx.filter_vmap(final, in_axes=(eqx.if_array(0), 0))(
        jax.tree_util.tree_map(lambda leaf: jnp.broadcast_to(leaf, (6,)), batched()), Y0S
    )
    assert relative(trajectory.ys, jnp.stack([single.ys for single, _ in loop])) < SAME


def test_nested_vmap_is_a_loop(loop):
    solve = lambda alpha, y0: final(system(alpha), y0).ys
    ys = jax.jit(jax.vmap(jax.vmap(solve)))(ALPHAS.reshape(2, 3), Y0S.reshape(2, 3, 2))
    want = jnp.stack([single.ys for single, _ in loop]).reshape(2, 3, 3, 2)
    assert relative(ys, want) < SAME


def test_vmap_of_an_ensemble(loop):
    """A batch axis outside, an ensemble axis inside, and a leaf that only the outer one batches."""

    def solve(alpha, y0s):
        return final(system(alpha), y0s, in_axes=gs.InAxes(y0=0)).ys

    ys = jax.vmap(solve, in_axes=(0, None))(ALPHAS[:2], Y0S)
    for i in range(2):
        for j in (0, 5):
            assert relative(ys[i, j], final(system(ALPHAS[i]), Y0S[j]).ys) < SAME


def test_vmap_is_one_loop():
    """The batch axes are folded into one ensemble: one while loop with a scalar predicate."""
    options = {"t0": 0.0, "t1": 4.0, "backend": gs.XLA()}
    solve = lambda alpha, y0: gs.solve(system(alpha), y0, **options).ys
    count = lambda fn, *args: str(jax.make_jaxpr(fn)(*args)).count("while[")
    single = count(solve, ALPHAS[0], Y0S[0])
    assert single == 1
    assert count(jax.vmap(solve), ALPHAS, Y0S) == single
    nested = jax.vmap(jax.vmap(solve))
    assert count(nested, ALPHAS.reshape(2, 3), Y0S.reshape(2, 3, 2)) == single
    # The buffers of a batched while loop with a vector predicate would go through selects of
    # their whole size; the mesh's buffer is the only one of 4097 rows.
    text = str(jax.make_jaxpr(nested)(ALPHAS.reshape(2, 3), Y0S.reshape(2, 3, 2)))
    assert not [line for line in text.split("\n") if "select_n" in line and "[4097,6]" in line][1:]


def loss_of(alpha, y0):
    return jnp.sum(final(system(alpha), y0, max_steps=64).ys ** 2)


@pytest.mark.parametrize(
    "transform",
    [
        lambda: jax.vmap(jax.grad(loss_of)),
        lambda: jax.jit(jax.vmap(jax.grad(loss_of))),
        lambda: lambda a, y: jax.grad(lambda a: jnp.sum(jax.vmap(loss_of)(a, y)))(a),
        lambda: jax.jit(
            lambda a, y: jax.value_and_grad(lambda a: jax.vmap(loss_of)(a, y).sum())(a)[1]
        ),
        lambda: lambda a, y: jnp.diagonal(jax.jacrev(lambda a: jax.vmap(loss_of)(a, y))(a)),
        lambda: (
            lambda a, y: jax.vmap(jax.vmap(jax.grad(loss_of)))(
                a.reshape(3, 2), y.reshape(3, 2, 2)
            ).ravel()
        ),
    ],
    ids=[
        "vmap-grad",
        "jit-vmap-grad",
        "grad-vmap",
        "jit-value_and_grad-vmap",
        "jacrev-vmap",
        "vmap-vmap-grad",
    ],
)
def test_gradient_transforms_are_a_loop(loop, transform):
    got = transform()(ALPHAS, Y0S)
    assert relative(got, jnp.stack([g[0].alpha for _, g in loop])) < SAME


def test_jacrev_of_an_ensemble_with_shared_parameters():
    """Cotangents with a batch axis, residuals without one; shared leaves keep their axes apart."""

    def ends(beta):
        s = eqx.tree_at(lambda s: s.beta, batched(), beta)
        return gs.solve(s, Y0S, t0=0.0, t1=2.0, in_axes=AXES, max_steps=64).ys[:, 0]

    jacobian = jax.jacrev(ends)(jnp.asarray(0.4))
    assert jacobian.shape == (6,)
    for i in (0, 3):
        single = gs.solve(system(ALPHAS[i]), Y0S[i], t0=0.0, t1=2.0)
        _, gradient = single.loss_grad(lambda ys: ys[0])
        assert relative(jacobian[i], gradient.beta) < SAME


def test_grad_of_solve_is_record_then_loss_grad(loop):
    alpha, y0 = ALPHAS[2], Y0S[2]
    g_alpha, g_y0 = jax.grad(loss_of, argnums=(0, 1))(alpha, y0)
    assert relative(g_alpha, loop[2][1][0].alpha) < 1e-12
    assert relative(g_y0, loop[2][1][1]) < 1e-12


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_can_be_the_ensemble_axis(axis):
    moved = jnp.moveaxis(Y0S, 0, axis)
    ys = gs.solve(system(), moved, t0=0.0, t1=1.0, in_axes=gs.InAxes(y0=axis)).ys
    want = gs.solve(system(), Y0S, t0=0.0, t1=1.0, in_axes=gs.InAxes(y0=0)).ys
    assert (ys == want).all()


def test_per_trajectory_windows_and_ragged_times():
    t0 = jnp.array([0.0, 1.0, 2.0])
    t1 = jnp.array([5.0, 3.0, 1.0])  # the last one runs backwards
    ts = jnp.array([[1.0, 2.0, 5.0], [1.0, 2.5, jnp.inf], [1.5, jnp.inf, jnp.inf]])
    axes = gs.InAxes(t0=0, t1=0, ts=0)
    ensemble = gs.solve(system(), Y0S[0], t0=t0, t1=t1, ts=ts, in_axes=axes)
    loss = lambda ys: jnp.nansum(ys**2)
    _, (g_ts, g_t0) = ensemble.loss_grad(loss, wrt=("ts", "t0"))
    assert (np.isnan(ensemble.ys[..., 0]) == np.isinf(ts)).all()
    assert (g_ts[jnp.isinf(ts)] == 0).all()
    assert np.isfinite(g_ts).all()
    for i in range(3):
        own = ts[i][jnp.isfinite(ts[i])]
        single = gs.solve(system(), Y0S[0], t0=t0[i], t1=t1[i], ts=own)
        _, (s_ts, s_t0) = single.loss_grad(loss, wrt=("ts", "t0"))
        assert relative(ensemble.ys[i, : len(own)], single.ys) < SAME
        assert relative(g_ts[i, : len(own)], s_ts) < SAME
        assert relative(g_t0[i], s_t0) < SAME


def test_batched_controllers_step_to_their_own_times():
    ts = jnp.array([[0.0, 0.3, 0.5, 1.0], [0.0, 0.6, 1.0, jnp.inf]])
    axes = gs.InAxes(y0=0, controller=eqx.if_array(0))
    ensemble = gs.solve(system(), Y0S[:2], t0=0.0, t1=1.0, controller=gs.StepTo(ts), in_axes=axes)
    assert list(ensemble.mesh.num_steps) == [3, 2]
    for i in range(2):
        own = ts[i][jnp.isfinite(ts[i])]
        single = gs.solve(system(), Y0S[i], t0=0.0, t1=1.0, controller=gs.StepTo(own))
        assert relative(ensemble.ys[i], single.ys) < 1e-14
        assert (ensemble.mesh.times[: len(own), i] == own).all()


def test_batched_tolerances_under_vmap():
    solve = lambda rtol: gs.solve(
        system(), Y0S[0], t0=0.0, t1=4.0, controller=gs.PIDController(rtol=rtol, atol=1e-10)
    )
    batch = eqx.filter_vmap(solve)(jnp.array([1e-3, 1e-6]))
    assert batch.stats.num_accepted_steps[0] < batch.stats.num_accepted_steps[1]
    assert relative(batch.ys[1], solve(1e-6).ys) < SAME


def test_axes_may_be_made_under_jit():
    # A system makes arrays of the numbers that it is given, and here they are names of axes.
    def solve(alphas):
        axes = gs.InAxes(system=LotkaVolterra(0, None, None, None), y0=0)
        return final(batched(alphas), Y0S, in_axes=axes).ys

    assert relative(jax.jit(solve)(ALPHAS), final(batched(), Y0S, in_axes=AXES).ys) < SAME
