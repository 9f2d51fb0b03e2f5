"""Lang and Verwer's third order method for parabolic problems."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The method is irrational: gamma = 1/2 + sqrt(3)/6. Its numbers are closed forms with 50 digits. No
# dense output is published: H is the quadratic that meets the conditions of order 2 and, of the two
# of order 3, also sum_i b_i(theta) c_i^2 = theta^3 / 3.
(_gamma,) = rationals("0.78867513459481288225457439025097872782380087563506")

_tableau = RosenbrockTableau(
    order=3,
    embedded_order=2,
    gamma=_gamma,
    a=(
        (),
        rationals("1.2679491924311227064725536584941276330571947461896"),
        rationals("1.2679491924311227064725536584941276330571947461896 0"),
    ),
    C=(
        (),
        rationals("-1.6076951545867362388353219509647657983431684771377"),
        rationals(
            """
            -3.4641016151377545870548926830117447338856105076208
            -1.7320508075688772935274463415058723669428052538104
            """
        ),
    ),
    c=rationals("0 1 1"),
    d=rationals(
        """
        0.78867513459481288225457439025097872782380087563506
        -0.21132486540518711774542560974902127217619912436494
        -1.0773502691896257645091487805019574556476017512701
        """
    ),
    m=rationals(
        """
        2 0.57735026918962576450914878050195745564760175127013
        0.42264973081037423549085121949804254435239824872987
        """
    ),
    m_error=rationals(
        """
        -0.11324865405187117745425609749021272176199124364937
        -0.42264973081037423549085121949804254435239824872987 0
        """
    ),
    H=(
        rationals(
            """
            0.9585481156726196484359585364862978104668 -0.1547005383792515290182975610039149112952
            0.7320508075688772935274463415058723669428
            """
        ),
        rationals(
            """
            -0.113248654051871177454256097490212721762 -0.4226497308103742354908512194980425443524
            0
            """
        ),
    ),
    dense_order=2,
)


class Ros3p(AbstractRosenbrock):
    """Lang and Verwer's third order method for parabolic problems.

    Three stages with two values of the field, order 3, embedded order 2, A-stable. The dense output
    is of order 2.

    Use it for relative tolerances of about 1e-2 to 1e-4 on semidiscretised partial differential
    equations, where other methods of order 3 lose a part of their order.

    ??? cite "Reference"

        J. Lang and J. Verwer, "ROS3P: an accurate third-order Rosenbrock solver designed for
        parabolic problems", BIT Numerical Mathematics 41 (2001), 731-738.
        doi:10.1023/A:1021900219772
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
