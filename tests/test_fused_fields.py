"""Vector fields of every kind as fused kernels: leaves, tables, networks, control flow."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int

import gradsolve as gs

from .helpers import SAME_MESH, disagreement, same_bits, same_counts

ADAPTIVE = gs.PIDController(rtol=1e-4, atol=1e-6)


def agrees(fused, system, y0, in_axes=None, **kwargs):
    options = {"t0": 0.0, "t1": 1.5, "integrator": gs.Bosh3(), "controller": ADAPTIVE, **kwargs}
    trajectory = gs.solve(system, y0, in_axes=in_axes, backend=fused, **options)
    want = gs.solve(system, y0, in_axes=in_axes, backend=gs.XLA(), **options)
    assert same_counts(trajectory, want)
    assert same_bits(trajectory.replay(), trajectory.ys)
    for what, value in disagreement(trajectory).items():
        assert value < SAME_MESH, what
    return trajectory


class Part(eqx.Module):
    rate: Float[Array, ""]
    order: Int[Array, " 2"]


class Leaves(gs.ODESystem):
    """Matrices, integers, flags, nested modules; names that the kernels use themselves."""

    matrix: Float[Array, "2 3"]
    part: Part
    on: Bool[Array, ""]
    double: Array
    k: Float[Array, " 2"]
    first: Array
    t: Array
    gs: Array
    table: Any = eqx.field(static=True)

    def vector_field(self, t, y):
        a, b = y["a"], y["b"]
        flow = self.matrix @ jnp.concatenate([a, b[None]])
        rate = jnp.where(self.on, self.part.rate, -self.part.rate)
        captured = jnp.asarray(self.table)
        return {
            "a": flow[self.part.order] - self.k * a * self.double + captured[1] * jnp.sin(t),
            "b": rate * b + self.first * self.t * captured[self.part.order[0]] - self.gs * a[1],
        }


def test_leaves_of_every_kind(fused):
    lanes = 5
    x = jnp.linspace(0.2, 1.0, lanes)
    system = Leaves(
        matrix=jnp.arange(6.0).reshape(2, 3)[None] / 10 * x[:, None, None],
        part=Part(jnp.asarray(0.3), jnp.array([1, 0])),
        on=x > 0.5,
        double=0.4,
        k=jnp.array([0.5, 0.7]),
        first=x,
        t=0.9,
        gs=0.2,
        table=(0.3, 0.8, -0.1),
    )
    axes = Leaves(0, None, 0, None, None, 0, None, None, (0.3, 0.8, -0.1))
    y0 = {"a": jnp.array([1.0, -0.5]), "b": x}
    in_axes = gs.InAxes(system=axes, y0={"a": None, "b": 0})
    trajectory = agrees(fused, system, y0, in_axes, ts=jnp.array([0.0, 0.7, 1.5]))
    assert trajectory.ys["a"].shape == (5, 3, 2)
    assert trajectory.ys["b"].shape == (5, 3)
    _, gradient = trajectory.loss_grad(lambda ys: jnp.sum(ys["a"]) + jnp.sum(ys["b"]))
    assert gradient.matrix.shape == (5, 2, 3)
    assert gradient.part.order is None
    assert gradient.on is None


def test_an_array_that_the_field_closes_over_is_differentiated(fused):
    y0 = jnp.array([1.0, 2.0])

    def end(rates, backend):
        class Closure(gs.ODESystem):
            def vector_field(self, t, y):
                return -rates * y

        options = {"integrator": gs.Bosh3(), "controller": ADAPTIVE, "max_steps": 64}
        return jnp.sum(gs.solve(Closure(), y0, t0=0.0, t1=1.0, backend=backend, **options).ys)

    rates = jnp.array([0.3, 0.7])
    got, want = (jax.grad(end)(rates, backend) for backend in (fused, gs.XLA()))
    assert np.max(np.abs(got - want)) < SAME_MESH


class Network(gs.ODESystem):
    mlp: eqx.nn.MLP

    def vector_field(self, t, y):
        return self.mlp(y)


def network(width):
    mlp = eqx.nn.MLP(4, 4, width, 2, activation=jnp.tanh, key=jax.random.key(0))
    return Network(jax.tree_util.tree_map(lambda x: x.astype(float) if eqx.is_array(x) else x, mlp))


def test_a_network_with_shared_weights(fused):
    """Of 12 neurons a layer: the product of the inner weights is a loop, the others are not."""
    y0 = jax.random.normal(jax.random.key(1), (5, 4))
    agrees(fused, network(12), y0, gs.InAxes(y0=0))


def test_networks_with_weights_of_their_own(fused):
    """Loops over leaves with an entry per trajectory, in packs that are not full."""
    systems = jax.tree_util.tree_map(
        lambda x: jnp.stack([x, 0.9 * x, 1.1 * x]) if eqx.is_inexact_array(x) else x, network(12)
    )
    y0 = jax.random.normal(jax.random.key(1), (4,))
    agrees(fused, systems, y0, gs.InAxes(system=eqx.if_array(0)))


def test_the_gradient_for_every_weight_of_a_network(fused):
    """Against differences of the replay: XLA takes long to compile a network this wide."""
    system = network(32)
    y0 = jax.random.normal(jax.random.key(1), (5, 4))
    options = {"t0": 0.0, "t1": 1.5, "integrator": gs.Bosh3(), "controller": ADAPTIVE}
    trajectory = gs.solve(system, y0, in_axes=gs.InAxes(y0=0), backend=fused, **options)
    loss = lambda ys: jnp.sum(ys**2)
    _, gradient = trajectory.loss_grad(loss)
    weights = jax.tree_util.tree_leaves(eqx.filter(gradient, eqx.is_array))
    assert sum(weight.size for weight in weights) == 4 * 32 + 32 + 32 * 32 + 32 + 32 * 4 + 4
    assert all((weight != 0).all() for weight in weights)

    # In a direction that turns every product of weight and derivative the same way.
    direction = jax.tree_util.tree_map(lambda g: jnp.sign(g) * (1 + jnp.abs(g)), gradient)
    moved = lambda step: jax.tree_util.tree_map(
        lambda w, d: w + step * d if eqx.is_inexact_array(w) else w, system, direction
    )
    step = 1e-6
    change = loss(trajectory.replay(moved(step))) - loss(trajectory.replay(moved(-step)))
    along = sum(
        jnp.vdot(g, d) for g, d in zip(weights, jax.tree_util.tree_leaves(direction), strict=True)
    )
    # The error of the difference: the square of the step along a direction of norm 40, about 2e-9,
    # and rounding over the step, less.
    assert abs(change / (2 * step) / along - 1) < 1e-7


GRID = np.linspace(0.0, np.sqrt(5.0), 81)
# Numbers whose digits would be seen in the text of a kernel.
FORCE = np.sin(3 * GRID) + 1e-3 * np.cos(57 * GRID) ** 3


class Captured(gs.ODESystem):
    k: Array

    def vector_field(self, t, y):
        return -self.k * y + jnp.interp(t, jnp.asarray(GRID), jnp.asarray(FORCE))


class Given(gs.ODESystem):
    k: Array
    force: Float[Array, " times"]

    def vector_field(self, t, y):
        return -self.k * y + jnp.interp(t, jnp.asarray(GRID), self.force)


def test_a_table_that_the_field_captures(fused):
    agrees(fused, Captured(jnp.array([0.4, 1.4, 3.0])), jnp.asarray(1.0), gs.InAxes(Captured(0)))
    for job in ("record", "replay", "adjoint"):
        text = gs.kernel_source(Captured(1.0), jnp.asarray(1.0), job=job, backend=fused)
        assert not any(repr(float(value)) in text for value in (*FORCE[5:20], *GRID[5:20]))
        assert len(text) < 100_000


def test_a_table_of_parameters(fused):
    system = Given(jnp.array([0.4, 1.4, 3.0]), jnp.asarray(FORCE))
    trajectory = agrees(fused, system, jnp.asarray(1.0), gs.InAxes(Given(0, None)))
    _, gradient = trajectory.loss_grad(jnp.sum)
    used = np.flatnonzero(np.asarray(gradient.force))
    assert 0 < used.size < GRID.size
    assert used.max() <= np.searchsorted(GRID, 1.5)  # t1


class Control(gs.ODESystem):
    """`cond`, `while_loop`, `fori_loop`, `scan`, and a switch in time."""

    p: Float[Array, " 3"]

    def vector_field(self, t, y):
        a = jax.lax.cond(
            y[0] > 0.5, lambda x: x * self.p[0], lambda x: jnp.sin(x) + self.p[1], y[1]
        )

        def step(carry, weight):
            carry = 0.5 * carry + weight * y[0]
            return carry, carry * y[1]

        b, all_b = jax.lax.scan(step, self.p[2], jnp.array([0.1, -0.2, 0.3]))
        return jnp.stack([a - 0.3 * y[0], b - jnp.sum(all_b) - jnp.where(t < 0.7, 0.1, 0.4) * y[1]])


class Loop(gs.ODESystem):
    """A while loop whose number of turns depends on the lane; not for reverse mode."""

    p: Array

    def vector_field(self, t, y):
        turns = jax.lax.stop_gradient(jnp.floor(3 * jnp.abs(y)))
        _, count = jax.lax.while_loop(
            lambda carry: carry[0] < turns, lambda carry: (carry[0] + 1, carry[1] * 0.5), (0.0, 1.0)
        )
        return -self.p * y * jax.lax.stop_gradient(count) + 0.2


def test_control_flow(fused):
    y0 = jnp.array([[0.1, 1.0], [0.9, -0.4], [2.0, 0.3]])
    agrees(fused, Control(jnp.array([0.3, 0.1, 0.7])), y0, gs.InAxes(y0=0))


def test_a_while_loop(fused):
    y0 = jnp.array([0.1, 0.9, -2.0, 4.0, 1.0])
    agrees(fused, Loop(0.7), y0, gs.InAxes(y0=0))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_scalar_states(dtype, fused):
    class Decay(gs.ODESystem):
        k: Array

        def vector_field(self, t, y):
            return -self.k * y

    k = jnp.array([0.5, 1.5], dtype)
    trajectory = gs.solve(
        Decay(k),
        jnp.asarray(1.0, dtype),
        t0=0.0,
        t1=1.0,
        integrator=gs.Bosh3(),
        in_axes=gs.InAxes(system=Decay(0)),
        controller=ADAPTIVE,
        backend=fused,
    )
    assert trajectory.ys.shape == (2,)
    assert trajectory.ys.dtype == dtype
    # Ten times the tolerance.
    assert np.max(np.abs(trajectory.ys - jnp.exp(-k))) < 1e-3
