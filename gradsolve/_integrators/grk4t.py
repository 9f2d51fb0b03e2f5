"""Kaps and Rentrop's fourth order method."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The numbers are published with 13 to 16 digits. No dense output is published: H is the quadratic
# that meets the conditions of order 2, of the two of order 3 also sum_i b_i(theta) c_i^2 = theta^3
# / 3, and has R(infinity, theta) = 1 - theta + theta R(infinity).
(_gamma,) = rationals("231/1000")

_tableau = RosenbrockTableau(
    order=4,
    embedded_order=3,
    gamma=_gamma,
    a=(
        (),
        rationals("2"),
        rationals("4.524708207373116 4.163528788597648"),
        rationals("4.524708207373116 4.163528788597648 0"),
    ),
    C=(
        (),
        rationals("-5.071675338776316"),
        rationals("6.020152728650786 0.1597506846727117"),
        rationals("-1.856343618686113 -8.505380858179826 -2.084075136023187"),
    ),
    c=rationals("0 231/500 0.8802083333333334 0.8802083333333334"),
    d=rationals("231/1000 -0.03962966775244303 0.5507789395789127 -0.05535098457052764"),
    m=rationals("3.957503746640777 4.624892388363313 0.6174772638750108 1.282612945269037"),
    m_error=rationals("-2.302155402932996 -3.073634485392623 0.8732808018045032 1.282612945269037"),
    H=(
        rationals(
            """
            7.647590257399889110603636458928889075606 4.384121068437833450804620961967471011559
            -3.09441461077009601281853566241676738336 -2.014170311003134818865374082910874840974
            """
        ),
        rationals(
            """
            0.670564264473436132901527126129797833517 -3.404194085482935495441308939612494416911
            -1.06060966671649052622471011961976737121 -5.317954940806978978096686205271024603458
            """
        ),
    ),
    dense_order=2,
)


class GRK4T(AbstractRosenbrock):
    """Kaps and Rentrop's fourth order method.

    Four stages with three values of the field, order 4, embedded order 3. It is A(89.3
    degrees)-stable, not L-stable: a step leaves 0.45 of a very stiff component. The dense output is
    of order 2.

    Use it for relative tolerances of about 1e-3 to 1e-5 on moderately stiff problems.

    ??? cite "Reference"

        P. Kaps and P. Rentrop, "Generalized Runge-Kutta methods of order four with stepsize control
        for stiff ordinary differential equations", Numerische Mathematik 33 (1979), 55-68.
        doi:10.1007/BF01396495
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
