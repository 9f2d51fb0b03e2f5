"""Quotients and roots in long fields, which a GPU computes without branches: the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import gradsolve as gs

from .helpers import SAME_MESH, relative, same_bits

SIZE = 24


class Quotients(gs.ODESystem):
    """One step of length one from zero is the field itself."""

    a: Float[Array, " 24"]
    b: Float[Array, " 24"]

    def vector_field(self, t, y):
        return jnp.concatenate([self.a / self.b, jnp.sqrt(jnp.abs(self.b))])


def one_step(system, lanes, backend):
    return gs.solve(
        system,
        jnp.zeros((lanes, 2 * SIZE)),
        t0=0.0,
        t1=1.0,
        integrator=gs.Euler(),
        controller=gs.ConstantStep(1.0),
        in_axes=gs.InAxes(system=Quotients(0, 0), y0=0),
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
    a = np.where(rng.random(shape) < 0.2, 0.0, a)
    b = np.where(rng.random(shape) < 0.2, np.exp2(rng.integers(-1022, 1023, shape)), b)
    with np.errstate(all="ignore"):
        size = np.abs(a / b)
    inside = (a == 0) | (np.isfinite(size) & (size >= np.finfo(np.float64).tiny))
    return np.where(inside, a, 1.0), np.where(inside, b, 1.0)


@pytest.mark.parametrize("numbers", ["ordinary", "extreme", "some extreme"])
def test_quotients_and_roots_are_rounded_correctly(fused, numbers):
    rng = np.random.default_rng(0)
    lanes = 1 << (18 if isinstance(fused, gs.CUDA) else 11)
    a, b = ordinary(rng, (lanes, SIZE)), ordinary(rng, (lanes, SIZE))
    if numbers != "ordinary":
        which = slice(None, None, 1 if numbers == "extreme" else 7)
        a[which], b[which] = extreme(rng, a[which].shape)
    trajectory = one_step(Quotients(jnp.asarray(a), jnp.asarray(b)), lanes, fused)
    quotients, roots = np.split(np.asarray(trajectory.ys), 2, axis=1)
    np.testing.assert_array_equal(quotients, a / b)
    np.testing.assert_array_equal(roots, np.sqrt(np.abs(b)))


def test_only_what_is_in_a_kernel_once_comes_in_two_ways():
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
    assert "judge_by(gs::Quick(), " in short
    single = gs.kernel_source(Short(jnp.array(1.0, "float32")), jnp.array(1.0, "float32"))
    assert "gs::Quick" not in single


@pytest.mark.parametrize("place", [0, 5])
def test_a_quotient_that_is_not_finite_fails_alone(fused, place):
    rng = np.random.default_rng(1)
    a, b = ordinary(rng, (40, SIZE)), ordinary(rng, (40, SIZE))
    b[place, 3] = 0.0
    system = Quotients(jnp.asarray(a), jnp.asarray(b))
    with pytest.raises(gs.SolveError):
        one_step(system, 40, fused)
    options = {"in_axes": gs.InAxes(system=Quotients(0, 0), y0=0), "t0": 0.0, "t1": 1.0}
    trajectory = gs.solve(
        system, jnp.zeros((40, 2 * SIZE)), backend=fused, throw=False, dt0=0.1, **options
    )
    failed = np.arange(40) == place
    np.testing.assert_array_equal(np.asarray(jnp.isnan(trajectory.ys).any(axis=1)), failed)
    others = jax.tree.map(lambda leaf: leaf[~failed], system)
    alone = gs.solve(others, jnp.zeros((39, 2 * SIZE)), backend=fused, dt0=0.1, **options)
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
