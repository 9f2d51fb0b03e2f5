"""Shampine and Reichelt's second order method with a third order comparison, that of `ode23s`."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The method is irrational: gamma = 1 - 1/sqrt(2). Its numbers are closed forms with 50 digits.
(_gamma,) = rationals("0.29289321881345247559915563789515096071516406231153")

_tableau = RosenbrockTableau(
    order=2,
    embedded_order=3,
    gamma=_gamma,
    a=(
        (),
        rationals("1.7071067811865475244008443621048490392848359376885"),
        rationals(
            """
            3.4142135623730950488016887242096980785696718753769
            3.4142135623730950488016887242096980785696718753769
            """
        ),
    ),
    C=(
        (),
        rationals("-3.4142135623730950488016887242096980785696718753769"),
        rationals(
            """
            -6.8284271247461900976033774484193961571393437507539
            -25.313708498984760390413509793677584628557375003016
            """
        ),
    ),
    c=rationals("0 1/2 1"),
    d=rationals(
        """
        0.29289321881345247559915563789515096071516406231153 0
        -0.29289321881345247559915563789515096071516406231153
        """
    ),
    m=rationals(
        """
        3.4142135623730950488016887242096980785696718753769
        3.4142135623730950488016887242096980785696718753769 0
        """
    ),
    m_error=rationals(
        """
        -0.56903559372884917480028145403494967976161197922949
        -3.0808802290397617154683553908763647452363385420436
        -0.56903559372884917480028145403494967976161197922949
        """
    ),
    H=(rationals("0 -8.2426406871192851464050661726290942357090156261308 0"),),
    dense_order=2,
)


class Rosenbrock23(AbstractRosenbrock):
    """Shampine and Reichelt's second order method with a third order comparison, that of `ode23s`.

    Three stages, order 2, embedded order 3, L-stable. The dense output is the published quadratic.

    Use it for relative tolerances of about 1e-2 to 1e-3.

    ??? cite "Reference"

        L. F. Shampine and M. W. Reichelt, "The MATLAB ODE suite", SIAM Journal on Scientific
        Computing 18 (1997), 1-22. doi:10.1137/S1064827594276424
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
