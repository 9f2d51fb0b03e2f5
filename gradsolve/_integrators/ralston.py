"""Ralston's method of order 2."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

_tableau = ButcherTableau(
    order=2,
    embedded_order=1,
    a=(
        (),
        rationals("2/3"),
    ),
    b=rationals("1/4 3/4"),
    b_error=rationals("-3/4 3/4"),
    dense=DenseOutput(
        order=2,
        coefficients=(
            rationals("1 -3/4"),
            rationals("0 3/4"),
        ),
    ),
)


class Ralston(AbstractExplicitRK):
    """Ralston's method of order 2.

    Two stages, order 2, with Euler's method embedded. The dense output is quadratic, of order 2.

    Use it like `Midpoint`; among the methods with two stages it has the smallest bound of the
    local error. Its second node is 2/3.

    ??? cite "References"

        A. Ralston, "Runge-Kutta methods with minimum error bounds", Mathematics of Computation 16
        (1962), 431-437. doi:10.1090/S0025-5718-1962-0150954-0

        The dense output is the natural continuous extension of M. Zennaro, "Natural continuous
        extensions of Runge-Kutta methods", Mathematics of Computation 46 (1986), 119-133.
        doi:10.1090/S0025-5718-1986-0815835-1
    """

    tableau: ClassVar[ButcherTableau] = _tableau
