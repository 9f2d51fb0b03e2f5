"""Large ensembles in no order, whose trajectories a GPU sorts by their numbers of steps.

From 32 769 trajectories on, kernels there run in blocks of more than one warp, and a replay that
keeps states for its adjoint keeps them in the order in which it has sorted a block.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import gradsolve as gs

from .helpers import SAME_MESH, relative, same_bits, under

LANES = 33_111  # neither a multiple of a block nor of a warp
BATCH, ENSEMBLE = 3, 11_037


class Relaxation(gs.ODESystem):
    """Towards a moving state at a rate that decides how many steps it takes."""

    rate: Float[Array, ""]
    weight: Float[Array, ""]

    def vector_field(self, t, y):
        return self.rate * (self.weight * jnp.stack([jnp.cos(t), t]) - y)


def shuffled(lanes):
    order = np.random.default_rng(0).permutation(lanes)
    return jnp.linspace(0.5, 40.0, lanes)[order], jnp.linspace(-1.0, 2.0, 2 * lanes).reshape(-1, 2)


def solved(fused, lanes, weight, batched, every=None):
    rates, y0 = shuffled(lanes)
    return gs.solve(
        Relaxation(rates, weight),
        y0,
        t0=0.0,
        t1=1.0,
        controller=gs.PIDController(rtol=1e-3, atol=1e-5),
        in_axes=gs.InAxes(system=Relaxation(0, batched), y0=0),
        adjoint=gs.DiscreteAdjoint(checkpoint_every=every),
        backend=fused,
    )


def loss(ys):
    return jnp.sum(jnp.sin(ys))


@pytest.fixture(scope="module")
def shared(fused):
    return solved(fused, LANES, jnp.array(0.7), None)


def test_numbers_of_steps_are_mixed(shared):
    steps = np.asarray(shared.mesh.num_steps)
    blocks = steps[: LANES // 128 * 128].reshape(-1, 4, 32)
    longest = blocks.max(axis=2).mean()
    assert longest > 1.2 * steps.mean()  # sorting is worth it


@pytest.mark.parametrize("every", [None, 4])
def test_gradients_against_plain_jax(every, fused):
    weights = jnp.linspace(0.5, 1.5, LANES)
    trajectory = solved(fused, LANES, weights, 0, every)
    assert same_bits(trajectory.replay(), trajectory.ys)
    wanted = ("system", "y0")
    _, got = trajectory.loss_grad(loss, wrt=wanted)
    _, want = under(gs.XLA(), trajectory).loss_grad(loss, wrt=wanted)
    assert relative(got, want) < SAME_MESH


def test_replay_and_recording_give_the_same_gradient(fused, shared):
    rates, y0 = shuffled(LANES)

    def recorded(rates, y0):
        return loss(
            gs.solve(
                Relaxation(rates, jnp.array(0.7)),
                y0,
                t0=0.0,
                t1=1.0,
                controller=gs.PIDController(rtol=1e-3, atol=1e-5),
                in_axes=gs.InAxes(system=Relaxation(0, None), y0=0),
                max_steps=64,
                backend=fused,
            ).ys
        )

    by_rates, by_y0 = jax.jit(jax.grad(recorded, argnums=(0, 1)))(rates, y0)
    _, (by_system, by_initial) = shared.loss_grad(loss, wrt=("system", "y0"))
    assert same_bits((by_rates, by_y0), (by_system.rate, by_initial))


def test_shared_parameters_have_the_same_bits_twice(fused, shared):
    _, first = shared.loss_grad(loss)
    _, second = shared.loss_grad(loss)
    assert same_bits(first, second)
    _, want = under(gs.XLA(), shared).loss_grad(loss)
    assert relative(first, want) < SAME_MESH


def test_one_replay_with_several_cotangents(shared):
    _, pull_back = jax.vjp(lambda y0: shared.replay(y0=y0), shared.y0)
    cotangents = jnp.stack([jnp.ones_like(shared.ys), jnp.cos(shared.ys)])
    together = jax.vmap(pull_back)(cotangents)
    for i, cotangent in enumerate(cotangents):
        (alone,) = pull_back(cotangent)
        assert same_bits(together[0][i], alone)


@pytest.fixture(scope="module")
def one_of_batch(fused):
    return solved(fused, ENSEMBLE, jnp.array(0.7), None)


def batch_of_states(trajectory):
    return trajectory.y0 + jnp.arange(BATCH, dtype=float)[:, None, None]


def test_a_batch_of_ensembles_is_taken_apart_before_its_adjoint(one_of_batch):
    def replay(y0):
        return one_of_batch.replay(y0=y0)

    states = batch_of_states(one_of_batch)
    ys, pull_back = jax.vmap(lambda y0: jax.vjp(replay, y0))(states)
    cotangent = jnp.cos(ys)
    for i in range(BATCH):
        member = jax.tree.map(lambda leaf, i=i: leaf[i], pull_back)
        (alone,) = jax.vjp(replay, states[i])[1](cotangent[i])
        assert same_bits(member(cotangent[i])[0], alone)


def test_a_batch_of_ensembles_with_several_cotangents_each(one_of_batch):
    def gradients(y0):
        ys, pull_back = jax.vjp(lambda y0: one_of_batch.replay(y0=y0), y0)
        return jax.vmap(pull_back)(jnp.stack([jnp.ones_like(ys), jnp.cos(ys)]))[0]

    states = batch_of_states(one_of_batch)
    together = jax.vmap(gradients)(states)
    for i in range(BATCH):
        assert same_bits(together[i], gradients(states[i]))
