"""Random vector fields in value, adjoint and Jacobian against JAX."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from gradsolve._lowering import _order

from .lowering_harness import LANES, Case, Compiled, expected, ulps

DIM = 3
TABLE = np.cumsum(np.random.default_rng(0).uniform(0.2, 1.0, 9))
MATRIX = np.random.default_rng(1).normal(size=(DIM, DIM)) / 2

# A field is a tree: each node is a function of the parameters p, of t and of its inputs, all of
# shape (DIM,). Bounded functions keep the numbers of order one, where rounding is what differs.


_UNARY = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "logistic": jax.nn.sigmoid,
    "decay": lambda x: jnp.exp(-x * x),
    "log": lambda x: jnp.log1p(x * x),
    "root": lambda x: jnp.sqrt(1 + x * x),
    "cube": lambda x: (x / (1 + jnp.abs(x))) ** 3,
    "roll": lambda x: jnp.roll(x, 1),
    "reverse": lambda x: x[::-1],
    "cumsum": lambda x: jnp.cumsum(x) / DIM,
    "softmax": jax.nn.softmax,
    "normalised": lambda x: x / (1 + jnp.linalg.norm(x)),
    "matrix": lambda x: jnp.asarray(MATRIX) @ x,
    "interp": lambda x: jnp.interp(x, jnp.asarray(TABLE) - 3, jnp.asarray(TABLE[::-1].copy())),
    "at": lambda x: x.at[0].add(x[1]).at[2].set(x[0] * x[1]),
    "pad": lambda x: jnp.pad(x[1:], (1, 0)),
}


def _unary(name, x):
    return _UNARY[name](x)


_BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": lambda x, y: x * y / (1 + jnp.abs(y)),
    "div": lambda x, y: x / (1 + y * y),
    "where": lambda x, y: jnp.where(x > y, x, 2 * y),
    "max": jnp.maximum,
    "atan2": lambda x, y: jnp.arctan2(x, 1 + jnp.abs(y)),
    "outer": lambda x, y: jnp.outer(x, y)[1] / (1 + jnp.sum(jnp.abs(y))),
    "einsum": lambda x, y: jnp.einsum("i,ij,j->j", x, jnp.asarray(MATRIX), y) / (1 + y @ y),
    "concatenate": lambda x, y: jnp.concatenate([x[:1], y[1:]]),
    "index": lambda x, y: x.at[jnp.floor(jnp.abs(y[0]) * 2).astype(int) % DIM].add(y[1]),
    "lookup": lambda x, y: x[jnp.floor(jnp.abs(y * 2)).astype(int) % DIM],
}


def _binary(name, x, y):
    return _BINARY[name](x, y)


def _control(name, x, y):
    if name == "cond":
        return lax.cond(x[0] > y[1], lambda: jnp.sin(x) + y, lambda: x * 0.5)
    if name == "switch":
        which = jnp.floor(jnp.abs(x[1]) * 3).astype(jnp.int32)
        return lax.switch(which, [lambda: x, lambda: jnp.cos(y), lambda: x - y])
    if name == "scan":
        return lax.scan(lambda c, z: (jnp.tanh(c + z), c[0] * z), x, y)[1]
    if name == "fori":
        return lax.fori_loop(0, 3, lambda i, c: 0.5 * c + jnp.sin(y) * i, x)
    assert name == "while", name
    # No reverse mode passes a loop of unknown length: it decides only how often the input counts.
    count = lax.while_loop(
        lambda s: s[1] < lax.stop_gradient(jnp.abs(x[0])),
        lambda s: (s[0] + 1, s[1] * 1.7),
        (1.0, 0.1),
    )[0]
    return y / lax.stop_gradient(count)


_CONTROL = ["cond", "switch", "scan", "fori", "while"]

_LEAVES = st.sampled_from(["y", "p", "t"])
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just(_unary), st.sampled_from(list(_UNARY)), inner),
        st.tuples(st.just(_binary), st.sampled_from(list(_BINARY)), inner, inner),
        st.tuples(st.just(_control), st.sampled_from(_CONTROL), inner, inner),
    ),
    max_leaves=6,
)


def _field(tree):
    def evaluate(node, values):
        if isinstance(node, str):
            return values[node]
        function, name, *inputs = node
        return function(name, *(evaluate(inner, values) for inner in inputs))

    def field(p, t, y):
        return evaluate(tree, {"p": p, "t": t * jnp.arange(1.0, DIM + 1), "y": y})

    return field


def _describe(node):
    if isinstance(node, str):
        return node
    return f"{node[1]}({', '.join(map(_describe, node[2:]))})"


def _case(tree, number):
    field = _field(tree)
    rng = np.random.default_rng(number)
    p, y, ct = (rng.uniform(-2, 2, (LANES, DIM)) for _ in range(3))
    t = rng.uniform(0, 2, LANES)

    def derivatives(p, t, y, ct):
        value, pull = jax.vjp(field, p, t, y)
        return value, pull(ct), jax.jacfwd(field, 2)(p, t, y)

    return Case(_describe(tree), derivatives, (p, t, y, ct))


# Several fields share a compilation. The seed is fixed: a test of every commit should not fail by
# chance for the next one.
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(_TREES, min_size=6, max_size=6))
def test_random_fields(tmp_path_factory, trees):
    cases = [_case(tree, i) for i, tree in enumerate(trees)]
    wanted = expected(cases)
    # The packs in an order that keeps few values alive, as if all of these were too large; the
    # scalar code with quotients that are computed together.
    for lanes, registers in ((1, _order.BYTES_IN_REGISTERS), (4, 0)):
        with mock.patch.object(_order, "BYTES_IN_REGISTERS", registers):
            directory = tmp_path_factory.mktemp("random")
            compiled = Compiled(cases, directory, lanes, join_quotients=lanes == 1)
        for number, case in enumerate(cases):
            for one, want in zip(compiled.run(number), wanted[number], strict=True):
                # Up to a dozen nodes, each with a dozen roundings of numbers of order one, and each
                # node may amplify the errors of its inputs a little: 12 * 12 * 7 units.
                assert ulps(one, want, 1.0) < 1000, (case.name, one, want)
