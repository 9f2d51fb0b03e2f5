"""Quotients and roots, which a GPU computes with fewer branches than there are: the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import gradsolve as gs

from .helpers import SAME_MESH, relative, same_bits

SIZE = 24  # so long that the field is called, and comes in two ways
FEW = 5  # four that are computed together, and one


class Quotients(gs.ODESystem):
    """One step of length one from zero is the field itself."""

    a: Float[Array, " size"]
    b: Float[Array, " size"]

    def vector_field(self, t, y):
        return jnp.concatenate([self.a / self.b, jnp.sqrt(jnp.abs(self.b))])


class InTheState(gs.ODESystem):
    """Of numbers that change, so that nothing is computed once before the steps; roots of zeros."""

    a: Float[Array, " size"]
    b: Float[Array, " size"]

    def vector_field(self, t, y):
        a, b = self.a + y[: len(self.a)], self.b + y[len(self.a) :]
        return jnp.concatenate([a / b, jnp.sqrt(jnp.abs(a))])


def one_step(system, lanes, backend):
    return gs.solve(
        system,
        jnp.full((lanes, 2 * system.a.shape[-1]), -0.0),  # adds nothing, not even to -0
        t0=0.0,
        t1=1.0,
        integrator=gs.Euler(),
        controller=gs.ConstantStep(1.0),
        in_axes=gs.InAxes(system=type(system)(0, 0), y0=0),
        backend=backend,
    )


def ordinary(rng, shape):
    return rng.choice([-1.0, 1.0], shape) * 10 ** rng.uniform(-9, 9, shape)


def extreme(rng, shape):
    """All exponents, zeros and powers of two; what is out of range is one over one.

    Not subnormal numbers: XLA's threads on a CPU take them for zeros.
    """
    numbers = (rng.choice([-1.0, 1.0], shape) * rng.uniform(1, 2, shape) for _ in range(2))
    a, b = (np.ldexp(number, rng.integers(-1022, 1023, shape)) for number in numbers)
    a = np.where(rng.random(shape) < 0.2, 0.0 * a, a)
    b = np.where(rng.random(shape) < 0.2, np.exp2(rng.integers(-1022, 1023, shape)), b)
    with np.errstate(all="ignore"):
        size = np.abs(a / b)
    inside = (a == 0) | (np.isfinite(size) & (size >= np.finfo(np.float64).tiny))
    return np.where(inside, a, 1.0), np.where(inside, b, 1.0)


@pytest.mark.parametrize(("system", "size"), [(Quotients, SIZE), (InTheState, FEW)])
@pytest.mark.parametrize("numbers", ["ordinary", "extreme", "some extreme"])
def test_quotients_and_roots_are_rounded_correctly(fused, system, size, numbers):
    rng = np.random.default_rng(0)
    lanes = 1 << (18 if isinstance(fused, gs.CUDA) else 11)
    a, b = ordinary(rng, (lanes, size)), ordinary(rng, (lanes, size))
    if numbers != "ordinary":
        which = slice(None, None, 1 if numbers == "extreme" else 7)
        a[which], b[which] = extreme(rng, a[which].shape)
    trajectory = one_step(system(jnp.asarray(a), jnp.asarray(b)), lanes, fused)
    quotients, roots = np.split(np.asarray(trajectory.ys), 2, axis=1)
    np.testing.assert_array_equal(quotients, a / b)
    np.testing.assert_array_equal(np.signbit(quotients), np.signbit(a / b))
    np.testing.assert_array_equal(roots, np.sqrt(np.abs(b if system is Quotients else a)))


def test_what_is_in_a_kernel_once_comes_in_two_ways_and_else_quotients_are_joined():
    class Short(gs.ODESystem):
        a: Float[Array, ""]

        def vector_field(self, t, y):
            return self.a / y

    long = gs.kernel_source(Quotients(*jnp.ones((2, SIZE))), jnp.ones(2 * SIZE), job="adjoint")
    short = gs.kernel_source(Short(jnp.array(1.0)), jnp.array(1.0))
    for function in ("field", "pull"):
        assert f"if ({function}_by(gs::Quick(), p, t, y, " in long
        assert f"    {function}_by(gs::Exact(), p, t, y, " in long
    assert "field_by" not in short  # each of seven stages has a copy of it
    for job in ("record", "replay", "adjoint"):
        few = gs.kernel_source(InTheState(*jnp.ones((2, FEW))), jnp.ones(2 * FEW), job=job)
        assert "gs::Quotients<4> " in few
        assert "gs::Roots<4> " in few
    assert "judge_by(gs::Quick(), " in short
    single = gs.kernel_source(Short(jnp.array(1.0, "float32")), jnp.array(1.0, "float32"))
    assert "gs::Quick" not in single


def test_what_cannot_be_joined_changes_nothing_else():
    class Nested(gs.ODESystem):
        a: Float[Array, ""]

        def vector_field(self, t, y):
            return self.a / (1 + self.a / y)

    text = gs.kernel_source(Nested(jnp.array(1.0)), jnp.array(1.0), job="replay", backend=gs.CUDA())
    assert "quotients.h" not in text
    assert "__launch_bounds__(gs::kMaxBlock)" in text


def test_an_adjoint_with_powers_keeps_its_registers_for_them():
    class Hill(gs.ODESystem):
        exponent: Float[Array, ""]

        def vector_field(self, t, y):
            return 1 / (1 + y**self.exponent) - y

    joined = {
        job: "gs::Quotients<3> " in gs.kernel_source(Hill(jnp.array(2.5)), jnp.ones(3), job=job)
        for job in ("record", "replay", "adjoint")
    }
    assert joined == {"record": True, "replay": True, "adjoint": False}


@pytest.mark.parametrize(("kind", "size", "place"), [(Quotients, SIZE, 5), (InTheState, FEW, 0)])
def test_a_quotient_that_is_not_finite_fails_alone(fused, kind, size, place):
    rng = np.random.default_rng(1)
    a, b = rng.uniform(0.5, 2.0, (2, 40, size))
    b[place, 3] = 0.0
    system = kind(jnp.asarray(a), jnp.asarray(b))
    with pytest.raises(gs.SolveError):
        one_step(system, 40, fused)
    options = {"in_axes": gs.InAxes(system=kind(0, 0), y0=0), "t0": 0.0, "t1": 1.0}
    trajectory = gs.solve(
        system, jnp.zeros((40, 2 * size)), backend=fused, throw=False, dt0=0.1, **options
    )
    failed = np.arange(40) == place
    np.testing.assert_array_equal(np.asarray(jnp.isnan(trajectory.ys).any(axis=1)), failed)
    others = jax.tree.map(lambda leaf: leaf[~failed], system)
    alone = gs.solve(others, jnp.zeros((39, 2 * size)), backend=fused, dt0=0.1, **options)
    assert same_bits(alone.ys, trajectory.ys[~failed])


def test_the_gradient_of_a_long_field(fused):
    rng = np.random.default_rng(2)
    lanes = 5
    system = Quotients(*(jnp.asarray(rng.uniform(0.5, 2.0, (lanes, SIZE))) for _ in range(2)))
    # Zeros go through the pullback too, and a divisor whose square is near the end of the range.
    system = Quotients(system.a.at[0, :4].set(0.0), system.b.at[1, 2].set(2.0**510))
    loss = lambda ys: jnp.sum(ys**2)
    gradients = [
        one_step(system, lanes, backend).loss_grad(loss, system, jnp.zeros((lanes, 2 * SIZE)))[1]
        for backend in (fused, gs.XLA())
    ]
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert relative(one, other) < SAME_MESH
