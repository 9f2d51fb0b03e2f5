"""Dormand and Prince's 5(4) pair."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

# The error weights are those of Shampine (1986), two thirds of those of Dormand and Prince (1980).
_b = rationals("35/384 0 500/1113 125/192 -2187/6784 11/84 0")

_tableau = ButcherTableau(
    order=5,
    embedded_order=4,
    a=(
        (),
        rationals("1/5"),
        rationals("3/40 9/40"),
        rationals("44/45 -56/15 32/9"),
        rationals("19372/6561 -25360/2187 64448/6561 -212/729"),
        rationals("9017/3168 -355/33 46732/5247 49/176 -5103/18656"),
        _b[:-1],
    ),
    b=_b,
    b_error=rationals("71/86400 0 -142/50085 71/2880 -5751/169600 44/1575 -1/60"),
    dense=DenseOutput(
        order=4,
        coefficients=(
            rationals("1 -8048581381/2820520608 8663915743/2820520608 -12715105075/11282082432"),
            rationals("0 0 0 0"),
            rationals(
                """
                0 131558114200/32700410799 -68118460800/10900136933 87487479700/32700410799
                """
            ),
            rationals("0 -1754552775/470086768 14199869525/1410260304 -10690763975/1880347072"),
            rationals(
                """
                0 127303824393/49829197408 -318862633887/49829197408 701980252875/199316789632
                """
            ),
            rationals("0 -282668133/205662961 2019193451/616988883 -1453857185/822651844"),
            rationals("0 40617522/29380423 -110615467/29380423 69997945/29380423"),
        ),
    ),
)


class Dopri5(AbstractExplicitRK):
    """Dormand and Prince's 5(4) pair.

    Seven stages, of which the last is the first of the next step; order 5, embedded order 4. The
    dense output is of order 4 and continuously differentiable.

    Use it for relative tolerances of about 1e-3 to 1e-8, to compare with other programs, most of
    which offer this pair; `Tsit5` is usually slightly more accurate for the same work. The embedded
    method is the one that Shampine proposed; its error estimate is two thirds of the original one.

    ??? cite "References"

        J. R. Dormand and P. J. Prince, "A family of embedded Runge-Kutta formulae", Journal of
        Computational and Applied Mathematics 6 (1980), 19-26. doi:10.1016/0771-050X(80)90013-3

        Error estimate and dense output: L. F. Shampine, "Some practical Runge-Kutta formulas",
        Mathematics of Computation 46 (1986), 135-150. doi:10.2307/2008219
    """

    tableau: ClassVar[ButcherTableau] = _tableau
