"""Euler's method."""

from typing import ClassVar

from ._explicit import AbstractExplicitRK
from ._tableau import ButcherTableau, DenseOutput, rationals

_tableau = ButcherTableau(
    order=1,
    embedded_order=None,
    a=((),),
    b=rationals("1"),
    b_error=None,
    dense=DenseOutput(
        order=1,
        coefficients=(rationals("1"),),
    ),
)


class Euler(AbstractExplicitRK):
    """Euler's method.

    One stage, order 1, no error estimate: for constant steps only. The dense output is linear, of
    order 1.

    Use it to test other code, or where the right-hand side is so rough that no method of higher
    order can do better.

    ??? cite "Reference"

        L. Euler, "Institutiones calculi integralis", volume 1, St. Petersburg (1768).
    """

    tableau: ClassVar[ButcherTableau] = _tableau
