"""Hairer and Wanner's fourth order method, RODAS."""

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
        rationals("193/125"),
        rationals("0.9466785280815826 0.2557011698983284"),
        rationals("3.314825187068521 2.896124015972201 0.9986419139977817"),
        rationals(
            """
            1.221224509226641 6.019134481288629 12.53708332932087 -0.687886036105895
            """
        ),
        rationals(
            """
            1.221224509226641 6.019134481288629 12.53708332932087 -0.687886036105895 1
            """
        ),
    ),
    C=(
        (),
        rationals("-3543/625"),
        rationals("-2.430093356833875 -0.2063599157091915"),
        rationals("-0.1073529058151375 -9.594562251023355 -20.47028614809616"),
        rationals(
            """
            7.496443313967647 -10.24680431464352 -33.99990352819905 11.7089089320616
            """
        ),
        rationals(
            """
            8.083246795921522 -7.981132988064893 -31.52159432874371 16.31930543123136
            -6.058818238834054
            """
        ),
    ),
    c=rationals("0 193/500 21/100 63/100 1 1"),
    d=rationals("1/4 -1043/10000 207/2000 -181/5000 0 0"),
    m=rationals(
        """
        1.221224509226641 6.019134481288629 12.53708332932087 -0.687886036105895 1 1
        """
    ),
    m_error=rationals("0 0 0 0 0 1"),
    H=(
        rationals(
            """
            10.12623508344586 -7.487995877610167 -34.80091861555747 -7.992771707568823
            1.025137723295662 0
            """
        ),
        rationals(
            """
            -0.6762803392801253 6.087714651680015 16.43084320892478 24.76722511418386
            -6.594389125716872 0
            """
        ),
    ),
    dense_order=3,
)


class Rodas4(AbstractRosenbrock):
    """Hairer and Wanner's fourth order method, RODAS.

    Six stages, order 4, embedded order 3, L-stable and stiffly accurate. The dense output is of
    order 3.

    Use it for relative tolerances of about 1e-4 to 1e-6.

    ??? cite "Reference"

        E. Hairer and G. Wanner, *Solving Ordinary Differential Equations II*, second edition,
        Springer, 1996, section IV.7.
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
