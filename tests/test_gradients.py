"""The gradient is the exact derivative of the discrete map along the recorded mesh.

"The derivative of the discrete map `(system, y0, ts, t0, t1) -> ys` that takes exactly the recorded
steps; interior mesh times are constants, the first and last move with t0 and t1."

It is compared with JAX differentiating Diffrax on the same mesh, with JAX differentiating a plain
loop over the same steps, with finite differences of the replay, with the transpose identity, and
with reference values.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs
from tests.helpers import (
    EXPLICIT,
    NON_STIFF,
    SHARED_WITH_DIFFRAX,
    LotkaVolterra,
    diffrax_term,
    reference_case,
    relative,
)


class Driven(gs.ODESystem):
    """A driven, damped pendulum: depends on time in every way a field can."""

    p: jax.Array

    def vector_field(self, t, y):
        force = self.p[2] * jnp.cos(self.p[3] * t)
        return jnp.stack(
            [y[1], force - self.p[0] * y[1] - self.p[1] * jnp.sin(y[0] * (1 + t / 10))]
        )


SYSTEM = Driven(jnp.array([0.2, 1.5, 0.8, 1.3]))
Y0 = jnp.array([0.4, -0.3])
T0, T1 = 0.3, 3.1
# Inside steps, at both ends of the window and (below) on a mesh time.
TS = jnp.array([T0, 0.7, 0.9, 2.2, T1])
WEIGHTS = jnp.array([[0.3, -1.0], [1.0, 0.4], [-0.7, 0.9], [0.5, 1.1], [1.3, -0.2]])
ALL = ("system", "y0", "ts", "t0", "t1")
KINDS = ("system", "y0", "ts", "t0")


def loss(ys):
    return jnp.sum(WEIGHTS * jnp.sin(ys))


def record(integrator, ts=TS, **kwargs):
    if integrator.error_order is None:
        controller = gs.ConstantStep(0.05)
    else:
        controller = gs.PIDController(rtol=1e-4, atol=1e-6)
    options = {"t0": T0, "t1": T1, "ts": ts, "controller": controller, **kwargs}
    return gs.solve(SYSTEM, Y0, integrator=integrator, **options)


def steps_of(trajectory):
    return trajectory.mesh.times[: int(trajectory.mesh.num_steps) + 1]


def plain_map(tableau, times, system, y0, ts, t0, t1):
    """The discrete map in the plainest JAX: a Python loop over steps, for JAX to differentiate."""
    times = [t0, *[float(t) for t in times[1:-1]], t1]
    k_of = lambda t, y: system.vector_field(t, y)
    a = [[float(x) for x in row] for row in (*tableau.a, *tableau.dense.extra_a)]
    c = [float(x) for x in (*tableau.c, *tableau.dense.extra_c)]
    b = [float(x) for x in tableau.b]
    dense = [[float(x) for x in row] for row in tableau.dense.coefficients]
    y = y0
    ys = [None] * len(ts)
    for start, end in zip(times[:-1], times[1:], strict=True):
        h = end - start
        k = []
        for row, node in zip(a, c, strict=True):
            stage = y + h * sum((w * kj for w, kj in zip(row, k, strict=True)), jnp.zeros_like(y))
            k.append(k_of(start + node * h, stage))
        y1 = y + h * sum(w * kj for w, kj in zip(b, k, strict=False))
        for m in range(len(ts)):
            value = float(jax.lax.stop_gradient(ts[m]))
            low, high = (float(jax.lax.stop_gradient(x)) for x in (start, end))
            if ys[m] is None and low <= value <= high:
                theta = (ts[m] - start) / h
                powers = [theta ** (p + 1) for p in range(tableau.dense.degree)]
                weights = [sum(w * q for w, q in zip(row, powers, strict=True)) for row in dense]
                ys[m] = y + h * sum(w * kj for w, kj in zip(weights, k, strict=True))
        y = y1
    return jnp.stack(ys), y


@pytest.mark.parametrize("integrator", EXPLICIT, ids=lambda i: type(i).__name__)
def test_against_jax_differentiating_the_plain_steps(integrator):
    trajectory = record(integrator, controller=gs.ConstantStep(0.7))
    value, gradients = trajectory.loss_grad(loss, wrt=ALL)
    tableau, times = integrator.tableau, steps_of(trajectory)

    def plain(system, y0, ts, t0, t1):
        return loss(plain_map(tableau, times, system, y0, ts, t0, t1)[0])

    # Differentiated op by op: compiling a loop written out is far slower.
    args = (SYSTEM, Y0, TS, jnp.asarray(T0), jnp.asarray(T1))
    want_value, want = jax.value_and_grad(plain, argnums=range(5))(*args)
    # Rounding of some hundred operations on numbers as large as the interpolant's coefficients
    # (up to 1e4 for Vern9), several of which cancel. Dopri8's published interpolant misses its end
    # state by 1e-12 and its slope by 3e-11, and the output at t1 is the end state here.
    largest = max(abs(float(x)) for row in tableau.dense.coefficients for x in row)
    tolerance = max(2e-12, 16 * jnp.finfo(float).eps * largest)
    if isinstance(integrator, gs.Dopri8):
        tolerance = 1e-10
    assert relative(value, want_value) < tolerance
    assert relative(gradients[:2], want[:2]) < tolerance
    # The last step moves with t1 while the outputs stay: its derivative is a difference of numbers
    # of the size of the others, so the three kinds of time are compared on one scale.
    stack = lambda parts: jnp.concatenate([jnp.atleast_1d(part) for part in parts])
    assert relative(stack(gradients[2:]), stack(want[2:])) < tolerance


@pytest.mark.parametrize("pair", SHARED_WITH_DIFFRAX, ids=lambda pair: type(pair[0]).__name__)
def test_against_diffrax_on_the_same_mesh(pair):
    integrator, solver = pair
    trajectory = record(integrator, ts=None)
    end_loss = lambda y: jnp.sum(jnp.sin(y))
    value, gradients = trajectory.loss_grad(end_loss, wrt=("system", "y0"))
    times = steps_of(trajectory)

    def theirs(system, y0):
        solution = diffrax.diffeqsolve(
            diffrax_term(),
            solver,
            T0,
            T1,
            None,
            y0,
            args=system,
            stepsize_controller=diffrax.StepTo(times),
            adjoint=diffrax.RecursiveCheckpointAdjoint(),
            max_steps=len(times) + 1,
        )
        return end_loss(solution.ys[0])

    want_value, want = jax.jit(jax.value_and_grad(theirs, argnums=(0, 1)))(SYSTEM, Y0)
    assert relative(value, want_value) < 1e-12
    assert relative(gradients, want) < 1e-10


def test_dense_output_and_its_gradient_against_diffrax():
    """Tsit5 has the same interpolant in both; gradient through outputs inside the steps."""
    trajectory = record(gs.Tsit5())
    _, gradients = trajectory.loss_grad(loss, wrt=("system", "y0", "ts"))
    times = steps_of(trajectory)

    def theirs(system, y0, ts):
        solution = diffrax.diffeqsolve(
            diffrax_term(),
            diffrax.Tsit5(),
            T0,
            T1,
            None,
            y0,
            args=system,
            saveat=diffrax.SaveAt(ts=ts),
            stepsize_controller=diffrax.StepTo(times),
            max_steps=len(times) + 1,
        )
        return solution.ys

    assert relative(trajectory.ys, theirs(SYSTEM, Y0, TS)) < 1e-13
    want = jax.jit(jax.grad(lambda *args: loss(theirs(*args)), argnums=(0, 1, 2)))(SYSTEM, Y0, TS)
    assert relative(gradients[:2], want[:2]) < 1e-10
    # At t0 Diffrax takes the output from the step before, which does not exist.
    assert relative(gradients[2][1:], want[2][1:]) < 1e-10


@pytest.mark.parametrize(
    "integrator", [gs.Bosh3(), gs.Tsit5(), gs.Vern7()], ids=lambda i: type(i).__name__
)
def test_finite_differences_of_the_replay(integrator):
    """Central differences of the frozen-mesh map, for every kind of input."""
    trajectory = record(integrator)
    # Inside the window: at its ends an output time can only move one way.
    inner = jnp.array([0.5, 0.9, 1.7, 2.2, 2.9])
    trajectory = record(integrator, ts=inner)
    _, gradients = trajectory.loss_grad(loss, wrt=ALL)
    values = {"system": SYSTEM, "y0": Y0, "ts": inner, "t0": jnp.asarray(T0), "t1": jnp.asarray(T1)}
    h = 1e-5  # truncation h^2, rounding eps / h: both near 1e-10
    for name, gradient in zip(ALL, gradients, strict=True):
        flat, unravel = jax.flatten_util.ravel_pytree(values[name])
        flat_gradient, _ = jax.flatten_util.ravel_pytree(gradient)
        for i in range(flat.size):
            step = jnp.zeros_like(flat).at[i].set(h)
            up = loss(trajectory.replay(**{name: unravel(flat + step)}))
            down = loss(trajectory.replay(**{name: unravel(flat - step)}))
            assert abs((up - down) / (2 * h) - flat_gradient[i]) < 1e-8, (name, i)


def test_transpose_identity():
    """`<u, J v> = <J^T u, v>`, with J v by JAX's forward mode through the plain loop."""
    trajectory = record(gs.Tsit5(), controller=gs.ConstantStep(0.7))
    key = jax.random.split(jax.random.key(0), 3)
    u = jax.random.normal(key[0], (5, 2))
    v_y0 = jax.random.normal(key[1], (2,))
    v_p = jax.random.normal(key[2], (4,))
    _, pull = jax.vjp(lambda p, y0: trajectory.replay(Driven(p), y0), SYSTEM.p, Y0)
    ct_p, ct_y0 = pull(u)
    times = steps_of(trajectory)

    def plain(p, y0):
        args = (TS, jnp.asarray(T0), jnp.asarray(T1))
        return plain_map(gs.Tsit5().tableau, times, Driven(p), y0, *args)[0]

    _, tangent = jax.jvp(plain, (SYSTEM.p, Y0), (v_p, v_y0))
    left = jnp.sum(u * tangent)
    right = jnp.sum(ct_p * v_p) + jnp.sum(ct_y0 * v_y0)
    assert abs(left - right) < 1e-13 * abs(left)


def test_an_output_on_a_mesh_time_is_the_end_state_of_the_step():
    first = record(gs.Tsit5())
    on_mesh = first.mesh.times[2]
    trajectory = first.replay(ts=on_mesh[None])
    checked = gs.solve(SYSTEM, Y0, t0=T0, t1=on_mesh, controller=gs.StepTo(first.mesh.times[:3]))
    assert (trajectory[0] == checked.ys).all()
    # Its derivative with respect to the state is that of the end state, too.
    got = jax.jacrev(lambda y0: first.replay(y0=y0, ts=on_mesh[None])[0])(Y0)
    want = jax.jacrev(lambda y0: checked.replay(y0=y0))(Y0)
    assert relative(got, want) < 1e-14


# Dopri8 has half the stages to compile, but errors add up over more steps.
WITH_VERN9 = ("lotka_volterra", "pk_two_compartment")


@pytest.mark.parametrize("name", NON_STIFF)
def test_against_the_reference_gradients(name):
    """At tight tolerance the exact gradient of the discrete map is that of the solution."""
    system, y0, problem = reference_case(name)
    scale = jnp.asarray(problem["scale"])
    weights = jnp.asarray(problem["weights"])
    integrator, rtol = (gs.Vern9(), 1e-12) if name in WITH_VERN9 else (gs.Dopri8(), 1e-13)
    # arenstorf amplifies the errors of its inputs two million times: what limits its gradient is
    # rounding, which in fused kernels does not depend on how XLA arranges a sum.
    backend = gs.HostCPU() if name == "arenstorf" else gs.XLA()
    trajectory = gs.solve(
        system,
        y0,
        t0=problem["t0"],
        t1=problem["t1"],
        ts=jnp.array([*problem["save_times"], problem["t1"]]),
        integrator=integrator,
        controller=gs.PIDController(rtol=rtol, atol=rtol * scale),
        max_steps=20_000,
        backend=backend,
    )
    want = jnp.array([*problem["y_save"], problem["y_t1"]])
    # The condition of the problem in double precision, with a margin for accumulated local errors.
    condition = 1e-11 * max(1.0, problem["sensitivity"])
    assert jnp.max(jnp.abs(trajectory.ys - want) / scale) < condition
    value, (g_system, g_y0) = trajectory.loss_grad(
        lambda ys: jnp.sum(weights * ys[-1] ** 2), wrt=("system", "y0")
    )
    # Entries are weighed by the size of their input, as relative changes of it count.
    assert relative(g_system.p * system.p, jnp.asarray(problem["grad_params"]) * system.p) < 1e-6
    assert relative(g_y0 * scale, jnp.asarray(problem["grad_y0"]) * scale) < 1e-6
    assert abs(value - problem["loss"]) < 1e-6 * problem["loss"]


@pytest.mark.parametrize("every", [2, 3, 8, 1000])
def test_the_gradient_does_not_depend_on_the_checkpoints(every):
    reference = record(gs.Tsit5())
    sparse = record(gs.Tsit5(), adjoint=gs.DiscreteAdjoint(checkpoint_every=every))
    for a, b in zip(
        reference.loss_grad(loss, wrt=KINDS)[1], sparse.loss_grad(loss, wrt=KINDS)[1], strict=True
    ):
        assert relative(a, b) < 1e-13


def test_closed_over_arrays_are_differentiated_not_dropped():
    """An array that the field closes over is a constant of the model, but never a silent zero."""

    def end(rate):
        class Closure(gs.ODESystem):
            def vector_field(self, t, y):
                return -rate * y

        return gs.solve(Closure(), jnp.array([1.0, 2.0]), t0=0.0, t1=1.0).ys

    got = jax.jacrev(end)(jnp.asarray(0.7))
    assert relative(got, -jnp.exp(-0.7) * jnp.array([1.0, 2.0])) < 1e-5


def test_a_replay_of_a_traced_solve_is_differentiable():
    """Inside a gradient the recorded mesh is a constant, as the definition says."""

    def through(method):
        def value(p):
            trajectory = gs.solve(Driven(p), Y0, t0=T0, t1=T1, max_steps=64)
            return jnp.sum(getattr(trajectory, method)(*((1.7,) if method == "evaluate" else ())))

        return jax.grad(value)(SYSTEM.p)

    trajectory = gs.solve(SYSTEM, Y0, t0=T0, t1=T1)
    _, gradient = trajectory.loss_grad(jnp.sum)
    # The derivative reaches the parameters once: the mesh of the inner solve carries none.
    assert relative(through("replay"), gradient.p) < 1e-12
    at = jax.grad(lambda p: jnp.sum(trajectory.replay(Driven(p), ts=jnp.array([1.7]))))(SYSTEM.p)
    assert relative(through("evaluate"), at) < 1e-12


def test_second_derivatives_are_refused():
    def value(p):
        return jnp.sum(gs.solve(Driven(p), Y0, t0=T0, t1=T1, max_steps=64).ys)

    with pytest.raises(Exception, match="Second derivatives .* not supported"):
        jax.grad(lambda p: jnp.sum(jax.grad(value)(p)))(SYSTEM.p)
    with pytest.raises(Exception, match="Second derivatives .* not supported"):
        jax.hessian(value)(SYSTEM.p)


def test_what_is_not_differentiable_says_so():
    def through_tolerance(rtol):
        controller = gs.PIDController(rtol=rtol, atol=1e-9)
        return jnp.sum(gs.solve(SYSTEM, Y0, t0=T0, t1=T1, controller=controller).ys)

    with pytest.raises(Exception, match="controller"):
        jax.grad(through_tolerance)(1e-5)

    def through_first_step(dt0):
        return jnp.sum(gs.solve(SYSTEM, Y0, t0=T0, t1=T1, dt0=dt0).ys)

    with pytest.raises(Exception, match="dt0"):
        jax.grad(through_first_step)(1e-2)

    def through_mesh(p):
        return jnp.sum(gs.solve(Driven(p), Y0, t0=T0, t1=T1).mesh.times)

    with pytest.raises(Exception, match="mesh.times"):
        jax.grad(through_mesh)(SYSTEM.p)


def test_only_what_is_asked_is_computed():
    """Without a perturbed parameter the backward pass contains no parameter cotangents."""
    trajectory = gs.solve(LotkaVolterra(0.5, 0.1, 0.4, 0.1), jnp.array([5.0, 2.0]), t0=0.0, t1=1.0)
    sizes = []
    for wrt in ("y0", "system"):
        value, gradient = trajectory.loss_grad(jnp.sum, wrt=wrt)
        assert np.isfinite(jax.tree_util.tree_leaves(gradient)[0]).all()
        replayed_sum = lambda y0: jnp.sum(trajectory.replay(y0=y0))
        sizes.append(len(str(jax.make_jaxpr(jax.grad(replayed_sum))(trajectory.y0))))
    with_system = jax.make_jaxpr(
        lambda s: eqx.filter_grad(lambda s: jnp.sum(trajectory.replay(s)))(s)
    )(trajectory.system)
    assert len(str(with_system)) > sizes[0]
