"""The explicit midpoint method."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

_tableau = ButcherTableau(
    order=2,
    embedded_order=1,
    a=(
        (),
        rationals("1/2"),
    ),
    b=rationals("0 1"),
    b_error=rationals("-1 1"),
    dense=DenseOutput(
        order=2,
        coefficients=(
            rationals("1 -1"),
            rationals("0 1"),
        ),
    ),
)


class Midpoint(AbstractExplicitRK):
    """The explicit midpoint method.

    Two stages, order 2, with Euler's method embedded. The dense output is quadratic, of order 2.

    Use it where a few percent of accuracy suffice. The embedded method is of order 1 only, so
    that with adaptive steps `Bosh3` is usually the better choice. Also known as the modified Euler
    method.

    ??? cite "References"

        C. Runge, "Ueber die numerische Auflösung von Differentialgleichungen", Mathematische
        Annalen 46 (1895), 167-178. doi:10.1007/BF01446807

        The dense output is the natural continuous extension of M. Zennaro, "Natural continuous
        extensions of Runge-Kutta methods", Mathematics of Computation 46 (1986), 119-133.
        doi:10.1090/S0025-5718-1986-0815835-1
    """

    tableau: ClassVar[ButcherTableau] = _tableau
