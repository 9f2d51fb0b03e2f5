"""Models as users write them: nested modules, pytree states, tables, static fields, dtypes."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

import gradsolve as gs
from tests.helpers import relative

OPTIONS = {"t0": 0.0, "t1": 1.5, "controller": gs.PIDController(rtol=1e-9, atol=1e-11)}


class Species(NamedTuple):
    amount: Array
    parts: Array


class Rates(eqx.Module):
    forward: Array
    matrix: Array
    label: str = "rates"


class Nested(gs.ODESystem):
    """Nested state (one leaf a matrix) and parameters, an index, a flag, a table closed over."""

    rates: Rates
    scale: Float[Array, ""]
    order: Int[Array, " 2"]
    damped: bool = eqx.field(static=True)

    def vector_field(self, t, y):
        species, extra = y["species"], y["extra"]
        parts = self.rates.matrix @ species.parts
        amount = -self.rates.forward * species.amount[self.order] + jnp.sin(t)
        drag = -self.scale * extra[0] if self.damped else jnp.zeros_like(extra[0])
        return {
            "species": Species(amount, parts),
            "extra": (drag, jnp.interp(t, TIMES, TABLE) * extra[1]),
        }


TIMES = jnp.linspace(0.0, 2.0, 5)
TABLE = jnp.array([0.1, -0.4, 0.3, 0.2, -0.1])


def nested():
    system = Nested(
        Rates(jnp.array([0.3, 0.7]), jnp.array([[-1.0, 0.2], [0.4, -0.5]])),
        0.25,
        jnp.array([1, 0]),
        damped=True,
    )
    y0 = {
        "species": Species(jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.5, 0.1], [0.2, 0.3, 0.4]])),
        "extra": (jnp.asarray(1.5), jnp.asarray(-0.5)),
    }
    return system, y0


def flat_twin(system, y0):
    """The same model with a flat state, to compare with."""
    flat, unravel = jax.flatten_util.ravel_pytree(y0)

    class Flat(gs.ODESystem):
        inner: Nested

        def vector_field(self, t, y):
            return jax.flatten_util.ravel_pytree(self.inner.vector_field(t, unravel(y)))[0]

    return Flat(system), flat


def test_nested_states_and_parameters():
    system, y0 = nested()
    ts = jnp.array([0.5, 1.5])
    trajectory = gs.solve(system, y0, ts=ts, **OPTIONS)
    assert jax.tree_util.tree_structure(trajectory.ys) == jax.tree_util.tree_structure(y0)
    assert trajectory.ys["species"].parts.shape == (2, 2, 3)
    assert trajectory.ys["extra"][0].shape == (2,)

    loss = lambda ys: sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(ys))
    value, (g_system, g_y0) = trajectory.loss_grad(loss, wrt=("system", "y0"))
    twin, flat = flat_twin(system, y0)
    flat_trajectory = gs.solve(twin, flat, ts=ts, **OPTIONS)
    flat_value, (f_system, f_y0) = flat_trajectory.loss_grad(loss, wrt=("system", "y0"))
    # The same arithmetic; the twin's arrays are laid out differently, so rounding differs.
    assert relative(value, flat_value) < 1e-12
    assert relative(g_system, f_system.inner) < 1e-11
    assert relative(jax.flatten_util.ravel_pytree(g_y0)[0], f_y0) < 1e-11
    # Closed forms: extra[0] decays at the rate `scale`.
    assert relative(trajectory.ys["extra"][0], 1.5 * jnp.exp(-0.25 * ts)) < 1e-8
    # Integer, boolean and string leaves have no gradient.
    assert g_system.order is None
    assert g_system.rates.label is None


def test_an_ensemble_of_nested_states():
    system, y0 = nested()
    forward = jnp.array([[0.3, 0.7], [0.6, 0.1], [0.9, 0.9]])
    batched = eqx.tree_at(lambda s: s.rates.forward, system, forward)
    axes = jax.tree_util.tree_map(lambda _: None, system)
    axes = eqx.tree_at(lambda s: s.rates.forward, axes, 0, is_leaf=lambda x: x is None)
    ensemble = gs.solve(batched, y0, in_axes=gs.InAxes(system=axes), **OPTIONS)
    assert ensemble.ys["species"].parts.shape == (3, 2, 3)
    for i in range(3):
        single = gs.solve(eqx.tree_at(lambda s: s.rates.forward, system, forward[i]), y0, **OPTIONS)
        member = jax.tree_util.tree_map(lambda leaf, i=i: leaf[i], ensemble.ys)
        assert relative(member, single.ys) < 1e-9


def test_numbers_given_to_array_fields_become_arrays():
    class Mixed(gs.ODESystem):
        rate: Array
        count: Int[Array, ""]
        maybe: Array | None
        plain: float
        name: str = "x"

        def vector_field(self, t, y):
            return -self.rate * y * self.plain

    system = Mixed(2, 3, None, 1.0)
    assert system.rate.dtype == jnp.float64
    assert not system.rate.weak_type
    assert system.count.dtype == jnp.int64
    assert system.maybe is None
    assert isinstance(system.plain, float)
    assert Mixed(np.float32(0.5), 1, 0.25, 1.0).rate.dtype == jnp.float32
    assert isinstance(Mixed(np.ones(3), 1, 0.25, 1.0).maybe, jax.Array)
    _, gradient = gs.solve(system, jnp.asarray(1.0), **OPTIONS).loss_grad(lambda y: y)
    assert relative(gradient.rate, -1.5 * jnp.exp(-3.0)) < 1e-6


class Network(gs.ODESystem):
    """A neural field: matrices shared by all trajectories, too large for component form."""

    layers: list

    def vector_field(self, t, y):
        hidden = y
        for weight, bias in self.layers[:-1]:
            hidden = jnp.tanh(weight @ hidden + bias)
        weight, bias = self.layers[-1]
        return weight @ hidden + bias - 0.1 * y


def network(key=0):
    sizes = [4, 16, 4]
    keys = jax.random.split(jax.random.key(key), len(sizes))
    layers = [
        (jax.random.normal(k, (b, a)) / np.sqrt(a), jnp.linspace(-0.1, 0.1, b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]
    return Network(layers)


def test_networks_with_shared_weights():
    system = network()
    y0s = jax.random.normal(jax.random.key(5), (7, 4))
    ensemble = gs.solve(system, y0s, in_axes=gs.InAxes(y0=0), **OPTIONS)
    _, gradient = ensemble.loss_grad(lambda ys: jnp.sum(ys**2))
    total = None
    for y0 in y0s:
        _, single = gs.solve(system, y0, **OPTIONS).loss_grad(lambda ys: jnp.sum(ys**2))
        total = single if total is None else jax.tree_util.tree_map(jnp.add, total, single)
    # Each trajectory alone records the same mesh up to rounding in the step sizes.
    assert relative(gradient, total) < 1e-8


@pytest.mark.parametrize(
    "operation", ["roll", "matmul", "where", "scan", "gather", "sort", "outer", "custom_jvp"]
)
def test_fields_in_component_form_and_in_array_form_agree(operation, monkeypatch):
    from gradsolve._ensemble import field

    table = jnp.array([2, 0, 1])

    class Field(gs.ODESystem):
        p: Array

        def vector_field(self, t, y):
            if operation == "roll":
                return jnp.roll(y, 1) * self.p - jnp.roll(y, -1) + jnp.flip(y) * t
            if operation == "matmul":
                return jnp.outer(self.p, self.p) @ y - 3 * y
            if operation == "where":
                return jnp.where(y > 0.5, -self.p * y, jnp.maximum(y, 0.1) * jnp.sign(self.p))
            if operation == "scan":
                step = lambda carry, p: (jnp.sin(carry) * p, carry.sum())
                carry, sums = jax.lax.scan(step, y, self.p)
                return carry + sums - y
            if operation == "gather":
                return self.p[table] * y[jnp.array([1, 1, 2])] - y
            if operation == "custom_jvp":
                return jax.nn.softplus(y) * self.p - jax.nn.relu(y + t) + jnp.logaddexp(y, t)
            if operation == "sort":
                return jnp.sort(y) * self.p - y
            grid = y[:, None] * self.p[None, :]
            return jnp.sum(grid * jnp.eye(3), axis=1) - jnp.max(y) * y + grid.T.reshape(-1)[3:6]

    def run(kind):
        trajectory = gs.solve(
            kind(jnp.array([0.3, -0.8, 0.5])), jnp.array([0.9, 0.4, -0.2]), **OPTIONS
        )
        return trajectory.ys, trajectory.loss_grad(lambda y: jnp.sum(y**3), wrt=("system", "y0"))

    in_components = run(Field)
    monkeypatch.setattr(field, "MAX_OPERATIONS", -1)

    class SameField(Field):  # a new class, so that nothing is cached
        pass

    made = []
    original = field.FieldJaxpr.__init__

    def spy(self, *args):
        original(self, *args)
        made.append(self.in_components)

    monkeypatch.setattr(field.FieldJaxpr, "__init__", spy)
    in_arrays = run(SameField)
    assert made
    assert not any(made)
    leaves = jax.tree_util.tree_leaves
    assert relative(leaves(in_components), leaves(in_arrays)) < 1e-9


def test_float32_stays_float32():
    class Decay(gs.ODESystem):
        k: Array

        def vector_field(self, t, y):
            return -self.k * y * jnp.cos(t)

    k, y0 = jnp.asarray(0.7, jnp.float32), jnp.array([1.0, 2.0], jnp.float32)
    for integrator in (gs.Tsit5(), gs.Bosh3(), gs.Dopri8()):
        trajectory = gs.solve(
            Decay(k),
            y0,
            t0=0.0,
            t1=2.0,
            ts=[0.5, 2.0],
            integrator=integrator,
            controller=gs.PIDController(rtol=1e-5, atol=1e-6),
        )
        _, (g, g_y0, g_ts, g_t1) = trajectory.loss_grad(jnp.sum, wrt=("system", "y0", "ts", "t1"))
        for leaf in (trajectory.ys, trajectory.ts, trajectory.mesh.times, g.k, g_y0, g_ts, g_t1):
            assert leaf.dtype == jnp.float32
        exact = jnp.exp(-k * jnp.sin(jnp.array([0.5, 2.0])))[:, None] * y0
        assert relative(trajectory.ys, exact) < 3e-5


def test_float64_without_x64_follows_jax():
    """In a process without x64, a float64 array is a float32 one before gradsolve sees it."""
    import subprocess
    import sys

    code = """
import jax, jax.numpy as jnp, numpy as np, gradsolve as gs
class Decay(gs.ODESystem):
    k: jax.Array
    def vector_field(self, t, y):
        return -self.k * y
trajectory = gs.solve(Decay(0.5), jnp.asarray(np.ones(2)), t0=0.0, t1=1.0, ts=np.linspace(0, 1, 3))
assert trajectory.ys.dtype == jnp.float32, trajectory.ys.dtype
assert not jax.config.jax_enable_x64
print(float(trajectory.ys[-1, 0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert abs(float(done.stdout) - np.exp(-0.5)) < 1e-5
