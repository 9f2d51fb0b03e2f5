"""What has no lowering is refused by one sentence, which names the line of the model."""

import inspect
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradsolve._lowering import (
    Leaf,
    LoweringError,
    TooLargeError,
    UnsupportedPrimitiveError,
    lower,
)
from gradsolve._lowering._arrays import MAX_SELECTED, MAX_TABLE
from gradsolve._lowering._rules.sorting import MAX_SORTED


def lowered(function, *args, **options):
    closed = jax.make_jaxpr(function)(*args)
    count = len(closed.consts)
    consts = [
        Leaf(i, np.shape(const), np.asarray(const).dtype) for i, const in enumerate(closed.consts)
    ]
    names = [f"a{i}" for i in range(len(closed.jaxpr.invars))]
    assert len(consts) == count
    return lower(closed.jaxpr, [*consts, *names], **options)


def model(y):
    return jnp.fft.irfft(jnp.fft.rfft(y), 4)  # the line that the sentence names


MODEL_LINE = inspect.getsourcelines(model)[1] + 1
HERE = f"test_lowering_refusals.py:{MODEL_LINE} (model)"

Y = jnp.ones(4)

# Bodies that JAX traces on their own, and code that is ours or a library's.
WRAPPED = {
    "plain": model,
    "jit": jax.jit(lambda y: model(y)),
    "cond": lambda y: lax.cond(y[0] > 0, model, lambda y: y, y),
    "scan": lambda y: lax.scan(lambda c, x: (model(c), x), y, y)[0],
    "while": lambda y: lax.while_loop(lambda c: c[0] > 0, model, y),
    "checkpoint": jax.checkpoint(lambda y: model(y)),
    "vmap": lambda y: jax.vmap(model)(y[None])[0],
    "vjp": lambda y: jax.vjp(model, y)[1](y)[0],
    "module": lambda y: eqx.nn.Lambda(model)(y),
    "filter_jit": lambda y: eqx.filter_jit(lambda y: model(y))(y),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_names_the_users_line(name):
    with pytest.raises(UnsupportedPrimitiveError) as caught:
        lowered(WRAPPED[name], Y)
    message = str(caught.value)
    assert message.startswith("The primitive `fft` has no C++ lowering; it is used at ")
    assert HERE in message
    assert message.count(".py:") == 1
    assert "\n" not in message


def _random(y):
    return jax.random.normal(jax.random.key(0), (3,)) * y[0]


def _half(y):
    return y.astype(jnp.bfloat16) * 2


REFUSED = {
    "fft": (model, "The primitive `fft` has no C++ lowering;"),
    "random": (_random, "The primitive `random_seed` has no C++ lowering;"),
    "eigenvalues": (lambda y: jnp.linalg.eigvalsh(jnp.outer(y, y)), "The primitive `eigh"),
    "bessel": (lambda y: lax.bessel_i0e(y), "The primitive `bessel_i0e` has no C++ lowering;"),
    "igamma": (lambda y: lax.igamma(y, y), "The primitive `igamma` has no C++ lowering;"),
    "bfloat16": (
        _half,
        "The primitive `convert_element_type` has no C++ lowering for the dtype bfloat16;",
    ),
    "float16": (
        lambda y: y.astype(jnp.float16),
        "The primitive `convert_element_type` has no C++ lowering for the dtype float16;",
    ),
    "int8": (
        lambda y: y.astype(jnp.int8),
        "The primitive `convert_element_type` has no C++ lowering for the dtype int8;",
    ),
    "complex": (
        lambda y: jnp.abs(y + 1j),
        "The primitive `convert_element_type` has no C++ lowering for the dtype complex128;",
    ),
    "bits of another width": (
        lambda y: lax.bitcast_convert_type(y, jnp.int32),
        "The primitive `bitcast_convert_type` has no C++ lowering between dtypes of different",
    ),
    "callback": (
        lambda y: jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((4,), y.dtype), y),
        "The primitive `pure_callback` has no C++ lowering;",
    ),
    "long sort": (
        lambda y: jnp.sort(jnp.tile(y, MAX_SORTED)),
        f"The primitive `sort` sorts {4 * MAX_SORTED} entries, which has a C++ lowering up to",
    ),
    "long selection": (
        lambda y: jnp.tile(y, MAX_SELECTED)[jnp.argmax(y)],
        f"reads an array of {4 * MAX_SELECTED} computed values at a computed place",
    ),
    "long scatter": (
        lambda y: jnp.tile(y, MAX_SELECTED).at[jnp.argmax(y)].set(0.0),
        f"writes to an array of {4 * MAX_SELECTED} values at a computed place",
    ),
    "long table": (
        lambda y: jnp.arange(2.0 * MAX_TABLE)[jnp.argmax(y)],
        f"reads a constant array of {2 * MAX_TABLE} numbers at a computed place",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, sentence = REFUSED[name]
    with pytest.raises(UnsupportedPrimitiveError) as caught:
        lowered(function, Y)
    message = str(caught.value)
    assert sentence in message
    assert "test_lowering_refusals.py:" in message
    assert message.endswith(".")
    assert isinstance(caught.value, LoweringError)
    assert isinstance(caught.value, NotImplementedError)


TOO_LARGE = {
    "scan": lambda y: lax.scan(lambda c, _: (jnp.sin(c), None), y, None, length=100_000)[0],
    "idle scan": lambda y: lax.scan(lambda c, _: (c, None), y, None, length=100_000_000)[0],
    "operations": lambda y: jnp.exp(jnp.arange(1_500.0) * y[0]),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_too_large(name):
    start = time.monotonic()
    with pytest.raises(TooLargeError, match="2000 scalar operations"):
        lowered(TOO_LARGE[name], Y, max_operations=2000)
    # Said without doing all of the work, which takes minutes.
    assert time.monotonic() - start < 30


def test_budget_counts_what_is_left_after_simplification():
    function = lowered(lambda y: lax.fori_loop(0, 10, lambda i, c: c * 1.0 + 0.0, y), Y)
    assert function.operations == 0


def test_whole_table_is_refused_only_if_it_is_read():
    table = Leaf(0, (1_000_000,), np.dtype(np.float64))
    spec = jax.ShapeDtypeStruct((1_000_000,), jnp.float64)

    def entry(t, y):
        return t.reshape(1000, 1000).T[3, 2:4] * y[:2] + t[jnp.argmax(y)]

    closed = jax.make_jaxpr(entry)(spec, Y)
    function = lower(closed.jaxpr, [table, "y"])
    assert function.leaf_entries() == ((0, 2003), (0, 3003))
    assert function.leaf_loads() == (0,)
    closed = jax.make_jaxpr(lambda t, y: jnp.sum(t) * y)(spec, Y)
    with pytest.raises(LoweringError, match="needs all 1000000 entries"):
        lower(closed.jaxpr, [table, "y"])


def test_wrong_inputs_are_named():
    closed = jax.make_jaxpr(lambda y: y)(Y)
    with pytest.raises(ValueError, match="has 1 constants and arguments, got 2 inputs"):
        lower(closed.jaxpr, ["y", "t"])
    with pytest.raises(
        ValueError, match=r"Leaf 0 is float64\[3\], but the jaxpr takes float64\[4\]"
    ):
        lower(closed.jaxpr, [Leaf(0, (3,), np.dtype(np.float64))])


def test_unused_key_is_no_obstacle():
    def function(key, y):
        return y * 2

    closed = jax.make_jaxpr(function)(jax.random.key(0), Y)
    assert lower(closed.jaxpr, ["key", "y"]).operations == 4
