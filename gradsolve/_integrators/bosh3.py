"""Bogacki and Shampine's 3(2) pair."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

_b = rationals("2/9 1/3 4/9 0")

_tableau = ButcherTableau(
    order=3,
    embedded_order=2,
    a=(
        (),
        rationals("1/2"),
        rationals("0 3/4"),
        _b[:-1],
    ),
    b=_b,
    b_error=rationals("-5/72 1/12 1/9 -1/8"),
    dense=DenseOutput(
        order=3,
        coefficients=(
            rationals("1 -4/3 5/9"),
            rationals("0 1 -2/3"),
            rationals("0 4/3 -8/9"),
            rationals("0 -1 1"),
        ),
    ),
)


class Bosh3(AbstractExplicitRK):
    """Bogacki and Shampine's 3(2) pair.

    Four stages, of which the last is the first of the next step; order 3, embedded order 2. The
    dense output is the cubic Hermite interpolant, of order 3 and continuously differentiable.

    Use it for relative tolerances of about 1e-2 to 1e-4, and where the right-hand side has few
    derivatives.

    ??? cite "Reference"

        P. Bogacki and L. F. Shampine, "A 3(2) pair of Runge-Kutta formulas", Applied Mathematics
        Letters 2 (1989), 321-325. doi:10.1016/0893-9659(89)90079-7
    """

    tableau: ClassVar[ButcherTableau] = _tableau
