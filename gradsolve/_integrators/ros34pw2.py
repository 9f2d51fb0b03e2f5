"""Rang and Angermann's third order W-method."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The numbers are published with 16 digits. No dense output is published: H is the only cubic of
# order 3 from the four stages.
(_gamma,) = rationals("0.435866521508459")

_tableau = RosenbrockTableau(
    order=3,
    embedded_order=2,
    gamma=_gamma,
    a=(
        (),
        rationals("2"),
        rationals("1.4192173174557647 -0.2592322116729697"),
        rationals("4.18476048231916 -0.28519201735549593 2.294280360279042"),
    ),
    C=(
        (),
        rationals("-4.588560720558084"),
        rationals("-4.18476048231916 0.28519201735549593"),
        rationals("-6.368179200128359 -6.795620944466837 2.8700986043310563"),
    ),
    c=rationals("0 0.871733043016918 0.7315799577888524 1"),
    d=rationals(
        """
        0.435866521508459 -0.435866521508459 -0.4133333762338865
        -0.00000000000000005551115123125783
        """
    ),
    m=rationals("4.1847604823191595 -0.28519201735549565 2.2942803602790414 1"),
    m_error=rationals("0.2777499476479681 -1.4032398951759992 1.7726301276675507 1/2"),
    H=(
        rationals(
            """
            -3.352101459164773906519536269368109912365 -1.176429319769140489304481449248114716159
            -2.294280360279063403731160419898051593578 -3.398120075195584862887246446363393526048
            """
        ),
        rationals(
            """
            1.168682741355575951291792696045830329617 -5.90438364205320054757702532253284032512
            7.45865932488917165854662364925361276511 2.103839714916542957737943857507742890067
            """
        ),
    ),
    dense_order=3,
)


class ROS34PW2(AbstractRosenbrock):
    """Rang and Angermann's third order W-method.

    Four stages, order 3 with any matrix in place of the Jacobian, embedded order 2, L-stable and
    stiffly accurate. The dense output is of order 3.

    Use it for relative tolerances of about 1e-3 to 1e-5 on partial differential-algebraic
    equations.

    ??? cite "Reference"

        J. Rang and L. Angermann, "New Rosenbrock W-methods of order 3 for partial differential
        algebraic equations of index 1", BIT Numerical Mathematics 45 (2005), 761-787.
        doi:10.1007/s10543-005-0035-y
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
