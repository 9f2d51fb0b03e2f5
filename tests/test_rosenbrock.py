"""Rosenbrock methods, in plain JAX and fused: steps, dense output, gradients, failures."""

import re

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import gradsolve as gs
from tests.helpers import ROSENBROCK, reference_case, relative, under

T0, T1 = 0.3, 2.6
TS = jnp.array([0.3, 0.9, 1.4, 2.0, 2.6])
Y0 = jnp.array([1.2, 0.4])
ALL = ("system", "y0", "ts", "t0", "t1")
NAMED = {"ids": lambda integrator: type(integrator).__name__}


class Forced(gs.ODESystem):
    """Nonlinear in the state, the parameters and time: every term of the adjoint matters."""

    mu: jax.Array
    force: jax.Array

    def vector_field(self, t, y):
        x, v = y
        return jnp.stack([v + self.force[0] * t * x, self.mu * (1 - x**2) * v - x * jnp.cos(t)])


SYSTEM = Forced(3.0, jnp.array([0.2]))


class Autonomous(gs.ODESystem):
    """Time does not appear."""

    mu: jax.Array

    def vector_field(self, t, y):
        return jnp.stack([y[1], self.mu * (1 - y[0] ** 2) * y[1] - y[0]])


def loss(ys):
    return jnp.sum(jnp.cos(ys) * jnp.arange(1.0, ys.size + 1).reshape(ys.shape))


def plain_map(tableau, times, system, y0, ts, t0, t1, derivative=lambda x: x):
    """The discrete map in the plainest JAX, in the published form, for JAX to differentiate.

    `derivative` is applied to those of the field.
    """
    times = [t0, *[float(t) for t in times[1:-1]], t1]
    number = lambda rows: [[float(x) for x in row] for row in rows]
    a, C, H = number(tableau.a), number(tableau.C), number(tableau.H)
    c, d, m = ([float(x) for x in row] for row in (tableau.c, tableau.d, tableau.m))
    field = system.vector_field
    ys = [None] * len(ts)
    y = y0
    for start, end in zip(times[:-1], times[1:], strict=True):
        h = end - start
        slope = derivative(jax.jacfwd(field, argnums=0)(start, y))
        jacobian = derivative(jax.jacfwd(field, argnums=1)(start, y))
        W = jnp.eye(y.size) / (h * float(tableau.gamma)) - jacobian
        u = []
        for i in range(tableau.stages):
            stage = y + sum((w * uj for w, uj in zip(a[i], u, strict=True)), jnp.zeros_like(y))
            right = field(start + c[i] * h, stage) + h * d[i] * slope
            right = right + sum((w / h * uj for w, uj in zip(C[i], u, strict=True)), 0.0)
            u.append(jnp.linalg.solve(W, right))
        y1 = y + sum(w * ui for w, ui in zip(m, u, strict=True))
        for j in range(len(ts)):
            value = float(jax.lax.stop_gradient(ts[j]))
            low, high = (float(jax.lax.stop_gradient(x)) for x in (start, end))
            if ys[j] is None and low <= value <= high:
                theta = (ts[j] - start) / h
                inner = sum(
                    theta**r * sum(w * ui for w, ui in zip(row, u, strict=True))
                    for r, row in enumerate(H)
                )
                ys[j] = (1 - theta) * y + theta * (y1 + (1 - theta) * inner)
        y = y1
    return jnp.stack(ys)


@pytest.mark.parametrize("integrator", ROSENBROCK, **NAMED)
def test_against_jax_differentiating_the_plain_steps(integrator):
    trajectory = gs.solve(
        SYSTEM,
        Y0,
        t0=T0,
        t1=T1,
        ts=TS,
        integrator=integrator,
        controller=gs.ConstantStep(0.7),
        backend=gs.XLA(),
    )
    value, gradients = trajectory.loss_grad(loss, wrt=ALL)
    times = trajectory.mesh.times[: int(trajectory.mesh.num_steps) + 1]

    def plain(system, y0, ts, t0, t1):
        return loss(plain_map(integrator.tableau, times, system, y0, ts, t0, t1))

    args = (SYSTEM, Y0, TS, jnp.asarray(T0), jnp.asarray(T1))
    want_value, want = jax.value_and_grad(plain, argnums=range(5))(*args)
    # Rounding of some hundred operations, with coefficients of up to 30 that cancel.
    assert relative(value, want_value) < 1e-12
    assert relative(gradients[:2], want[:2]) < 1e-11
    stack = lambda parts: jnp.concatenate([jnp.atleast_1d(part) for part in parts])
    assert relative(stack(gradients[2:]), stack(want[2:])) < 1e-11


def test_the_dependence_of_the_jacobian_matters():
    """Without it a gradient would be off by far more than any tolerance used here."""
    integrator = gs.Rosenbrock23()
    trajectory = gs.solve(
        SYSTEM, Y0, t0=T0, t1=T1, ts=TS, integrator=integrator, controller=gs.ConstantStep(0.7)
    )
    _, (whole,) = trajectory.loss_grad(loss, wrt=("y0",))
    times = trajectory.mesh.times[: int(trajectory.mesh.num_steps) + 1]

    def without(y0):
        fixed = jax.lax.stop_gradient
        return loss(plain_map(integrator.tableau, times, SYSTEM, y0, TS, T0, T1, fixed))

    assert relative(jax.grad(without)(Y0), whole) > 1e-3


@pytest.mark.parametrize(
    "name",
    [
        "robertson_t1e4",
        "hires",
        "orego_t360",
        "vdp_mu1000",
        "pollu",
        "e5",
        "mapk_huang_ferrell",
    ],
)
def test_against_the_reference(name):
    """At tight tolerance the exact gradient of the discrete map is that of the solution."""
    system, y0, problem = reference_case(name)
    scale = jnp.asarray(problem["scale"])
    weights = jnp.asarray(problem["weights"])
    # The period of the Oregonator magnifies every local error.
    rtol = 1e-10 if name == "orego_t360" else 1e-8
    trajectory = gs.solve(
        system,
        y0,
        t0=problem["t0"],
        t1=problem["t1"],
        ts=jnp.array([*problem["save_times"], problem["t1"]]),
        integrator=gs.Rodas5P(),
        controller=gs.PIDController(rtol=rtol, atol=rtol * scale),
        max_steps=100_000,
    )
    want = jnp.array([*problem["y_save"], problem["y_t1"]])
    assert jnp.max(jnp.abs(trajectory.ys - want) / scale) < 1e-5
    _, (g_system, g_y0) = trajectory.loss_grad(
        lambda ys: jnp.sum(weights * ys[-1] ** 2), wrt=("system", "y0")
    )
    # Entries are weighed by the size of their input, as relative changes of it count.
    assert relative(g_system.p * system.p, jnp.asarray(problem["grad_params"]) * system.p) < 1e-5
    assert relative(g_y0 * scale, jnp.asarray(problem["grad_y0"]) * scale) < 1e-5


def test_without_time_in_the_field():
    """The slope by time is left out; the gradient is that of the same field with time in it."""

    class WithTime(Autonomous):
        def vector_field(self, t, y):
            return Autonomous.vector_field(self, t, y) + 0 * jnp.sin(t)

    options = {
        "t0": 0.0,
        "t1": 2.0,
        "ts": jnp.linspace(0.0, 2.0, 4),
        "integrator": gs.Rodas4(),
        "controller": gs.ConstantStep(0.25),
    }
    got, want = (
        gs.solve(system(5.0), Y0, **options).loss_grad(loss, wrt=("system", "y0", "t0", "t1"))
        for system in (Autonomous, WithTime)
    )
    assert relative(jax.tree.leaves(got), jax.tree.leaves(want)) < 1e-12


def test_an_ensemble_is_its_members():
    mus = jnp.array([1.0, 30.0, 300.0])
    y0s = jnp.array([[2.0, 0.0], [1.0, 0.5], [-1.5, 0.2]])
    options = {
        "t0": 0.0,
        "t1": jnp.array([3.0, -2.0, 1.0]),
        "integrator": gs.Rodas5P(),
        "controller": gs.PIDController(rtol=1e-6, atol=1e-8),
    }
    together = gs.solve(Autonomous(mus), y0s, in_axes=gs.InAxes(system=0, y0=0, t1=0), **options)
    gradient = together.loss_grad(loss, wrt=("system", "y0"))[1]
    for i in range(3):
        one = {**options, "t1": options["t1"][i]}
        alone = gs.solve(Autonomous(mus[i]), y0s[i], **one)
        assert int(alone.stats.num_steps) == int(together.stats.num_steps[i])
        assert relative(together.ys[i], alone.ys) < 1e-12
    assert jnp.all(jnp.isfinite(gradient[1]))


def test_float32():
    trajectory = gs.solve(
        Autonomous(jnp.float32(50.0)),
        jnp.array([2.0, 0.0], jnp.float32),
        t0=0.0,
        t1=1.0,
        integrator=gs.Rodas4P(),
        controller=gs.PIDController(rtol=1e-4, atol=1e-6),
    )
    want = gs.solve(
        Autonomous(50.0),
        jnp.array([2.0, 0.0]),
        t0=0.0,
        t1=1.0,
        integrator=gs.Rodas4P(),
        controller=gs.PIDController(rtol=1e-9, atol=1e-11),
    )
    assert trajectory.ys.dtype == jnp.float32
    assert relative(trajectory.ys, want.ys) < 1e-3


class Diverging(gs.ODESystem):
    """The Jacobian is not a number where the state is above one."""

    rate: jax.Array

    def vector_field(self, t, y):
        return jnp.where(y > 1, jnp.nan, self.rate * jnp.ones_like(y)) + 0 * y**2


def test_a_matrix_that_is_not_finite_rejects_the_step():
    trajectory = gs.solve(
        Diverging(jnp.array([0.1, 10.0])),
        jnp.array([[0.5], [0.5]]),
        t0=0.0,
        t1=1.0,
        integrator=gs.Rodas3(),
        controller=gs.PIDController(rtol=1e-4, atol=1e-6),
        in_axes=gs.InAxes(system=0, y0=0),
        throw=False,
    )
    assert list(trajectory.succeeded) == [True, False]
    assert relative(trajectory.ys[0], jnp.array([0.6])) < 1e-12
    assert jnp.all(jnp.isnan(trajectory.ys[1]))


class Growth(gs.ODESystem):
    k: jax.Array

    def vector_field(self, t, y):
        return self.k * y


@pytest.mark.parametrize("backend", [gs.XLA(), gs.HostCPU()], ids=lambda b: type(b).__name__)
def test_a_singular_matrix_rejects_the_step(backend):
    """`I / gamma - h J` is zero where `h` is `1 / (gamma J)`: the step is taken smaller."""
    singular = float(1 / gs.Rodas5P().tableau.gamma)
    options = {"t0": 0.0, "integrator": gs.Rodas5P(), "backend": backend, "throw": False}
    growth = Growth(1.0), jnp.array([1.0])
    alone = gs.solve(*growth, t1=singular, controller=gs.ConstantStep(singular), **options)
    assert alone.result == gs.RESULTS.nonfinite
    controller = gs.PIDController(rtol=1e-6, atol=1e-9)
    trajectory = gs.solve(*growth, t1=10.0, dt0=singular, controller=controller, **options)
    assert int(trajectory.stats.num_rejected_steps) > 0
    assert relative(trajectory.ys, jnp.exp(jnp.array([10.0]))) < 1e-4


def test_replays_in_plain_jax_repeat_their_recordings():
    """To rounding: what plain JAX contracts in a step depends on what surrounds it."""
    trajectory = gs.solve(
        SYSTEM,
        Y0,
        t0=T0,
        t1=T1,
        ts=TS,
        integrator=gs.Rodas5P(),
        controller=gs.PIDController(rtol=1e-8, atol=1e-10),
        backend=gs.XLA(),
    )
    assert relative(trajectory.replay(), trajectory.ys) < 1e-13


def test_against_diffrax():
    mine = gs.solve(
        SYSTEM,
        Y0,
        t0=T0,
        t1=T1,
        ts=TS,
        integrator=gs.Rodas4(),
        controller=gs.PIDController(rtol=1e-9, atol=1e-11),
    )
    theirs = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: SYSTEM.vector_field(t, y)),
        diffrax.Dopri8(),
        T0,
        T1,
        0.01,
        Y0,
        saveat=diffrax.SaveAt(ts=TS),
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-13),
    )
    assert relative(mine.ys, theirs.ys) < 1e-7


def adaptive(integrator, backend):
    return gs.solve(
        SYSTEM,
        Y0,
        t0=T0,
        t1=T1,
        ts=TS,
        integrator=integrator,
        controller=gs.PIDController(rtol=1e-5, atol=1e-7),
        backend=backend,
    )


@pytest.mark.parametrize("integrator", ROSENBROCK, **NAMED)
def test_kernels_against_plain_jax(integrator, fused):
    kernels, plain = adaptive(integrator, fused), adaptive(integrator, gs.XLA())
    assert kernels.backend.actual == type(fused).__name__
    assert int(kernels.stats.num_accepted_steps) == int(plain.stats.num_accepted_steps)
    assert int(kernels.stats.num_rejected_steps) == int(plain.stats.num_rejected_steps)
    assert (kernels.replay() == kernels.ys).all()
    got = kernels.replay(), kernels.loss_grad(loss, wrt=ALL)[1]
    same_mesh = under(gs.XLA(), kernels)
    want = same_mesh.replay(), same_mesh.loss_grad(loss, wrt=ALL)[1]
    assert relative(got[0], want[0]) < 1e-11
    assert relative(got[1][:2], want[1][:2]) < 1e-11
    stack = lambda parts: jnp.concatenate([jnp.atleast_1d(part) for part in parts])
    assert relative(stack(got[1][2:]), stack(want[1][2:])) < 1e-11


def test_an_ensemble_in_kernels(fused):
    """More trajectories than a pack has lanes, of different length, one of which fails."""
    mus = jnp.linspace(0.5, 60.0, 11).at[3].set(jnp.nan)
    options = {
        "t0": 0.0,
        "t1": 1.5,
        "ts": jnp.linspace(0.1, 1.5, 3),
        "integrator": gs.Rodas4(),
        "controller": gs.PIDController(rtol=1e-6, atol=1e-8),
        "in_axes": gs.InAxes(system=0),
        "throw": False,
    }
    kernels = gs.solve(Autonomous(mus), Y0, backend=fused, **options)
    same_mesh = under(gs.XLA(), kernels)
    assert list(kernels.succeeded) == [i != 3 for i in range(11)]
    finite = lambda ys: jnp.sum(jnp.where(jnp.isfinite(ys), jnp.cos(ys), 0))
    got = kernels.loss_grad(finite, wrt=("system", "y0"))[1]
    want = same_mesh.loss_grad(finite, wrt=("system", "y0"))[1]
    alive = jnp.arange(11) != 3
    assert relative(got[0].mu[alive], want[0].mu[alive]) < 1e-11
    assert relative(got[1], want[1]) < 1e-11


@pytest.mark.parametrize("integrator", [gs.Rodas5P(), gs.ROS34PW2()], **NAMED)
def test_kernels_in_single_precision(integrator, fused):
    """With steps of fixed length: an adaptive choice may turn on a last bit."""

    def run(backend, dtype):
        system = jax.tree.map(lambda leaf: leaf.astype(dtype), SYSTEM)
        trajectory = gs.solve(
            system,
            Y0.astype(dtype),
            t0=T0,
            t1=T1,
            ts=TS,
            integrator=integrator,
            controller=gs.ConstantStep(0.05),
            backend=backend,
        )
        _, (by_system, by_y0) = trajectory.loss_grad(loss, wrt=("system", "y0"))
        return trajectory.ys, jnp.concatenate([*map(jnp.ravel, jax.tree.leaves(by_system)), by_y0])

    ys, gradient = run(fused, jnp.float32)
    assert ys.dtype == gradient.dtype == jnp.float32
    exact_ys, exact_gradient = run(gs.XLA(), jnp.float64)
    plain_ys, plain_gradient = run(gs.XLA(), jnp.float32)
    # Both round in their own ways: neither may be much further from double precision.
    assert relative(ys, exact_ys) < 3 * relative(plain_ys, exact_ys) + 1e-6
    assert relative(gradient, exact_gradient) < 3 * relative(plain_gradient, exact_gradient) + 1e-6


class Ring(gs.ODESystem):
    """Reaction, diffusion and a force on a ring of points, of which neighbours move together."""

    k: jax.Array
    force: jax.Array
    size: int = eqx.field(static=True)

    def vector_field(self, t, y):
        spread = jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1)
        return 40 * spread - self.k * y**3 + self.force * jnp.cos(t + jnp.arange(float(self.size)))

    @property
    def mass_matrix(self):
        size = self.size
        return np.eye(size) + 0.2 * np.eye(size, k=1) - 0.1 * np.eye(size, k=-2)


# The stages of both are a loop that is compiled once. The matrices of the first are small enough
# for straight text, those of the second are in memory.
@pytest.mark.parametrize("size", [18, 34])
def test_large_systems_in_kernels(fused, size):
    y0 = jnp.cos(jnp.arange(float(size)))
    system = Ring(jnp.array([0.5, 3.0, 20.0]), jnp.float64(2.0), size)
    text = gs.kernel_source(
        Ring(system.k[0], system.force, size), y0, integrator=gs.GRK4T(), backend=fused
    )
    for place in ("CPU", "GPU"):
        limit = int(re.search(rf"#define GS_UNROLLED_ON_{place} (\d+)", text)[1])
        assert (size <= limit) == (size == 18)

    def solve(system, y0, t1):
        return gs.solve(
            system,
            y0,
            t0=0.1,
            t1=t1,
            ts=jnp.array([0.1, 0.27, 0.4]),
            integrator=gs.GRK4T(),
            controller=gs.PIDController(rtol=1e-5, atol=1e-7),
            in_axes=gs.InAxes(system=Ring(0, None, size)),
            max_steps=256,
            backend=fused,
        )

    kernels = solve(system, y0, 0.4)
    assert kernels.backend.actual == type(fused).__name__
    assert (kernels.replay() == kernels.ys).all()
    same_mesh = under(gs.XLA(), kernels)
    assert relative(kernels.ys, same_mesh.replay()) < 1e-11
    got = kernels.loss_grad(loss, wrt=("system", "y0", "t1"))[1]
    want = same_mesh.loss_grad(loss, wrt=("system", "y0", "t1"))[1]
    # All together: the derivative by t1 is what is left of larger numbers that cancel.
    assert relative(ravel_pytree(got)[0], ravel_pytree(want)[0]) < 1e-11
    # The recording's own checkpoints lie in the rows of its attempts.
    recorded = jax.grad(lambda *inputs: loss(solve(*inputs).ys), argnums=(0, 1, 2))(system, y0, 0.4)
    for mine, theirs in zip(jax.tree.leaves(recorded), jax.tree.leaves(got), strict=True):
        assert (mine == theirs).all()


class Star(gs.ODESystem):
    """A hub and what it exchanges with: eliminating the hub first would fill the whole matrix."""

    rates: jax.Array
    inflow: jax.Array

    def vector_field(self, t, y):
        hub, others = y[0], y[1:]
        exchange = self.rates * hub**2 - others
        return jnp.concatenate([(self.inflow - hub - jnp.sum(exchange))[None], exchange])


@pytest.mark.parametrize("size", [5, 18, 34], ids=["in registers", "unrolled", "in memory"])
def test_unknowns_out_of_order(fused, size):
    system = Star(jnp.linspace(1.0, 300.0, size - 1), jnp.float64(2.0))
    y0 = jnp.linspace(0.1, 1.0, size)
    text = gs.kernel_source(system, y0, integrator=gs.Rodas4(), backend=fused)
    # Once one other is left, the order of the two does not matter.
    order = [*range(1, size - 1), 0, size - 1]
    assert f"order[{size}] = {{{', '.join(map(str, order))}}}" in text
    trajectory = gs.solve(
        system,
        y0,
        t0=0.0,
        t1=1.0,
        integrator=gs.Rodas4(),
        controller=gs.PIDController(rtol=1e-6, atol=1e-8),
        backend=fused,
    )
    same_mesh = under(gs.XLA(), trajectory)
    assert relative(trajectory.ys, same_mesh.replay()) < 1e-11
    got, want = (
        ravel_pytree(each.loss_grad(loss, wrt=("system", "y0"))[1])[0]
        for each in (trajectory, same_mesh)
    )
    assert relative(got, want) < 1e-11
