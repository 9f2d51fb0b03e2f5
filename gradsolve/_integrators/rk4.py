"""The classical Runge-Kutta method."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

_tableau = ButcherTableau(
    order=4,
    embedded_order=None,
    a=(
        (),
        rationals("1/2"),
        rationals("0 1/2"),
        rationals("0 0 1"),
    ),
    b=rationals("1/6 1/3 1/3 1/6"),
    b_error=None,
    dense=DenseOutput(
        order=3,
        coefficients=(
            rationals("1 -3/2 2/3"),
            rationals("0 1 -2/3"),
            rationals("0 1 -2/3"),
            rationals("0 -1/2 2/3"),
        ),
    ),
)


class RK4(AbstractExplicitRK):
    """The classical Runge-Kutta method.

    Four stages, order 4, no error estimate: for constant steps only. The dense output is cubic, of
    order 3.

    Use it where the steps are prescribed, for example to reproduce results of other programs.

    ??? cite "References"

        W. Kutta, "Beitrag zur näherungsweisen Integration totaler Differentialgleichungen",
        Zeitschrift für Mathematik und Physik 46 (1901), 435-453.

        The dense output is the natural continuous extension of M. Zennaro, "Natural continuous
        extensions of Runge-Kutta methods", Mathematics of Computation 46 (1986), 119-133.
        doi:10.1090/S0025-5718-1986-0815835-1
    """

    tableau: ClassVar[ButcherTableau] = _tableau
