"""Sandu and others' third order method for atmospheric chemistry."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The method is rational. No dense output is published: H is the quadratic that meets the conditions
# of order 2, of the two of order 3 also sum_i b_i(theta) c_i^2 = theta^3 / 3, and has order 2 in
# the stiff limit.
(_gamma,) = rationals("1/2")

_tableau = RosenbrockTableau(
    order=3,
    embedded_order=2,
    gamma=_gamma,
    a=(
        (),
        rationals("0"),
        rationals("2 0"),
        rationals("2 0 1"),
    ),
    C=(
        (),
        rationals("4"),
        rationals("1 -1"),
        rationals("1 -1 -8/3"),
    ),
    c=rationals("0 0 1 1"),
    d=rationals("1/2 3/2 0 0"),
    m=rationals("2 0 1 1"),
    m_error=rationals("0 0 0 1"),
    H=(
        rationals("3.0 -1.0 -1.0 -1.0"),
        rationals("0 0 0 2.0"),
    ),
    dense_order=2,
)


class Rodas3(AbstractRosenbrock):
    """Sandu and others' third order method for atmospheric chemistry.

    Four stages with three values of the field, order 3, embedded order 2, L-stable and stiffly
    accurate. The dense output is of order 2, in the stiff limit too.

    Use it for relative tolerances of about 1e-2 to 1e-4 on stiff chemical kinetics.

    ??? cite "Reference"

        A. Sandu, J. G. Verwer, J. G. Blom, E. J. Spee, G. R. Carmichael and F. A. Potra,
        "Benchmarking stiff ODE solvers for atmospheric chemistry problems II: Rosenbrock solvers",
        Atmospheric Environment 31 (1997), 3459-3472. doi:10.1016/S1352-2310(97)83212-8
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
