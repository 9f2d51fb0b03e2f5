"""Large ensembles in no order, whose trajectories a GPU sorts by their numbers of steps.

From 16 385 trajectories on, kernels there run in blocks of two warps, from 32 769 on of four, and a
replay that keeps states for its adjoint keeps them in the order in which it has sorted a block.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import gradsolve as gs
from gradsolve._ensemble.batching import MadeBefore
from gradsolve._fused import jobs

from .helpers import SAME_MESH, relative, same_bits, under

LANES, HALF = 33_111, 17_003  # neither is a multiple of a block or of a warp
BATCH, ENSEMBLE = 3, 11_037


class Relaxation(gs.ODESystem):
    """Towards a moving state at a rate that decides how many steps it takes.

    Not linear: the gradient by `y0` needs the states along the way.
    """

    rate: Float[Array, ""]
    weight: Float[Array, ""]

    def vector_field(self, t, y):
        return self.rate * (self.weight * jnp.stack([jnp.cos(t), t]) - y - 0.2 * y**3)


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


@pytest.mark.parametrize(("lanes", "every"), [(LANES, None), (LANES, 4), (HALF, 4)])
def test_gradients_against_plain_jax(lanes, every, fused):
    weights = jnp.linspace(0.5, 1.5, lanes)
    trajectory = solved(fused, lanes, weights, 0, every)
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
    return trajectory.y0 + 0.1 * jnp.arange(BATCH, dtype=float)[:, None, None]


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


FORMS = {
    "gradient": lambda loss: jax.vmap(jax.grad(loss)),
    "jit": lambda loss: jax.vmap(jax.jit(jax.grad(loss))),
    "checkpoint": lambda loss: jax.vmap(jax.grad(jax.checkpoint(loss))),
    "scan": lambda loss: jax.vmap(jax.grad(lambda y0: in_scan(loss, y0))),
    "gradient in scan": lambda loss: jax.vmap(lambda y0: in_scan(jax.grad(loss), y0)),
}


def in_scan(function, y0):
    body = lambda carry, x: (carry, function(x * y0))
    return jax.lax.scan(body, None, jnp.ones(1))[1].sum(axis=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_sorts_and_one_of_its_ensembles_does_not(form, one_of_batch):
    def loss_of(y0):
        return loss(one_of_batch.replay(y0=y0))

    states = batch_of_states(one_of_batch)
    together = jax.jit(FORMS[form](loss_of))(states)
    for i in range(BATCH):
        assert relative(together[i], jax.grad(loss_of)(states[i])) < SAME_MESH


@pytest.fixture
def reversed_columns(monkeypatch):
    """Kernels on the CPU that keep states in an order of their own: the reverse."""
    replay, adjoint = jobs.replay, jobs.adjoint

    def replay_reversed(program, compile_unit, sorts, store, ensemble, is_lane, leaves, inputs):
        arguments = (store, ensemble, is_lane, leaves, inputs)
        out, *rest = replay(program, compile_unit, False, *arguments)
        if store:
            columns = jnp.arange(inputs.y0.shape[-1], dtype=jnp.int32)
            order = ensemble - 1 - 2 * (columns % ensemble)
            states = out.checkpoints.states[..., columns + order]
            out = out._replace(checkpoints=jobs.SavedStates(states, order=order))
        return (out, *rest)

    def adjoint_in_order(program, compile_unit, group_size, wanted, is_lane, leaves, inputs):
        states, _, _, order = inputs.checkpoints.value
        trajectories = jnp.arange(states.shape[-1]) + order
        states = jnp.full_like(states, jnp.nan).at[..., trajectories].set(states)
        checkpoints = MadeBefore(jobs.SavedStates(states), inputs.checkpoints.lanes)
        inputs = inputs._replace(checkpoints=checkpoints)
        return adjoint(program, compile_unit, group_size, wanted, is_lane, leaves, inputs)

    monkeypatch.setattr(jobs, "replay", replay_reversed)
    monkeypatch.setattr(jobs, "adjoint", adjoint_in_order)
    jax.clear_caches()
    yield
    jax.clear_caches()


def in_batches(loss):
    """Gradients of a batch of batches, in every form, and with several cotangents each."""
    out = {name: jax.vmap(form(loss)) for name, form in FORMS.items()}
    out["closures"] = lambda y0: jax.vmap(jax.vmap(lambda pull: pull(1.0)[0]))(
        jax.vmap(jax.vmap(lambda y: jax.vjp(loss, y)[1]))(y0)
    )
    out["cotangents"] = lambda y0: jax.vmap(
        jax.vmap(lambda y: jax.vmap(jax.vjp(loss, y)[1])(jnp.array([1.0, 1.0]))[0][1])
    )(y0)
    return out


@pytest.mark.parametrize("every", [None, 2])
def test_an_order_survives_every_batch(every, reversed_columns):
    trajectory = solved(gs.HostCPU(), 5, jnp.array(0.7), None, every)
    plain = under(gs.XLA(), trajectory)
    states = trajectory.y0 + 0.05 * jnp.arange(6.0).reshape(2, 3, 1, 1)
    want = jax.jit(jax.vmap(jax.vmap(jax.grad(lambda y0: loss(plain.replay(y0=y0))))))(states)
    for name, gradient in in_batches(lambda y0: loss(trajectory.replay(y0=y0))).items():
        assert relative(jax.jit(gradient)(states), want) < SAME_MESH, name


def test_a_batch_of_ensembles_with_several_cotangents_each(one_of_batch):
    def gradients(y0):
        ys, pull_back = jax.vjp(lambda y0: one_of_batch.replay(y0=y0), y0)
        return jax.vmap(pull_back)(jnp.stack([jnp.ones_like(ys), jnp.cos(ys)]))[0]

    states = batch_of_states(one_of_batch)
    together = jax.vmap(gradients)(states)
    for i in range(BATCH):
        assert same_bits(together[i], gradients(states[i]))
