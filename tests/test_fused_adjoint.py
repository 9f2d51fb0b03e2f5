"""The adjoint kernel: checkpoints, finite differences, transposes, closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs

from .helpers import (
    SAME_MESH,
    Driven,
    disagreement,
    driven_ensemble,
    replayed,
    same_bits,
    smooth_loss,
    under,
)

SYSTEM, Y0S = driven_ensemble(5)
AXES = gs.InAxes(system=Driven(0), y0=0)
TS = jnp.array([0.2, 0.5, 0.55, 1.4, 1.9])
ADAPTIVE = gs.PIDController(rtol=1e-5, atol=1e-7)


def record(backend, adjoint=None, **kwargs):
    options = {"t0": 0.1, "t1": 2.0, "ts": TS, "in_axes": AXES, "controller": ADAPTIVE, **kwargs}
    return gs.solve(
        SYSTEM, Y0S, backend=backend, adjoint=adjoint or gs.DiscreteAdjoint(), **options
    )


@pytest.mark.parametrize("every", [2, 3, 7, 1000])
def test_the_bits_of_the_gradient_do_not_depend_on_the_checkpoints(every, fused):
    # The segment is computed by the operations of the recording, in their order.
    adjoint = gs.DiscreteAdjoint(checkpoint_every=every)
    assert same_bits(replayed(record(fused, adjoint)), replayed(record(fused)))


def test_the_bits_of_the_gradient_do_not_depend_on_the_memory_limit(fused):
    rows = record(fused).mesh.times.shape[0] - 1
    # Room for a third of the states.
    limit = rows * 5 * 2 * 8 // 3
    limited = record(fused, gs.DiscreteAdjoint(memory_limit=limit))
    assert same_bits(replayed(limited), replayed(record(fused)))
    with pytest.raises(ValueError, match="memory_limit"):
        replayed(record(fused, gs.DiscreteAdjoint(memory_limit=100)))


@pytest.mark.parametrize("every", [1, 3])
def test_the_gradient_of_a_solve_is_that_of_its_replay(every, fused):
    """`jax.grad` of `solve` takes the checkpoints of the recording, `loss_grad` of a replay."""
    adjoint = gs.DiscreteAdjoint(checkpoint_every=every)

    def value(p, y0):
        return smooth_loss(
            gs.solve(
                Driven(p),
                y0,
                t0=0.1,
                t1=2.0,
                ts=TS,
                in_axes=AXES,
                controller=ADAPTIVE,
                adjoint=adjoint,
                max_steps=64,
                backend=fused,
            ).ys
        )

    g_p, g_y0 = jax.grad(value, argnums=(0, 1))(SYSTEM.p, Y0S)
    _, (g_system, want_y0) = record(fused, adjoint).loss_grad(smooth_loss, wrt=("system", "y0"))
    # Without the times the kernel is another one, which may be arranged differently.
    assert np.max(np.abs(g_p / g_system.p - 1)) < 1e-12
    assert np.max(np.abs(g_y0 / want_y0 - 1)) < 1e-12


def test_finite_differences_of_the_frozen_mesh_map(fused):
    trajectory = record(fused)
    values = {"y0": Y0S, "system": SYSTEM, "ts": TS, "t0": jnp.asarray(0.1), "t1": jnp.asarray(2.0)}
    _, gradients = trajectory.loss_grad(smooth_loss, wrt=tuple(values))
    h = 1e-5  # truncation h^2 and rounding eps / h, both 1e-10, times derivatives of about ten
    for (name, value), gradient in zip(values.items(), gradients, strict=True):
        flat, unravel = jax.flatten_util.ravel_pytree(value)
        direction = jnp.cos(jnp.arange(flat.size) + 0.5)
        up = smooth_loss(trajectory.replay(**{name: unravel(flat + h * direction)}))
        down = smooth_loss(trajectory.replay(**{name: unravel(flat - h * direction)}))
        slope = jax.flatten_util.ravel_pytree(gradient)[0] @ direction
        assert abs((up - down) / (2 * h) - slope) < 1e-8 * (1 + abs(slope)), name


def test_transpose_identity(fused):
    """`<u, J v> = <J^T u, v>` for random u and v, with J v by central differences."""
    trajectory = record(fused)
    keys = jax.random.split(jax.random.key(3), 3)
    u = jax.random.normal(keys[0], trajectory.ys.shape)
    v_p = jax.random.normal(keys[1], SYSTEM.p.shape)
    v_y0 = jax.random.normal(keys[2], Y0S.shape)
    run = lambda p, y0: trajectory.replay(Driven(p), y0)
    _, pull = jax.vjp(run, SYSTEM.p, Y0S)
    ct_p, ct_y0 = pull(u)
    h = 1e-5
    ahead, behind = (run(SYSTEM.p + s * v_p, Y0S + s * v_y0) for s in (h, -h))
    left = jnp.sum(u * (ahead - behind)) / (2 * h)
    right = jnp.sum(ct_p * v_p) + jnp.sum(ct_y0 * v_y0)
    assert abs(left - right) < 1e-8 * jnp.sum(jnp.abs(ct_p * v_p))
    # The pullback is linear, to the last bit but one.
    twice = pull(2 * u)
    assert same_bits(twice, (2 * ct_p, 2 * ct_y0))


def test_only_the_end_states_of_a_solve_with_output_times(fused):
    """A cotangent of zero reaches nothing: the result is zero, not nan."""
    trajectory = record(fused)
    _, pull = jax.vjp(lambda p: trajectory.replay(Driven(p)), SYSTEM.p)
    (ct_p,) = pull(jnp.zeros_like(trajectory.ys))
    assert same_bits(ct_p, jnp.zeros_like(SYSTEM.p))
    (first,) = pull(jnp.zeros_like(trajectory.ys).at[2, 0].set(1.0))
    assert (first[np.array([0, 1, 3, 4])] == 0).all()
    assert (first[2] != 0).any()


class Linear(gs.ODESystem):
    a: Array
    c: Array

    def vector_field(self, t, y):
        return self.a @ y + self.c


def test_closed_form_of_a_linear_system(fused):
    """A step of a method with s = order stages is the Taylor polynomial of `exp(h A)`."""
    a = jnp.array([[-0.3, 1.0], [-0.8, -0.1]])
    system, y0 = Linear(a, jnp.array([0.2, -0.4])), jnp.array([1.0, 0.5])
    steps, t1 = 6, 1.5

    def exact(a, c, y0, t1):
        h, y = t1 / steps, y0
        for _ in range(steps):
            term, total = h * (a @ y + c), y
            for k in range(1, 5):
                total = total + term
                term = h * (a @ term) / (k + 1)
            y = total
        return jnp.sum(jnp.array([1.0, -2.0]) * y)

    trajectory = gs.solve(
        system,
        y0,
        t0=0.0,
        t1=t1,
        integrator=gs.RK4(),
        controller=gs.ConstantStep(t1 / steps),
        backend=fused,
    )
    value, (g, g_y0) = trajectory.loss_grad(
        lambda y: jnp.sum(jnp.array([1.0, -2.0]) * y), wrt=("system", "y0")
    )
    want, (w_a, w_c, w_y0) = jax.value_and_grad(exact, argnums=(0, 1, 2))(a, system.c, y0, t1)
    # Rounding of six steps of a few dozen operations.
    assert abs(value - want) < 1e-14
    for got, wanted in ((g.a, w_a), (g.c, w_c), (g_y0, w_y0)):
        assert np.max(np.abs(got - wanted)) < 1e-14


def test_gradients_of_a_subset_of_the_inputs(fused):
    trajectory = record(fused)
    _, everything = trajectory.loss_grad(smooth_loss, wrt=("system", "y0"))
    _, alone = trajectory.loss_grad(smooth_loss, wrt="y0")
    # A kernel without the parameters' cotangents may be arranged differently.
    assert np.max(np.abs(alone / everything[1] - 1)) < SAME_MESH


def test_the_comparison_sees_a_difference(fused):
    """The measure that these tests rely on is not blind to any of the quantities."""
    trajectory = record(fused)
    times = trajectory.mesh.times
    moved = eqx.tree_at(lambda t: t.mesh.times, trajectory, times.at[3].multiply(1.001))
    got, want = replayed(moved), replayed(under(gs.XLA(), trajectory))
    differences = jax.tree_util.tree_map(lambda a, b: float(jnp.max(jnp.abs(a - b))), got, want)
    assert all(value > SAME_MESH for value in jax.tree_util.tree_leaves(differences))
    assert all(value < SAME_MESH for value in disagreement(trajectory).values())
