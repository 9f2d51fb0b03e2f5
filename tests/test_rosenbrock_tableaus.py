"""Rosenbrock tableaus are proved by arithmetic: exact order conditions over all rooted trees."""

import dataclasses
import math
import pickle
from fractions import Fraction

import pytest

from gradsolve._integrators import RosenbrockTableau
from tests.helpers import ROSENBROCK
from tests.test_tableaus import density, size, trees

ZERO, ONE = Fraction(0), Fraction(1)

# The largest admissible residual of a condition: zero up to the 50 digits of closed forms, or one
# unit of the last published digit (13 to 16 of them) of numbers up to 30, many of which cancel.
TOLERANCES = {
    "Rosenbrock23": 1e-47,
    "Ros3p": 1e-38,
    "Rodas3": 1e-48,
    "ROS34PW2": 1e-14,
    "GRK4T": 1e-14,
    "Rodas4": 1e-14,
    "Rodas4P": 1e-14,
    "Rodas5P": 1e-13,
}
VIOLATED = 1e-3
THETAS = tuple(Fraction(k, 10) for k in range(1, 11))

methods = pytest.mark.parametrize("integrator", ROSENBROCK, ids=lambda i: type(i).__name__)


def full(rows, stages):
    return [[*row, *[ZERO] * (stages - len(row))] for row in rows]


def times(x, y):
    """The product of two matrices."""
    return [
        [sum((a * b for a, b in zip(row, col, strict=True)), ZERO) for col in zip(*y)] for row in x
    ]


class Classical:
    """The classical coefficients: `Gamma^-1 = I / gamma - C`, `alpha = A Gamma`, `b = m Gamma`."""

    def __init__(self, tableau):
        s = tableau.stages
        inverse = [
            [(1 / tableau.gamma if i == j else ZERO) - x for j, x in enumerate(row)]
            for i, row in enumerate(full(tableau.C, s))
        ]
        # The inverse of a triangular matrix, column by column.
        gamma = [[ZERO] * s for _ in range(s)]
        for j in range(s):
            for i in range(j, s):
                unit = ONE if i == j else ZERO
                known = sum((inverse[i][k] * gamma[k][j] for k in range(j, i)), ZERO)
                gamma[i][j] = (unit - known) / inverse[i][i]
        self.gamma = gamma
        self.alpha = times(full(tableau.a, s), gamma)
        self.beta = [
            [a + g for a, g in zip(*rows, strict=True)]
            for rows in zip(self.alpha, gamma, strict=True)
        ]

    def weights(self, row):
        return times([list(row)], self.gamma)[0]

    def elementary(self, tree):
        """`Phi_i(tree)`: below a vertex with one child stands beta, elsewhere alpha.

        Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.7.
        """
        matrix = self.beta if len(tree) == 1 else self.alpha
        out = [ONE] * len(matrix)
        for child in tree:
            below = self.elementary(child)
            for i, row in enumerate(matrix):
                out[i] *= sum((x * y for x, y in zip(row, below, strict=True)), ZERO)
        return out

    def residual(self, b, order, theta=ONE):
        """The largest residual among the conditions of one order."""
        return max(
            abs(
                sum((w * x for w, x in zip(b, self.elementary(tree), strict=True)), ZERO)
                - theta ** size(tree) / density(tree)
            )
            for tree in trees(order)
        )


@methods
def test_order_conditions(integrator):
    tableau = integrator.tableau
    tolerance = TOLERANCES[type(integrator).__name__]
    classical = Classical(tableau)
    embedded = [m - e for m, e in zip(tableau.m, tableau.m_error, strict=True)]
    pairs = ((tableau.m, tableau.order), (embedded, tableau.embedded_order))
    for row, order in pairs:
        b = classical.weights(row)
        for q in range(1, order + 1):
            assert classical.residual(b, q) <= tolerance
        assert classical.residual(b, order + 1) > VIOLATED


@methods
def test_dense_output(integrator):
    tableau = integrator.tableau
    tolerance = TOLERANCES[type(integrator).__name__]
    classical = Classical(tableau)
    dense = tableau.dense

    def at(theta):
        powers = [theta ** (p + 1) for p in range(dense.degree)]
        return [
            sum((x * power for x, power in zip(row, powers, strict=True)), ZERO)
            for row in dense.coefficients
        ]

    for theta in THETAS:
        b = classical.weights(at(theta))
        for q in range(1, dense.order + 1):
            assert classical.residual(b, q, theta) <= tolerance
    assert at(ONE) == list(tableau.m)


@methods
def test_nodes_and_slopes_are_row_sums(integrator):
    """That is what makes a method treat time as one more component of an autonomous system."""
    tableau = integrator.tableau
    tolerance = TOLERANCES[type(integrator).__name__]
    classical = Classical(tableau)
    for row, c in zip(classical.alpha, tableau.c, strict=True):
        assert abs(sum(row) - c) <= tolerance
    for row, d in zip(classical.gamma, tableau.d, strict=True):
        assert abs(sum(row) - d) <= tolerance


@methods
def test_damping_at_infinity(integrator):
    """`R(infinity) = 1 - b^T (alpha + Gamma)^-1 1`: zero for the L-stable methods."""
    classical = Classical(integrator.tableau)
    s = integrator.tableau.stages
    b = classical.weights(integrator.tableau.m)
    solution = [ZERO] * s
    for i in range(s):  # alpha + Gamma is triangular
        known = sum((classical.beta[i][j] * solution[j] for j in range(i)), ZERO)
        solution[i] = (1 - known) / classical.beta[i][i]
    at_infinity = float(1 - sum((x * y for x, y in zip(b, solution, strict=True)), ZERO))
    want = {"Ros3p": 1 - math.sqrt(3), "GRK4T": 0.454}.get(type(integrator).__name__, 0.0)
    assert at_infinity == pytest.approx(want, abs=5e-4 if want > 0 else 1e-9)


def test_equal_tableaus_are_one_key():
    tableau = ROSENBROCK[0].tableau
    copy = pickle.loads(pickle.dumps(tableau))
    assert copy == tableau
    assert hash(copy) == hash(tableau)
    assert len({each.tableau for each in ROSENBROCK}) == len(ROSENBROCK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": ZERO}, "`gamma` must be positive"),
        ({"order": 0}, "`order` must be positive"),
        ({"a": ((),)}, "one row per stage"),
        ({"c": (ZERO,)}, "`c` must have 3 entries"),
        ({"H": ()}, "`H` must have at least one row"),
    ],
)
def test_wrong_tableaus(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ROSENBROCK[0].tableau, **change)


def test_a_tableau_is_hashable():
    assert isinstance(hash(ROSENBROCK[-1].tableau), int)
    assert isinstance(ROSENBROCK[-1].tableau, RosenbrockTableau)
