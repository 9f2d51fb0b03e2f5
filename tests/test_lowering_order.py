"""The order of operations: the same values, fewer of them alive at once."""

import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gradsolve._lowering import Op, _order
from gradsolve._lowering._order import keep_few_alive

from .lowering_harness import Case, Compiled, body, definitions_precede_uses


def pulls(y):
    """Between all pairs of bodies: traced, all pairs are alive at once."""
    apart = y[:, None, :] - y[None, :, :]
    cubed = (1e-3 + jnp.sum(apart**2, axis=-1)) ** 1.5
    return jnp.sum(apart / cubed[:, :, None], axis=1)


def lowered(function, *args):
    return Case("", function, tuple(arg[None] for arg in args)).lowered()


def alive_by_text(function):
    """The most local variables that are alive at once, in the text of straight-line code."""
    lines = body(function).splitlines()
    names = [re.findall(r"\bv\d+\b", line) for line in lines]
    last = {name: place for place, line in enumerate(names) for name in line}
    alive, most = set(), 0
    for place, line in enumerate(names):
        alive = {name for name in (*alive, *line) if last[name] > place}
        most = max(most, len(alive))
    return most


@pytest.fixture
def without_registers():
    with mock.patch.object(_order, "BYTES_IN_REGISTERS", 0):
        yield


def test_pairs_of_bodies_are_finished_one_after_the_other():
    bodies = np.random.default_rng(0).normal(size=(9, 3))
    with mock.patch.object(_order, "BYTES_IN_REGISTERS", 1 << 30):
        as_traced = alive_by_text(lowered(pulls, bodies))
    ordered = alive_by_text(lowered(pulls, bodies))
    # Of each of the 9 * 8 / 2 pairs the distance, which both need, and the 27 outputs.
    assert ordered < 9 * 8 / 2 + 27 + 10
    # Of each pair, in either direction, three differences.
    assert as_traced > 9 * 8 * 3


def test_what_fits_into_the_registers_stays_as_it_was_traced():
    function = lowered(pulls, np.ones((3, 3)))
    assert keep_few_alive(function) is function


def test_an_order_that_keeps_no_fewer_is_not_taken(without_registers):
    function = lowered(lambda y: jnp.cumsum(jnp.sin(y)), np.ones(5))
    assert keep_few_alive(function) is function


def controlled(y):
    """Branches, loops and a product, each with several results, used in another order."""
    many = jnp.outer(y, y) + y
    branches = lax.cond(y[0] > 0, lambda: (y + many[0], y * 2), lambda: (jnp.sin(y), many[1]))
    total, last = lax.while_loop(
        lambda c: c[0][0] < 3, lambda c: (c[0] + 1 + branches[1] ** 2, c[1] * y), (y, many[2])
    )
    product = many @ many.T
    return jnp.concatenate([last, total * branches[0], product[3], product[0] * many[3]])


def test_operations_stay_with_their_results(without_registers):
    function = lowered(controlled, np.ones(12))
    ordered = keep_few_alive(function)
    assert ordered is not function
    assert set(ordered.walk()) == set(function.walk())
    assert definitions_precede_uses(ordered.block)
    owners = {Op.BRANCHES, Op.LOOP, Op.PRODUCT}
    assert owners <= {value.op for value in ordered.block.values}
    owner = None
    for value in ordered.block.values:
        if value.op is Op.RESULT:
            assert value.args[0] is owner
        else:
            owner = value


@pytest.mark.parametrize("lanes", [1, 4])
def test_results_are_the_same_bits(tmp_path_factory, lanes):
    rng = np.random.default_rng(1)
    pull = lambda y, ct: jax.vjp(pulls, y)[1](ct)
    cases = [
        Case("field", pulls, (rng.normal(size=(8, 6, 3)),)),
        Case("pullback", pull, (rng.normal(size=(8, 6, 3)), rng.normal(size=(8, 6, 3)))),
        Case("control", controlled, (rng.normal(size=(8, 12)),)),
    ]
    results = []
    for registers in (1 << 30, 0):
        with mock.patch.object(_order, "BYTES_IN_REGISTERS", registers):
            texts = [body(case.lowered()) for case in cases]
            compiled = Compiled(cases, tmp_path_factory.mktemp("order"), lanes)
        results.append((texts, [compiled.run(number) for number in range(len(cases))]))
    (texts, values), (other_texts, other_values) = results
    assert all(one != other for one, other in zip(texts, other_texts, strict=True))
    for one, other in zip(values, other_values, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
