"""Mass matrices: equivalent systems, differential-algebraic systems, consistent initial states."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs
from tests.helpers import (
    ROSENBROCK,
    SAME_MESH,
    disagreement,
    relative,
    same_bits,
    same_counts,
)

ALL = ("system", "y0", "ts", "t0", "t1")
MASS = np.array([[2.0, -0.5, 0.0], [0.3, 1.0, 0.2], [0.0, 0.4, -1.5]])
TS = jnp.array([0.3, 0.9, 1.7, 2.0])
Y0 = jnp.array([1.2, 0.4, -0.3])


def flow(mu, t, y):
    x, v, w = y
    return jnp.stack([v + 0.2 * t * x, mu * (1 - x**2) * v - x * jnp.cos(t), w * x - mu * v])


class WithMass(gs.ODESystem):
    """Every entry of the matrix counts, and it is not symmetric."""

    mu: Array

    @property
    def mass_matrix(self):
        return MASS

    def vector_field(self, t, y):
        return flow(self.mu, t, y)


class Inverted(gs.ODESystem):
    """The same equations, solved for the derivative."""

    mu: Array

    def vector_field(self, t, y):
        return jnp.asarray(np.linalg.inv(MASS)) @ flow(self.mu, t, y)


def loss(ys):
    return jnp.sum(jnp.cos(ys) * jnp.arange(1.0, ys.size + 1).reshape(ys.shape))


@pytest.mark.parametrize("integrator", ROSENBROCK, ids=lambda method: type(method).__name__)
def test_a_step_is_that_of_the_system_solved_for_the_derivative(integrator):
    """Rosenbrock methods are invariant under multiplication of the equations by a matrix."""
    options = {"t0": 0.3, "t1": 2.0, "ts": TS, "controller": gs.ConstantStep(0.425)}
    both = [
        gs.solve(system, Y0, integrator=integrator, backend=gs.XLA(), **options)
        for system in (WithMass(1.3), Inverted(1.3))
    ]
    got, want = (trajectory.loss_grad(loss, wrt=ALL) for trajectory in both)
    # Rounding of some hundred operations, with coefficients of up to 30 that cancel.
    assert relative(both[0].ys, both[1].ys) < 1e-12
    assert relative(got[1][0].mu, want[1][0].mu) < 1e-11
    assert relative(got[1][1], want[1][1]) < 1e-11
    times = lambda gradients: jnp.concatenate([jnp.atleast_1d(part) for part in gradients[2:]])
    assert relative(times(got[1]), times(want[1])) < 1e-11


@pytest.mark.parametrize("t1", [2.0, -1.0], ids=["forwards", "backwards"])
def test_kernels_with_a_full_matrix(fused, t1):
    options = {"t0": 0.3, "t1": t1, "ts": jnp.linspace(0.3, t1, 4), "integrator": gs.Rodas4P()}
    options |= {"controller": gs.PIDController(rtol=1e-5, atol=1e-7)}
    trajectory = gs.solve(WithMass(1.3), Y0, backend=fused, **options)
    assert same_counts(trajectory, gs.solve(WithMass(1.3), Y0, backend=gs.XLA(), **options))
    assert same_bits(trajectory.replay(), trajectory.ys)
    for what, value in disagreement(trajectory).items():
        assert value < SAME_MESH, what


# ---- Differential-algebraic systems -------------------------------------------------------------


class Robertson(gs.ODESystem):
    """The third concentration by conservation of mass; `closed=False` by its own equation."""

    log_k: Array
    closed: bool = eqx.field(static=True, default=True)

    @property
    def mass_matrix(self):
        return np.diag([1.0, 1.0, 0.0]) if self.closed else None

    def vector_field(self, t, y):
        k1, k2, k3 = jnp.exp(self.log_k)
        slow, fast, back = k1 * y[0], k2 * y[1] ** 2, k3 * y[1] * y[2]
        third = jnp.sum(y) - 1 if self.closed else fast
        return jnp.stack([back - slow, slow - back - fast, third])


LOG_K = jnp.log(jnp.array([0.04, 3e7, 1e4]))
START = jnp.array([1.0, 0.0, 0.0])
TIGHT = gs.PIDController(rtol=1e-8, atol=jnp.array([1e-10, 1e-14, 1e-10]))
WINDOW = {"t0": 0.0, "t1": 4000.0, "ts": jnp.array([0.4, 40.0, 4000.0]), "controller": TIGHT}


def test_robertson_with_an_algebraic_equation(fused):
    trajectory = gs.solve(Robertson(LOG_K), START, backend=fused, **WINDOW)
    assert isinstance(trajectory.integrator, gs.Rodas5P)
    want = gs.solve(Robertson(LOG_K, closed=False), START, backend=fused, **WINDOW)
    assert np.all(np.abs(trajectory.ys - want.ys) < 1e-7 * np.abs(want.ys))
    assert np.all(np.abs(jnp.sum(trajectory.ys, axis=1) - 1) < 1e-12)
    for component in range(3):
        pick = lambda ys, component=component: ys[1, component]
        (_, got), (_, other) = (each.loss_grad(pick) for each in (trajectory, want))
        assert relative(got.log_k, other.log_k) < 1e-6

    assert same_bits(trajectory.replay(), trajectory.ys)
    plain = gs.solve(Robertson(LOG_K), START, backend=gs.XLA(), **WINDOW)
    assert same_counts(trajectory, plain)
    for what, value in disagreement(trajectory).items():
        # The fast component is 1e-5 of the others: its rounding is that of the whole step.
        assert value < 1e3 * SAME_MESH, what


@pytest.mark.parametrize("backend", [gs.XLA(), gs.HostCPU()], ids=lambda b: type(b).__name__)
def test_trajectories_of_different_lengths(backend):
    """What pads the mesh of a short trajectory must have a solution, and adds nothing."""
    rates = LOG_K + jnp.log(jnp.array([[1.0], [3.0], [0.1]]))
    in_axes = gs.InAxes(system=eqx.if_array(0), t1=0)
    ends = jnp.array([1.0, 400.0, 0.01])
    options = {"t0": 0.0, "controller": TIGHT, "backend": backend}
    together = gs.solve(Robertson(rates), START, t1=ends, in_axes=in_axes, **options)
    _, gradient = together.loss_grad(lambda ys: jnp.sum(ys[:, 0]))
    assert len(set(together.mesh.num_steps.tolist())) == 3
    for i, end in enumerate(ends):
        alone = gs.solve(Robertson(rates[i]), START, t1=end, **options)
        _, want = alone.loss_grad(lambda ys: ys[0])
        assert relative(together.ys[i], alone.ys) < 1e-9
        assert relative(gradient.log_k[i], want.log_k) < 1e-7


@pytest.mark.parametrize("backend", [gs.XLA(), gs.HostCPU()], ids=lambda b: type(b).__name__)
def test_an_empty_window(backend):
    options = {"t0": 0.3, "backend": backend}
    axes = gs.InAxes(t1=0)
    together = gs.solve(Robertson(LOG_K), START, t1=jnp.array([0.3, 2.0]), in_axes=axes, **options)
    assert same_bits(together.ys[0], START)
    assert bool(together.succeeded.all())
    state = gs.consistent_state(Rotated(2.0), jnp.array([0.5, 0.3]), t0=0.3)
    assert same_bits(gs.solve(Rotated(2.0), state, t1=0.3, **options).ys, state)
    # With a regular matrix the derivative by the end is that of the equations.
    trajectory = gs.solve(WithMass(1.3), Y0, t1=0.3, **options)
    assert same_bits(trajectory.ys, Y0)
    _, (by_y0, by_t0, by_t1) = trajectory.loss_grad(loss, wrt=("y0", "t0", "t1"))
    slope = jax.grad(loss)(Y0) @ Inverted(1.3).vector_field(0.3, Y0)
    assert relative(by_y0, jax.grad(loss)(Y0)) < 1e-14
    assert relative(by_t1, slope) < 1e-12
    assert relative(by_t0, -slope) < 1e-12


def test_a_field_that_closes_over_traced_values():
    def end(log_k):
        class Closure(gs.ODESystem):
            @property
            def mass_matrix(self):
                return np.diag([1.0, 1.0, 0.0])

            def vector_field(self, t, y):
                return Robertson(log_k).vector_field(t, y)

        return gs.solve(Closure(), START, t0=0.0, t1=1.0, controller=TIGHT, max_steps=64).ys[0]

    want = jax.grad(
        lambda k: gs.solve(Robertson(k), START, t0=0.0, t1=1.0, controller=TIGHT, max_steps=64).ys[
            0
        ]
    )(LOG_K)
    assert relative(jax.grad(end)(LOG_K), want) < 1e-12


def test_small_entries_are_not_zeros():
    """A regular matrix in bad units: nothing about it is algebraic."""

    class Stiff(gs.ODESystem):
        @property
        def mass_matrix(self):
            return np.diag([1.0, 1e-7])

        def vector_field(self, t, y):
            return jnp.stack([y[1], -y[1] - y[0]])

    y0 = jnp.array([1.0, 0.5], jnp.float32)
    assert bool(gs.solve(Stiff(), y0, t0=0.0, t1=0.1).succeeded)


def test_a_matrix_that_is_a_field():
    class Wrong(gs.ODESystem):
        mass_matrix: Any = eqx.field(static=True)

        def vector_field(self, t, y):
            return -y

    with pytest.raises(TypeError, match=r"`Wrong.mass_matrix` cannot be a field .* property"):
        Wrong(np.eye(2))


def test_single_precision():
    controller = gs.PIDController(rtol=1e-4, atol=jnp.array([1e-5, 1e-9, 1e-5], jnp.float32))
    system = Robertson(LOG_K.astype(jnp.float32))
    trajectory = gs.solve(system, START.astype(jnp.float32), t0=0.0, t1=40.0, controller=controller)
    # Ten times the tolerance; the value is that of the test above.
    assert trajectory.ys.dtype == jnp.float32
    assert abs(float(trajectory.ys[0]) - 0.7158270687) < 1e-3
    _, gradient = trajectory.loss_grad(lambda y: y[0])
    assert abs(float(gradient.log_k[0]) + 0.16990235) < 1e-3


class AkzoNobel(gs.ODESystem):
    """Two reacting species and carbon dioxide from the air; the last equation is an equilibrium.

    *Test Set for Initial Value Problem Solvers*, release 2.4, problem "Chemical Akzo Nobel".
    """

    k: Array

    @property
    def mass_matrix(self):
        return np.diag([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])

    def vector_field(self, t, y):
        k1, k2, k3, k4 = self.k
        r1 = k1 * y[0] ** 4 * jnp.sqrt(y[1])
        r2 = k2 * y[2] * y[3]
        r3 = k2 / 34.4 * y[0] * y[4]
        r4 = k3 * y[0] * y[3] ** 2
        r5 = k4 * y[5] ** 2 * jnp.sqrt(y[1])
        inflow = 3.3 * (0.9 / 737 - y[1])
        return jnp.stack(
            [
                -2 * r1 + r2 - r3 - r4,
                -r1 / 2 - r4 - r5 / 2 + inflow,
                r1 - r2 + r3,
                -r2 + r3 - 2 * r4,
                r2 - r3 + r5,
                115.83 * y[0] * y[3] - y[5],
            ]
        )


AKZO_NOBEL_END = [
    0.1150794920661702,
    0.1203831471567715e-2,
    0.1611562887407974,
    0.3656156421249283e-3,
    0.1708010885264404e-1,
    0.4873531310307455e-2,
]


def test_chemical_akzo_nobel(fused):
    system = AkzoNobel(jnp.array([18.7, 0.58, 0.09, 0.42]))
    guess = jnp.array([0.444, 0.00123, 0.0, 0.007, 0.0, 0.0])
    y0 = gs.consistent_state(system, guess, t0=0.0)
    assert relative(y0[5], 115.83 * 0.444 * 0.007) < 1e-12
    options = {"t0": 0.0, "t1": 180.0, "integrator": gs.Rodas5P(), "backend": fused}
    controller = gs.PIDController(rtol=1e-9, atol=1e-12)
    trajectory = gs.solve(system, y0, controller=controller, **options)
    assert np.max(np.abs(trajectory.ys / np.array(AKZO_NOBEL_END) - 1)) < 1e-7
    for what, value in disagreement(trajectory).items():
        assert value < 10 * SAME_MESH, what

    # The truth by differences: of the solution, the consistent state of which moves with it too.
    def end(k):
        moved = AkzoNobel(k)
        start = gs.consistent_state(moved, guess, t0=0.0)
        tight = gs.PIDController(rtol=1e-11, atol=1e-14)
        return gs.solve(moved, start, controller=tight, **options).ys[0]

    _, gradient = trajectory.loss_grad(lambda y: y[0])
    for i in (0, 3):
        step = jnp.zeros(4).at[i].set(1e-4 * system.k[i])
        slope = (end(system.k + step) - end(system.k - step)) / (2e-4 * system.k[i])
        assert abs(slope - gradient.k[i]) < 1e-5 * float(jnp.abs(gradient.k[i]))


# ---- Consistent initial states ------------------------------------------------------------------


class Rotated(gs.ODESystem):
    """One relaxing and one algebraic equation, in coordinates that mix both."""

    a: Array

    @property
    def mass_matrix(self):
        return np.array([[1.0, 1.0], [2.0, 2.0]])

    def vector_field(self, t, y):
        slope, constraint = -y[0], y[0] ** 3 + y[0] - self.a - t
        return jnp.stack([slope + constraint, 2 * slope - constraint])


def test_a_consistent_state_keeps_what_has_a_derivative():
    state = gs.consistent_state(Rotated(2.0), jnp.array([0.5, 0.3]), t0=0.0)
    assert abs(state[0] ** 3 + state[0] - 2) < 1e-12
    # Only the sum of the two numbers has a derivative.
    assert abs(state[0] + state[1] - 0.8) < 1e-12


def test_consistent_states_of_an_ensemble_and_their_derivative():
    in_axes = gs.InAxes(system=eqx.if_array(0), t1=0)  # as for the solve that follows
    first = lambda a: gs.consistent_state(
        Rotated(a), jnp.array([0.5, 0.3]), t0=1.0, in_axes=in_axes
    )[:, 0]
    a = jnp.array([1.0, 9.0])
    assert relative(first(a), jnp.array([1.0, 2.0])) < 1e-12
    slopes = jnp.diagonal(jax.jacrev(first)(a))
    assert relative(slopes, 1 / (3 * first(a) ** 2 + 1)) < 1e-10


def test_a_consistent_state_of_a_pytree():
    class Tank(gs.ODESystem):
        area: Array

        @property
        def mass_matrix(self):
            return np.diag([0.0, 1.0])

        def vector_field(self, t, y):
            return {"flow": y["flow"] - jnp.sqrt(y["level"]), "level": -y["flow"] / self.area}

    y0 = {"flow": jnp.asarray(0.0), "level": jnp.asarray(4.0)}
    state = gs.consistent_state(Tank(2.0), y0, t0=0.0)
    assert float(state["flow"]) == pytest.approx(2.0, rel=1e-12)
    trajectory = gs.solve(Tank(2.0), state, t0=0.0, t1=2.0)
    # d sqrt(level) / dt = -1 / (2 area).
    assert float(trajectory.ys["level"]) == pytest.approx(1.5**2, rel=1e-5)
    with pytest.raises(ValueError, match="no algebraic equations"):
        gs.consistent_state(WithMass(1.0), Y0, t0=0.0)


# ---- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("integrator", [gs.Tsit5(), gs.FromDiffrax(diffrax.Kvaerno3())])
def test_other_methods_refuse_a_mass_matrix(integrator):
    with pytest.raises(ValueError, match=r"has a mass matrix. Use a Rosenbrock method"):
        gs.solve(WithMass(1.3), Y0, t0=0.0, t1=1.0, integrator=integrator)


def test_a_state_that_is_not_consistent():
    with pytest.raises(ValueError, match=r"number 2 of the state would .* by -0.1, .*consistent"):
        gs.solve(Robertson(LOG_K), jnp.array([1.0, 0.0, 0.1]), **WINDOW)
    states = jnp.array([[1.0, 0.0, 0.0], [0.9, 0.0, 0.0]])
    with pytest.raises(ValueError, match="number 2 of the state of trajectory 1"):
        gs.solve(Robertson(LOG_K), states, in_axes=gs.InAxes(y0=0), **WINDOW)


def test_an_index_of_two():
    class Pendulum(gs.ODESystem):
        def vector_field(self, t, y):
            x, v, force = y
            return jnp.stack([v, -force * x, x**2 - 1])

        @property
        def mass_matrix(self):
            return np.diag([1.0, 1.0, 0.0])

    with pytest.raises(ValueError, match="index 1"):
        gs.solve(Pendulum(), jnp.array([1.0, 0.0, 0.0]), t0=0.0, t1=1.0)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (lambda self: np.eye(2), r"shape \(3, 3\).* got \(2, 2\)"),
        (lambda self: np.full((3, 3), np.nan), "must be finite"),
        (lambda self: self.mu * np.eye(3), "must be constant"),
    ],
    ids=["shape", "nan", "parameter"],
)
def test_a_matrix_that_is_none(matrix, message):
    class Wrong(WithMass):
        @property
        def mass_matrix(self):
            return matrix(self)

    with pytest.raises(ValueError, match=rf"`Wrong.mass_matrix` .*{message}"):
        gs.solve(Wrong(1.3), Y0, t0=0.0, t1=1.0)


def test_the_default_integrator_can_be_read_off():
    plain = gs.solve(Inverted(1.3), Y0, t0=0.0, t1=0.5)
    assert isinstance(plain.integrator, gs.Tsit5)
    assert isinstance(gs.solve(WithMass(1.3), Y0, t0=0.0, t1=0.5).integrator, gs.Rodas5P)
