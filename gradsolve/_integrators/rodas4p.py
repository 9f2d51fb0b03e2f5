"""Steinebach's fourth order method for parabolic problems."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The numbers, those of the dense output too, are published with 16 digits.
(_gamma,) = rationals("1/4")

_tableau = RosenbrockTableau(
    order=4,
    embedded_order=3,
    gamma=_gamma,
    a=(
        (),
        rationals("3"),
        rationals("1.831036793486759 0.4955183967433795"),
        rationals("2.304376582692669 -0.05249275245743001 -1.176798761832782"),
        rationals(
            """
            -7.170454962423024 -4.741636671481785 -16.31002631330971 -1.062004044111401
            """
        ),
        rationals(
            """
            -7.170454962423024 -4.741636671481785 -16.31002631330971 -1.062004044111401 1
            """
        ),
    ),
    C=(
        (),
        rationals("-12"),
        rationals("-8.791795173947035 -2.207865586973518"),
        rationals("10.81793056857153 6.780270611428266 19.5348594464241"),
        rationals("34.19095006749676 15.49671153725963 54.7476087596413 14.16005392148534"),
        rationals(
            """
            34.62605830930532 15.30084976114473 56.99955578662667 18.40807009793095
            -5.714285714285717
            """
        ),
    ),
    c=rationals("0 3/4 21/100 63/100 1 1"),
    d=rationals("1/4 -1/2 -1469/62500 -181/5000 0 0"),
    m=rationals(
        """
        -7.170454962423024 -4.741636671481785 -16.31002631330971 -1.062004044111401 1 1
        """
    ),
    m_error=rationals("0 0 0 0 0 1"),
    H=(
        rationals(
            """
            25.09876703708589 11.62013104361867 28.49148307714626 -5.664021568594133 0 0
            """
        ),
        rationals(
            """
            1.638054557396973 -0.7373619806678748 8.47791821923899 15.9925314877952
            -1.882352941176471 0
            """
        ),
    ),
    dense_order=3,
)


class Rodas4P(AbstractRosenbrock):
    """Steinebach's fourth order method for parabolic problems.

    Six stages, order 4, embedded order 3, L-stable and stiffly accurate; it keeps its order on
    linear parabolic problems. The dense output is of order 3.

    Use it for relative tolerances of about 1e-4 to 1e-6 on semidiscretised partial differential
    equations and differential-algebraic equations.

    ??? cite "Reference"

        G. Steinebach, "Order-reduction of ROW-methods for DAEs and method of lines applications",
        Preprint 1741, Technische Hochschule Darmstadt, 1995.
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
