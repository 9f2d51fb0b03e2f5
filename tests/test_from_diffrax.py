"""Solvers of Diffrax as integrators: the steps and the gradient are Diffrax's own."""

import functools as ft
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from jaxtyping import Array, Float

import gradsolve as gs
from tests.helpers import diffrax_term, relative


class Forced(gs.ODESystem):
    """A forced, damped pendulum: nonlinear, depends on `t`, parameters of two shapes."""

    stiffness: Array
    drive: Float[Array, "..."]

    def vector_field(self, t, y):
        angle, speed = y
        damping, force = self.drive
        pull = self.stiffness * jnp.sin(angle)
        return jnp.stack([speed, force * jnp.cos(2 * t) - damping * speed - pull])


class Robertson(gs.ODESystem):
    """The stiff reaction problem of Robertson (1966), with the logarithms of its rates."""

    log_rates: Float[Array, " 3"]

    def vector_field(self, t, y):
        a, b, c = y
        k1, k2, k3 = jnp.exp(self.log_rates)
        slow, fast, back = k1 * a, k2 * b**2, k3 * b * c
        return jnp.stack([back - slow, slow - back - fast, fast])


# Two lanes, backwards in time. Their meshes are uneven.
SYSTEM = Forced(jnp.array([1.2, 2.0]), jnp.array([0.3, 0.8]))
Y0 = jnp.array([[0.4, 0.1], [-0.9, 0.6]])
T0 = jnp.array([1.1, 1.0])
T1 = jnp.array([0.1, -0.4])
STEPS = 20
FRACTION = jnp.linspace(0.0, 1.0, STEPS + 1) ** 1.2
MESH = (T0[:, None] + (T1 - T0)[:, None] * FRACTION).at[:, -1].set(T1)
# Outputs at the start, inside steps, on a mesh time, and at the end.
TS = jnp.stack([T0, T0 + 0.31 * (T1 - T0), MESH[:, 9], T0 + 0.83 * (T1 - T0), T1], axis=1)
WEIGHTS = jnp.cos(jnp.arange(20.0)).reshape(2, 5, 2)
AXES = gs.InAxes(system=Forced(0, None), y0=0, t0=0, t1=0, ts=0, controller=eqx.if_array(0))

TOLERANCES = {"rtol": 1e-4, "atol": 1e-5}
CHORD = diffrax.with_stepsize_controller_tols(optx.Chord)()
# Both root finders, with a solver state (Kvaerno) and without (KenCarp, implicit Euler).
IMPLICIT = {
    "Kvaerno3": diffrax.Kvaerno3(),
    "Kvaerno5": diffrax.Kvaerno5(root_finder=CHORD),
    "KenCarp4": diffrax.KenCarp4(root_finder=CHORD),
    "ImplicitEuler": diffrax.ImplicitEuler(),
}
EXPLICIT = {
    "Tsit5": diffrax.Tsit5(),
    "ReversibleHeun": diffrax.ReversibleHeun(),
    "LeapfrogMidpoint": diffrax.LeapfrogMidpoint(),
}


def in_diffrax(name):
    """The same solver as `diffeqsolve` wants it, and its terms; `args` is the system."""
    if name in EXPLICIT:
        return EXPLICIT[name], diffrax_term()
    solver = eqx.tree_at(
        lambda s: (s.root_finder.rtol, s.root_finder.atol, s.root_finder.norm),
        IMPLICIT[name],
        (TOLERANCES["rtol"], TOLERANCES["atol"], optx.rms_norm),
    )
    if not isinstance(solver, diffrax.KenCarp4):
        return solver, diffrax_term()
    nothing = diffrax.ODETerm(lambda t, y, args: jnp.zeros_like(y))
    return solver, diffrax.MultiTerm(nothing, diffrax_term())


def loss(ys, weights):
    return jnp.sum(weights * jnp.sin(ys))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IMPLICIT, *EXPLICIT])
def test_steps_and_gradient_are_diffrax_s(name):
    """On one mesh, both take the same steps and differentiate them in the same way.

    The root finder starts from the same guess and iterates alike, so even its error is shared. All
    quantities are of order one and sums over 20 steps: the bounds are some hundred roundings.
    """
    solver, terms = in_diffrax(name)

    # Compiled for a single run, so without optimisation.
    jit = ft.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

    @jit
    @ft.partial(jax.value_and_grad, argnums=(0, 1, 2, 3, 4), has_aux=True)
    def expected(system, y0, ts, t0, t1, mesh, weights):
        sol = diffrax.diffeqsolve(
            terms,
            solver,
            t0,
            t1,
            None,
            y0,
            system,
            saveat=diffrax.SaveAt(ts=ts),
            stepsize_controller=diffrax.StepTo(mesh),
            max_steps=STEPS,
            throw=False,
        )
        return loss(sol.ys, weights), sol.ys

    @jit
    @ft.partial(jax.value_and_grad, has_aux=True)
    def got(inputs):
        system, y0, ts, t0, t1 = inputs
        tolerances = TOLERANCES if name in IMPLICIT else {}
        trajectory = gs.solve(
            system,
            y0,
            t0=t0,
            t1=t1,
            ts=ts,
            integrator=gs.FromDiffrax({**IMPLICIT, **EXPLICIT}[name], **tolerances),
            controller=gs.StepTo(MESH),
            in_axes=AXES,
            max_steps=STEPS,
        )
        return loss(trajectory.ys, WEIGHTS), trajectory.ys

    (_, ys), (g_system, g_y0, *g_times) = got((SYSTEM, Y0, TS, T0, T1))
    lanes = [
        expected(Forced(k, SYSTEM.drive), *rest)
        for k, *rest in zip(SYSTEM.stiffness, Y0, TS, T0, T1, MESH, WEIGHTS, strict=True)
    ]
    (_, want_ys), want = jax.tree_util.tree_map(lambda *x: jnp.stack(x), *lanes)
    want_system, want_y0, *want_times = want
    assert bool(jnp.all(jnp.isfinite(ys)))
    assert relative(ys, want_ys) < 1e-13
    assert relative(g_system.stiffness, want_system.stiffness) < 1e-13
    assert relative(g_system.drive, want_system.drive.sum(0)) < 1e-13
    assert relative(g_y0, want_y0) < 1e-13
    # Those of the times together: that of `t1` nearly cancels, since the last output is at `t1`.
    assert relative(jnp.column_stack(g_times), jnp.column_stack(want_times)) < 1e-13


@pytest.mark.slow
def test_adaptive_steps_are_diffrax_s_lane_by_lane():
    """Each lane of an ensemble records what Diffrax does for it alone, whatever its neighbours do.

    One tolerance per component reaches the controller and the root finder alike.
    """
    stiffness = jnp.array([1.0, 30.0, jnp.nan, 4.0])
    tolerances = {"rtol": 1e-5, "atol": np.array([1e-7, 1e-6])}
    solver = diffrax.Kvaerno3()

    def ours(stiffness, **kwargs):
        return gs.solve(
            Forced(stiffness, SYSTEM.drive),
            Y0[0],
            t0=0.0,
            t1=1.5,
            dt0=0.05,
            integrator=gs.FromDiffrax(solver),
            controller=gs.PIDController(**tolerances),
            throw=False,
            **kwargs,
        )

    @jax.jit
    def alone(stiffness):
        return diffrax.diffeqsolve(
            diffrax_term(),
            solver,
            0.0,
            1.5,
            0.05,
            Y0[0],
            Forced(stiffness, SYSTEM.drive),
            stepsize_controller=diffrax.PIDController(
                rtol=tolerances["rtol"], atol=jnp.asarray(tolerances["atol"])
            ),
            throw=False,
        )

    ensemble = ours(stiffness, in_axes=gs.InAxes(system=Forced(0, None)))
    for lane in (0, 1, 3):
        want = alone(stiffness[lane])
        stats = ensemble.stats
        assert int(stats.num_accepted_steps[lane]) == int(want.stats["num_accepted_steps"])
        assert int(stats.num_rejected_steps[lane]) == int(want.stats["num_rejected_steps"])
        # Rounding in the error estimate moves the step sizes, the states move with their error.
        assert relative(ensemble.ys[lane], want.ys[0]) < 1e-9
    assert len({int(count) for count in ensemble.stats.num_accepted_steps}) == 4
    assert bool(jnp.all(jnp.isnan(ensemble.ys[2])))
    assert list(ensemble.succeeded) == [True, True, False, True]


def test_gradient_of_an_ensemble_is_that_of_its_lanes():
    """Lanes of different length, in both directions, with a solver state and sparse checkpoints.

    The singles store every step; the ensemble re-integrates up to three, solver state included.
    """
    t0 = jnp.array([0.2, 0.3, 0.0])
    t1 = jnp.array([1.3, -0.8, 0.1])
    stiffness = jnp.array([1.0, 9.0, 25.0])
    y0 = jnp.array([[0.4, 0.1], [-0.9, 0.6], [0.2, 0.2]])

    def solve(stiffness, y0, t0, t1, **kwargs):
        return gs.solve(
            Forced(stiffness, SYSTEM.drive),
            y0,
            t0=t0,
            t1=t1,
            integrator=gs.FromDiffrax(diffrax.ReversibleHeun()),
            controller=gs.PIDController(rtol=1e-3, atol=1e-4),
            **kwargs,
        )

    def gradient(trajectory):
        return trajectory.loss_grad(lambda ys: jnp.sum(ys**2), wrt=("system", "y0", "t0", "t1"))[1]

    ensemble = solve(
        stiffness,
        y0,
        t0,
        t1,
        in_axes=gs.InAxes(system=Forced(0, None), y0=0, t0=0, t1=0),
        adjoint=gs.DiscreteAdjoint(checkpoint_every=4),
    )
    singles = [solve(*lane) for lane in zip(stiffness, y0, t0, t1, strict=True)]
    assert len({int(single.mesh.num_steps) for single in singles}) == 3
    for lane, single in enumerate(singles):
        assert relative(ensemble.ys[lane], single.ys) < 1e-12
    g_system, g_y0, g_t0, g_t1 = gradient(ensemble)
    want = [gradient(single) for single in singles]
    # Rounding only; the exponents of the step size control let it grow a little.
    assert relative(g_system.stiffness, jnp.stack([w[0].stiffness for w in want])) < 1e-11
    assert relative(g_system.drive, sum(w[0].drive for w in want)) < 1e-11
    assert relative(g_y0, jnp.stack([w[1] for w in want])) < 1e-11
    assert relative(g_t0, jnp.stack([w[2] for w in want])) < 1e-11
    assert relative(g_t1, jnp.stack([w[3] for w in want])) < 1e-11


@pytest.mark.slow
def test_robertson():
    """Stiff, adaptive, implicit: reference values of the solution and its gradient.

    The tolerances leave errors of about 1e-8.
    """
    trajectory = gs.solve(
        Robertson(jnp.log(jnp.array([0.04, 3e7, 1e4]))),
        jnp.array([1.0, 0.0, 0.0]),
        t0=0.0,
        t1=40.0,
        integrator=gs.FromDiffrax(diffrax.Kvaerno5(root_finder=CHORD)),
        controller=gs.PIDController(rtol=1e-8, atol=np.array([1e-8, 1e-12, 1e-8])),
    )
    value, gradient = trajectory.loss_grad(lambda ys: ys[0])
    assert abs(value - 0.7158270687) < 1e-7
    want = jnp.array([-0.1699023509, -0.0686506527, 0.1373080797])
    assert jnp.max(jnp.abs(gradient.log_rates - want)) < 1e-7
    assert int(trajectory.stats.num_rejected_steps) < int(trajectory.stats.num_accepted_steps) < 100


def test_tsit5_steps_are_those_of_the_native_method():
    kwargs = {"t0": 0.0, "t1": 6.0, "ts": jnp.linspace(0.0, 6.0, 7)}
    system = Forced(jnp.array(4.0), SYSTEM.drive)
    native, wrapped = [
        gs.solve(system, Y0[0], integrator=integrator, **kwargs)
        for integrator in (gs.Tsit5(), gs.FromDiffrax(diffrax.Tsit5()))
    ]
    assert int(wrapped.stats.num_accepted_steps) == int(native.stats.num_accepted_steps)
    assert int(wrapped.stats.num_rejected_steps) == int(native.stats.num_rejected_steps)
    # The two write the step and its interpolation differently: rounding, by way of the step sizes.
    assert relative(wrapped.ys, native.ys) < 1e-9
    assert relative(wrapped.replay(), wrapped.ys) == 0


def test_jit_vmap_and_grad_compose():
    """`vmap(grad(solve))` under `jit` is the gradient of every member alone."""
    integrator = gs.FromDiffrax(diffrax.LeapfrogMidpoint())

    def final(stiffness, y0):
        trajectory = gs.solve(
            Forced(stiffness, SYSTEM.drive),
            y0,
            t0=0.0,
            t1=1.0,
            integrator=integrator,
            controller=gs.ConstantStep(0.1),
            max_steps=10,
        )
        return jnp.sum(trajectory.ys)

    gradient = jax.jit(jax.grad(final, argnums=(0, 1)))
    got = jax.jit(jax.vmap(jax.grad(final, argnums=(0, 1))))(SYSTEM.stiffness, Y0)
    want = [gradient(*lane) for lane in zip(SYSTEM.stiffness, Y0, strict=True)]
    assert relative(got, jax.tree_util.tree_map(lambda *x: jnp.stack(x), *want)) < 1e-13


def test_unsolved_equations_fail():
    """A step that the root finder cannot solve is never taken for a solution."""

    class Exploding(gs.ODESystem):
        rate: Array

        def vector_field(self, t, y):
            return self.rate * y**2

    kwargs = {
        "t0": 0.0,
        "t1": 1.0,
        "integrator": gs.FromDiffrax(diffrax.ImplicitEuler(), **TOLERANCES),
        "controller": gs.ConstantStep(0.5),
    }
    y0 = jnp.array([1.0], jnp.float32)
    # k = h (y + k)^2 with y = 1 and h = 1/2 has a real solution only for rates up to 1/2.
    rate = jnp.array(5.0, jnp.float32)
    failed = gs.solve(Exploding(rate), y0, throw=False, **kwargs)
    assert failed.result == gs.RESULTS.nonfinite
    with pytest.raises(gs.SolveError, match="no smaller step"):
        gs.solve(Exploding(rate), y0, **kwargs)
    solved = gs.solve(Exploding(rate / 50), y0, **kwargs)
    assert bool(solved.succeeded)
    assert solved.ys.dtype == jnp.float32
    # y1 = (1 - sqrt(1 - 4 h r y)) / (2 h r) twice, to the tolerance of the root finder.
    y1 = 1.0
    for _ in range(2):
        y1 = (1 - np.sqrt(1 - 4 * 0.05 * y1)) / (2 * 0.05)
    assert abs(float(solved.ys[0]) - y1) < 1e-4
    assert bool(jnp.isnan(solved.replay(Exploding(rate))[0]))


def test_wrapped_solvers():
    """`HalfSolver` gives an error estimate to a method that has none."""
    assert gs.FromDiffrax(diffrax.Euler()).error_order is None
    half = gs.FromDiffrax(diffrax.HalfSolver(diffrax.Euler()))
    assert (half.order, half.error_order) == (1, 2)
    trajectory = gs.solve(
        Forced(jnp.array(4.0), SYSTEM.drive),
        Y0[0],
        t0=0.0,
        t1=1.0,
        integrator=half,
        controller=gs.PIDController(rtol=1e-3, atol=1e-4),
    )
    exact = gs.solve(Forced(jnp.array(4.0), SYSTEM.drive), Y0[0], t0=0.0, t1=1.0)
    # A first-order method: some times its local tolerance.
    assert relative(trajectory.ys, exact.ys) < 5e-2


def test_tolerances_of_the_root_finder():
    def of(solver, controller, per_lane=False):
        found = solver.with_tolerances(controller, per_lane)
        return found.rtol, found.atol

    kvaerno = gs.FromDiffrax(diffrax.Kvaerno5())
    scalar = gs.PIDController(rtol=jnp.array(1e-3), atol=jnp.array(1e-6))
    assert of(kvaerno, scalar) == (1e-3, 1e-6)
    components = gs.PIDController(rtol=jnp.array(1e-3), atol=jnp.array([1e-6, 1e-9]))
    assert of(kvaerno, components) == (1e-3, (1e-6, 1e-9))
    lanes = gs.PIDController(rtol=jnp.array([1e-3, 1e-4]), atol=jnp.array([1e-6, 1e-5]))
    assert of(kvaerno, lanes, per_lane=True) == (1e-4, 1e-6)
    assert of(gs.FromDiffrax(diffrax.Kvaerno5(), rtol=1e-9), scalar) == (1e-9, 1e-6)
    assert of(gs.FromDiffrax(diffrax.HalfSolver(diffrax.Kvaerno5())), scalar) == (1e-3, 1e-6)
    # Nothing to fill in: explicit, or with tolerances of its own.
    scalar_array: Any = jnp.array(1e-7)
    own = diffrax.Kvaerno5(root_finder=diffrax.VeryChord(rtol=1e-7, atol=scalar_array))
    for solver in (diffrax.Tsit5(), own):
        assert of(gs.FromDiffrax(solver), gs.ConstantStep(0.1)) == (None, None)


def test_refusals():
    def refuses(match, call):
        with pytest.raises(ValueError, match=match):
            call()

    def solve(solver, controller):
        system = Forced(jnp.array(1.0), SYSTEM.drive)
        return gs.solve(
            system, Y0[0], t0=0.0, t1=1.0, integrator=gs.FromDiffrax(solver), controller=controller
        )

    def traced_tolerance(rtol):
        return solve(diffrax.Kvaerno3(), gs.PIDController(rtol=rtol, atol=1e-6)).ys

    refuses("has one vector field", lambda: gs.FromDiffrax(diffrax.SemiImplicitEuler()))
    for solver in (diffrax.EulerHeun(), diffrax.SRA1(), diffrax.ALIGN(0.1)):
        refuses("stochastic", lambda solver=solver: gs.FromDiffrax(solver))
    refuses("needs a solver of Diffrax", lambda: gs.FromDiffrax(diffrax.Tsit5))
    refuses("no use for it", lambda: gs.FromDiffrax(diffrax.Tsit5(), rtol=1e-3))
    refuses("must be positive", lambda: gs.FromDiffrax(diffrax.Kvaerno3(), rtol=0.0))
    refuses("must be numbers", lambda: gs.FromDiffrax(diffrax.Kvaerno3(), rtol=jnp.ones(2)))
    array: Any = jnp.ones(2)
    arrays = diffrax.VeryChord(rtol=array, atol=1e-3)
    refuses("must be numbers", lambda: gs.FromDiffrax(diffrax.Kvaerno3(root_finder=arrays)))
    refuses("has no tolerances", lambda: solve(diffrax.Kvaerno3(), gs.ConstantStep(0.1)))
    refuses("no error estimate", lambda: solve(diffrax.Euler(), gs.PIDController(1e-3, 1e-6)))
    refuses("is traced", lambda: jax.eval_shape(traced_tolerance, 1e-3))
