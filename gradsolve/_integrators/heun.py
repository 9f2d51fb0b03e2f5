"""Heun's method of order 2."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

_tableau = ButcherTableau(
    order=2,
    embedded_order=1,
    a=(
        (),
        rationals("1"),
    ),
    b=rationals("1/2 1/2"),
    b_error=rationals("-1/2 1/2"),
    dense=DenseOutput(
        order=2,
        coefficients=(
            rationals("1 -1/2"),
            rationals("0 1/2"),
        ),
    ),
)


class Heun(AbstractExplicitRK):
    """Heun's method of order 2, the explicit trapezoidal rule.

    Two stages, order 2, with Euler's method embedded. The dense output is quadratic, of order 2.

    Use it like `Midpoint`; it evaluates the right-hand side at both ends of the step instead of
    the middle, and so preserves strong stability (it is the SSP method of order 2). Also known as
    the improved Euler method.

    ??? cite "References"

        K. Heun, "Neue Methoden zur approximativen Integration der Differentialgleichungen einer
        unabhängigen Veränderlichen", Zeitschrift für Mathematik und Physik 45 (1900), 23-38.

        The dense output is the natural continuous extension of M. Zennaro, "Natural continuous
        extensions of Runge-Kutta methods", Mathematics of Computation 46 (1986), 119-133.
        doi:10.1090/S0025-5718-1986-0815835-1
    """

    tableau: ClassVar[ButcherTableau] = _tableau
