"""Quotients that do not need each other are computed together, with the same results."""

import re
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from gradsolve._lowering import _quotients
from gradsolve._lowering._quotients import changing_quotients, quotients_together

from .lowering_harness import Case, Compiled, body, definitions_precede_uses


def lowered(function, *args, tables=frozenset()):
    args = [arg if i in tables else arg[None] for i, arg in enumerate(args)]
    return Case("", function, tuple(args), tables).lowered()


def groups(function):
    """How many quotients and roots are computed at once, in the text."""
    text = body(function, join_quotients=True)
    joined = [(kind, int(size)) for kind, size in re.findall(r"gs::(Quotients|Roots)<(\d)>", text)]
    return joined, text.count(" / ") + text.count("gs::sqrt(")


def enzymes(y):
    """As a model of reactions is often written: one rate after the other; one needs another."""
    first = y[0] / (1.0 + y[0])
    second = 2.0 * y[1] / (0.5 + y[1] + first)
    third = y[2] * y[0] / (0.1 + y[2])
    return jnp.stack([first - second, second - third, third - first])


def test_rates_in_separate_lines_are_joined():
    function = lowered(lambda y: enzymes(y + 1), np.ones(3))
    assert groups(function) == ([("Quotients", 2)], 1)
    independent = lowered(
        lambda y: jnp.stack([1 / y[0] + 1, 2 / y[1] + 2, 3 / y[2] + 3]), np.ones(3)
    )
    assert groups(independent) == ([("Quotients", 3)], 0)


def test_the_text_is_in_the_traced_order_but_for_what_joins():
    function = lowered(lambda y: jnp.stack([1 / y[0] + 1, 2 / y[1] + 2, y[2] * 3]), np.ones(3))
    lines = body(function, join_quotients=True).splitlines()
    assert [line.split("=")[-1].strip() for line in lines[1:4]] == [
        "v0[0] + F64(1.0);",
        "v0[1] + F64(2.0);",
        "a0[2] * F64(3.0);",
    ]


def test_at_most_four_at_once():
    function = lowered(lambda y: 1 / y, np.ones(11))
    assert groups(function) == ([("Quotients", 4), ("Quotients", 4), ("Quotients", 3)], 0)
    assert groups(lowered(lambda y: 1 / y, np.ones(5))) == ([("Quotients", 4)], 1)


def test_quotients_and_roots_are_not_mixed():
    function = lowered(lambda y: jnp.concatenate([1 / y, jnp.sqrt(y)]), np.ones(2))
    assert groups(function) == ([("Quotients", 2), ("Roots", 2)], 0)


def test_one_that_needs_the_other_stays_alone():
    assert groups(lowered(lambda y: jnp.stack([y[0] / (y[1] / y[2])]), np.ones(3))) == ([], 2)
    assert groups(lowered(lambda y: 1 / jnp.sqrt(y[:1]), np.ones(3))) == ([], 2)


def test_what_depends_on_parameters_alone_stays_alone():
    def field(p, y):
        return jnp.stack([y[0] * (p[0] / p[1]), y[1] / p[1], y[0] / p[0]])

    function = lowered(field, np.ones(2), np.ones(2), tables=frozenset({0}))
    assert groups(function) == ([("Quotients", 2)], 1)


def test_other_precisions_and_integers_are_left_alone():
    assert groups(lowered(lambda y: 1 / y, np.ones(3, "float32"))) == ([], 3)
    assert groups(lowered(lambda y: y[:1] // y[1:], np.ones(3, "int32")))[0] == []


def test_too_many_values_are_not_put_together():
    function = lowered(lambda y: jnp.stack([1 / y[0] + 1, 2 / y[1] + 2]), np.ones(2))
    quotients = changing_quotients(function)
    assert quotients_together(function, quotients) is not function
    with mock.patch.object(_quotients, "BYTES_IN_REGISTERS", 0):
        assert quotients_together(function, quotients) is function


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99)), max_size=30))
def test_any_order_of_quotients(operations):
    """Each operation reads any two of the numbers before it."""

    def field(y):
        numbers = list(y)
        for divides, one, other in operations:
            a, b = numbers[one % len(numbers)], numbers[other % len(numbers)]
            numbers.append(a / b if divides else a - b)
        return jnp.stack(numbers)

    function = lowered(field, np.ones(3))
    quotients = changing_quotients(function)
    ordered = quotients_together(function, quotients)
    assert set(ordered.walk()) == set(function.walk())
    assert len(ordered.block.values) == len(function.block.values)
    assert definitions_precede_uses(ordered.block)


def controlled(y):
    """Quotients around, in front of and inside of branches and loops."""
    ratio = y / (1.0 + y * y)
    chosen = lax.cond(y[0] > 0, lambda: ratio / (2.0 + y), lambda: jnp.sqrt(1.0 + y * y))
    total = lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1 + 1 / (3.0 + c * c), y)
    return jnp.concatenate([chosen / (1.0 + total * total), jnp.sqrt(ratio * ratio + 1)])


@pytest.mark.parametrize("lanes", [1, 4])
def test_results_are_the_same_bits(tmp_path_factory, lanes):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(8, 6))
    cases = [Case("enzymes", enzymes, (numbers,)), Case("control", controlled, (numbers,))]
    assert "gs::Roots<4>" in body(cases[1].lowered(), join_quotients=True)
    alone, joined = (
        Compiled(cases, tmp_path_factory.mktemp("quotients"), lanes, join_quotients=join)
        for join in (False, True)
    )
    for number in range(len(cases)):
        for one, other in zip(alone.run(number), joined.run(number), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


def test_functions_that_are_called_stay_together():
    def field(y):
        waves = jnp.sin(y)
        return jnp.concatenate([1 / (2.0 + waves), waves])

    function = lowered(field, np.ones(12))
    text = body(function, join_quotients=True)
    assert text.count("gs::called::sin(") == 3
    assert groups(function)[0] == [("Quotients", 4)] * 3
