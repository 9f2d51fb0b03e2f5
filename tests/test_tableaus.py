"""Tableaus are proved by arithmetic: exact order conditions over all rooted trees."""

import dataclasses
import math
import pickle
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import diffrax
import numpy as np
import pytest

from gradsolve._integrators import (
    RK4,
    AbstractExplicitRK,
    Bosh3,
    ButcherTableau,
    DenseOutput,
    Dopri5,
    Dopri8,
    Euler,
    Heun,
    Midpoint,
    Ralston,
    Tsit5,
    Vern7,
    Vern9,
)
from gradsolve._integrators._tableau import cubic_hermite, rationals

ZERO, ONE = Fraction(0), Fraction(1)

# The largest admissible residual of an order condition for (b, b - b_error, dense output). It is
# zero where the source is rational. Otherwise it is one unit of the last digit of the source, at
# the largest number there is, times ten for the sums in which that number appears:
#
# - Tsit5: 85 digits, numbers up to 13; error weights with 50 digits, up to 1; dense output with 40
#   digits, up to 90.
# - Dopri8: fractions with numerators and denominators of 9 digits, which give 17 to 18 digits of
#   what they approximate, numbers up to 17, many of which cancel; dense output with 19 decimals.
# - Vern7: rational; dense output with 40 digits, up to 1300.
# - Vern9: 50 digits, up to 40; dense output with 40 digits, up to 11000.
TOLERANCES: dict[type[AbstractExplicitRK], tuple[float, float, float]] = {
    Euler: (0, 0, 0),
    Midpoint: (0, 0, 0),
    Heun: (0, 0, 0),
    Ralston: (0, 0, 0),
    RK4: (0, 0, 0),
    Bosh3: (0, 0, 0),
    Dopri5: (0, 0, 0),
    Tsit5: (1e-82, 1e-49, 1e-37),
    Dopri8: (1e-16, 1e-16, 1e-17),
    Vern7: (0, 0, 1e-35),
    Vern9: (1e-47, 1e-47, 1e-34),
}

# Violated conditions are larger than this, and far above any rounding: 2e-7 is the residual of
# order 7 of Vern7's dense output, whose source rounds one free parameter to nine digits.
VIOLATED = 1e-7

# The nodes of each method as published. Those of Tsit5, Dopri8 and Vern9 that are not short are
# solutions of equations, rounded like the other numbers.
NODES: dict[type[AbstractExplicitRK], str] = {
    Euler: "0",
    Midpoint: "0 1/2",
    Heun: "0 1",
    Ralston: "0 2/3",
    RK4: "0 1/2 1/2 1",
    Bosh3: "0 1/2 3/4 1",
    Dopri5: "0 1/5 3/10 4/5 8/9 1 1",
    Tsit5: "0 0.161 0.327 0.9 0.980025540904509685729810286287024595494213797956302477 1 1",
    Dopri8: "0 1/18 1/12 1/8 5/16 3/8 59/400 93/200 5490023248/9719169821 13/20"
    " 1201146811/1299019798 1 1 1",
    Vern7: "0 1/200 49/450 49/300 911/2000 3480084980/5709648941 221/250 37/40 1 1",
    Vern9: "0 1731/50000 0.097024350638780445948283616771006175176309310180681"
    " 0.14553652595817066892242542515650926276446396527102 561/1000"
    " 0.22900791159048501266627517718147000521819638749764"
    " 0.54499208840951498733372482281852999478180361250236 129/200 387/800 6757/100000 1/4"
    " 1427971650951258372/2166662646162554701 4103/5000 2253/2500 1 1",
}
EXTRA_NODES: dict[type[AbstractExplicitRK], str] = {
    Vern7: "1 29/100 1/8 1/4 53/100 79/100",
    Vern9: "1 0.7404185470631561083004100761798676215811 111/125 87/125 487/1000 1/40 3/20 8/25"
    " 39/50 24/25",
}

# More values than the degree of any dense output: residuals of zero prove identities.
THETAS = tuple(Fraction(k, 10) for k in range(1, 11))

methods = pytest.mark.parametrize("method", TOLERANCES, ids=lambda method: method.__name__)

# Rooted trees: a tree is the sorted tuple of the trees that hang from its root, so that () is a
# single vertex. See Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I, II.2.
Tree = tuple["Tree", ...]


@cache
def trees(order: int) -> tuple[Tree, ...]:
    """All rooted trees with `order` vertices."""
    return tuple(forests(order - 1, order - 1, math.inf))


def forests(vertices: int, order: int, position: float) -> Iterator[Tree]:
    """Multisets of trees with `vertices` vertices in all.

    Each multiset comes once, its trees in decreasing order of (order, position in `trees`), none
    of them beyond the given pair.
    """
    if vertices == 0:
        yield ()
    for first_order in range(min(vertices, order), 0, -1):
        for i, first in enumerate(trees(first_order)):
            if first_order < order or i <= position:
                for rest in forests(vertices - first_order, first_order, i):
                    yield (first, *rest)


def size(tree: Tree) -> int:
    return 1 + sum(map(size, tree))


def density(tree: Tree) -> int:
    return size(tree) * math.prod(map(density, tree))


def over_common_denominator(numbers: tuple[Fraction, ...]) -> tuple[list[int], int]:
    denominator = math.lcm(*(number.denominator for number in numbers))
    return [int(number * denominator) for number in numbers], denominator


class ElementaryWeights:
    """The elementary weights Phi_i(tree) of all stages i, the extra ones included.

    Phi_i([t_1, ..., t_m]) = prod_k sum_j a_ij Phi_j(t_k). Over the common denominator D of all
    a_ij, D^(|tree| - 1) Phi_i(tree) is an integer: fractions would spend nearly all of their time
    on greatest common divisors of numbers with thousands of digits.
    """

    def __init__(self, tableau: ButcherTableau):
        rows = (*tableau.a, *tableau.dense.extra_a)
        entries, self.denominator = over_common_denominator(sum(rows, ()))
        numerators = iter(entries)
        self.rows = [[(j, n) for j in range(len(row)) if (n := next(numerators))] for row in rows]
        self.of_tree: dict[Tree, list[int]] = {(): [1] * len(rows)}
        self.of_branch: dict[Tree, list[int]] = {}

    def tree(self, tree: Tree) -> list[int]:
        if tree not in self.of_tree:
            # Trees share all of their branches but the last with a smaller tree.
            rest, branch = self.tree(tree[:-1]), self.branch(tree[-1])
            self.of_tree[tree] = [x * y for x, y in zip(rest, branch, strict=True)]
        return self.of_tree[tree]

    def branch(self, tree: Tree) -> list[int]:
        if tree not in self.of_branch:
            phi = self.tree(tree)
            self.of_branch[tree] = [sum(n * phi[j] for j, n in row) for row in self.rows]
        return self.of_branch[tree]


elementary_weights = cache(ElementaryWeights)


def residual(
    tableau: ButcherTableau, weights: tuple[Fraction, ...], tree: Tree, target: Fraction
) -> float:
    """`|sum_i weights_i Phi_i(tree) - target|`: computed exactly, then rounded once."""
    numerators, denominator = over_common_denominator(weights)
    denominator *= elementary_weights(tableau).denominator ** (size(tree) - 1)
    # `weights` is shorter than `phi` where it has no entries for extra stages.
    phi = elementary_weights(tableau).tree(tree)
    total = sum(n * x for n, x in zip(numerators, phi, strict=False) if n)
    return abs(total * target.denominator - target.numerator * denominator) / (
        denominator * target.denominator
    )


def largest_residual(
    tableau: ButcherTableau, weights: tuple[Fraction, ...], order: int, theta: Fraction = ONE
) -> float:
    """The largest residual of all order conditions of one order, for a step of length theta h."""
    return max(
        residual(tableau, weights, tree, theta**order / density(tree)) for tree in trees(order)
    )


def largest_dense_residual(tableau: ButcherTableau, order: int) -> float:
    return max(
        largest_residual(tableau, weights_at(tableau.dense, theta), order, theta)
        for theta in THETAS
    )


@cache
def weights_at(dense: DenseOutput, theta: Fraction) -> tuple[Fraction, ...]:
    """b_i(theta)."""
    return tuple(
        sum((value * theta**p for p, value in enumerate(row, start=1)), ZERO)
        for row in dense.coefficients
    )


def slopes_at(dense: DenseOutput, theta: int) -> tuple[Fraction, ...]:
    """The derivatives of b_i at theta."""
    return tuple(
        sum((p * value * theta ** (p - 1) for p, value in enumerate(row, start=1)), ZERO)
        for row in dense.coefficients
    )


def unit(length: int, position: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(int(i == position)) for i in range(length))


def distance(x: tuple[Fraction, ...], y: tuple[Fraction, ...]) -> float:
    return float(max(abs(a - b) for a, b in zip(x, y, strict=True)))


def test_number_of_trees() -> None:
    # https://oeis.org/A000081
    numbers = [len(trees(order)) for order in range(1, 11)]
    assert numbers == [1, 1, 2, 4, 9, 20, 48, 115, 286, 719]
    assert all(size(tree) == order for order in range(1, 11) for tree in trees(order))
    assert all(len(set(trees(order))) == len(trees(order)) for order in range(1, 11))


@methods
def test_order(method: type[AbstractExplicitRK]) -> None:
    tableau, (tolerance, _, _) = method.tableau, TOLERANCES[method]
    for order in range(1, tableau.order + 1):
        assert largest_residual(tableau, tableau.b, order) <= tolerance
    assert largest_residual(tableau, tableau.b, tableau.order + 1) > VIOLATED


@methods
def test_embedded_order(method: type[AbstractExplicitRK]) -> None:
    tableau, (_, tolerance, _) = method.tableau, TOLERANCES[method]
    if tableau.embedded_order is None or tableau.b_error is None:
        assert method in (Euler, RK4)
        return
    b_hat = tuple(b - error for b, error in zip(tableau.b, tableau.b_error, strict=True))
    for order in range(1, tableau.embedded_order + 1):
        assert largest_residual(tableau, b_hat, order) <= tolerance
    assert largest_residual(tableau, b_hat, tableau.embedded_order + 1) > VIOLATED


@pytest.mark.parametrize(("method", "unused"), [(Vern7, (7, 8)), (Vern9, (13, 14))])
def test_scale_of_error_estimate(method: type[AbstractExplicitRK], unused: tuple[int, ...]) -> None:
    # Any multiple of an error estimate satisfies the same conditions. Its scale is fixed by the
    # stages that the embedded method leaves out. (The other pairs are compared with Diffrax.)
    tableau = method.tableau
    assert tableau.b_error is not None
    assert all(tableau.b_error[i] == tableau.b[i] != 0 for i in unused)


@methods
def test_dense_order(method: type[AbstractExplicitRK]) -> None:
    tableau, (_, _, tolerance) = method.tableau, TOLERANCES[method]
    assert len(THETAS) > tableau.dense.degree
    for order in range(1, tableau.dense.order + 1):
        assert largest_dense_residual(tableau, order) <= tolerance
    assert largest_dense_residual(tableau, tableau.dense.order + 1) > VIOLATED


@methods
def test_dense_output_meets_both_ends(method: type[AbstractExplicitRK]) -> None:
    tableau, dense = method.tableau, method.tableau.dense
    # The published interpolant of Dopri8 misses its weights by 1e-12, in a direction that the
    # conditions up to its order do not see: they hold at theta = 1 up to 1e-17, see above.
    tolerance = 1e-12 if method is Dopri8 else TOLERANCES[method][2]
    rows = len(dense.coefficients)
    b = tableau.b + (ZERO,) * len(dense.extra_a)
    assert distance(weights_at(dense, ONE), b) <= tolerance
    # b'(0): exact, since the first column holds ones and zeros.
    assert slopes_at(dense, 0) == unit(rows, 0)
    # b'(1): continuously differentiable where f(t + h, y1) is a stage. By Markov's inequality the
    # derivative of an error of degree d on [0, 1] is at most 2 d^2 times that error.
    if tableau.fsal or dense.extra_a:
        f1 = tableau.stages - 1 if tableau.fsal else tableau.stages
        assert distance(slopes_at(dense, 1), unit(rows, f1)) <= 2 * dense.degree**2 * tolerance


@methods
def test_nodes(method: type[AbstractExplicitRK]) -> None:
    # Rounding of the published numbers: 1e-17 for the fractions of Dopri8, much less otherwise.
    assert distance(method.tableau.c, rationals(NODES[method])) < 1e-15
    extra_nodes = rationals(EXTRA_NODES.get(method, ""))
    assert len(method.tableau.dense.extra_c) == len(extra_nodes)
    if extra_nodes:
        assert distance(method.tableau.dense.extra_c, extra_nodes) < 1e-15


@methods
def test_first_same_as_last(method: type[AbstractExplicitRK]) -> None:
    tableau = method.tableau
    assert tableau.fsal == (method in (Bosh3, Dopri5, Tsit5, Dopri8))
    if tableau.dense.extra_a:
        # f(t + h, y1) is the first extra stage.
        assert tableau.dense.extra_a[0] == tableau.b


@pytest.mark.parametrize("method", [Midpoint, Heun, Ralston, Bosh3, Dopri5, Tsit5, Dopri8])
def test_agrees_with_diffrax(method: type[AbstractExplicitRK]) -> None:
    ours, theirs = method.tableau, getattr(diffrax, method.__name__).tableau
    for row, their_row in zip(ours.a[1:], theirs.a_lower, strict=True):
        np.testing.assert_array_equal(floats(row), their_row)
    np.testing.assert_array_equal(floats(ours.b), theirs.b_sol)
    np.testing.assert_array_equal(floats(ours.c[1:]), theirs.c)
    # These are stored as b_hat - b there, which changes no norm.
    sign = -1 if method in (Midpoint, Heun, Ralston) else 1
    # There, the difference of two rounded numbers of size up to 3.3.
    assert ours.b_error is not None
    np.testing.assert_allclose(floats(ours.b_error), sign * theirs.b_error, rtol=0, atol=4e-16)


def floats(numbers: tuple[Fraction, ...]) -> np.ndarray:
    return np.array([float(number) for number in numbers])


def test_value_semantics() -> None:
    tableaus = [method.tableau for method in TOLERANCES]
    assert len(set(tableaus)) == len(tableaus)
    for tableau in tableaus:
        _ = tableau.c, tableau.dense.extra_c  # remembered by the object, but no part of its value
        copy = pickle.loads(pickle.dumps(tableau))
        assert copy is not tableau
        assert copy == tableau
        assert hash(copy) == hash(tableau)
        assert hash(copy.dense) == hash(tableau.dense)
    without_estimate = dataclasses.replace(Heun.tableau, embedded_order=None, b_error=None)
    assert without_estimate != Heun.tableau
    with pytest.raises(dataclasses.FrozenInstanceError):
        Heun.tableau.order = 3


def test_rationals() -> None:
    assert rationals("1/2 -0.161 3\n 2e-1") == tuple(
        Fraction(p, q) for p, q in ((1, 2), (-161, 1000), (3, 1), (1, 5))
    )
    assert rationals("-10/\n  4 1 /3") == (Fraction(-5, 2), Fraction(1, 3))
    assert rationals("") == ()
    with pytest.raises(ValueError, match="Invalid literal"):
        rationals("1/2, 3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": 0}, "order of a method must be positive, got 0"),
        ({"embedded_order": None}, "given together or not at all"),
        ({"b_error": None}, "given together or not at all"),
        ({"embedded_order": 0}, "`embedded_order` must be positive"),
        ({"a": ()}, "at least one stage"),
        ({"a": ((), rationals("1 0"))}, "Row 1 of `a` must have 1 entries, got 2"),
        ({"a": ((),)}, "`b` must have 1 entries, got 2"),
        ({"b": rationals("1")}, "`b` must have 2 entries, got 1"),
        ({"b_error": rationals("-1/2 1/2 0")}, "`b_error` must have 2 entries, got 3"),
        ({"dense": Euler.tableau.dense}, "method with 1 stages, got 2"),
    ],
)
def test_invalid_tableau(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Heun.tableau, **changes)


@pytest.mark.parametrize(
    ("order", "coefficients", "extra_a", "message"),
    [
        (0, (rationals("1"),), (), "order of a dense output must be positive"),
        (1, (), (), "one row per stage"),
        (1, (rationals("1"),), (rationals("1"),), "got 1 rows and 1 extra stages"),
        (1, ((),), (), "at least one column"),
        (1, (rationals("1 0"), rationals("0")), (), "Row 1 of .* must have 2 entries, got 1"),
        (
            1,
            (rationals("1"), rationals("0"), rationals("0")),
            (rationals("1"), rationals("1")),
            "Row 1 of `extra_a` must have 2 entries, got 1",
        ),
    ],
)
def test_invalid_dense_output(
    order: int,
    coefficients: tuple[tuple[Fraction, ...], ...],
    extra_a: tuple[tuple[Fraction, ...], ...],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        DenseOutput(order, coefficients, extra_a)


@pytest.mark.parametrize("method", [Euler, Heun, RK4, Bosh3, Dopri5])
def test_cubic_hermite(method: type[AbstractExplicitRK]) -> None:
    own = method.tableau
    dense = cubic_hermite(own.a, own.b, own.order)
    tableau = dataclasses.replace(own, dense=dense)
    assert dense.order == min(own.order, 3)
    assert dense.extra_a == (() if own.fsal else (own.b,))
    for order in range(1, dense.order + 1):
        assert largest_dense_residual(tableau, order) == 0
    assert largest_dense_residual(tableau, dense.order + 1) > VIOLATED
    rows = len(dense.coefficients)
    assert weights_at(dense, ONE) == own.b + (ZERO,) * len(dense.extra_a)
    assert slopes_at(dense, 0) == unit(rows, 0)
    assert slopes_at(dense, 1) == unit(rows, rows - 1)


def test_cubic_hermite_is_the_dense_output_of_bosh3() -> None:
    tableau = Bosh3.tableau
    assert cubic_hermite(tableau.a, tableau.b, tableau.order) == tableau.dense
