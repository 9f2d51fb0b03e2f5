"""The coefficients of explicit Runge-Kutta methods, as exact rational numbers."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


def rationals(text: str) -> tuple[Fraction, ...]:
    """Reads numbers exactly as they are published.

    **Arguments:**

    - `text`: integers, fractions and decimals separated by white space, for example
        `"-1/2 0.161 3"`. A line may be broken before or after the slash of a fraction.

    **Returns:**

    The numbers in their order. Nothing is rounded: `"0.161"` is 161/1000.
    """
    return tuple(map(Fraction, re.sub(r"\s*/\s*", "/", text).split()))


def check_row(name: str, row: tuple[Fraction, ...], length: int) -> None:
    """Refuses a row that is no tuple of `length` exact numbers."""
    # A list would make the tableau unhashable, a float would make it inexact; both are easily
    # written by hand, and neither would be noticed before something far away fails.
    if not isinstance(row, tuple):
        raise ValueError(f"{name} must be a tuple, got a {type(row).__name__}.")
    if len(row) != length:
        raise ValueError(f"{name} must have {length} entries, got {len(row)}.")
    for value in row:
        if not isinstance(value, Fraction):
            raise ValueError(f"{name} must consist of fractions.Fraction, got {value!r}.")


@dataclass(frozen=True)
class DenseOutput:
    r"""The polynomials that give the solution inside a step.

    With the stages $k_i$ of a step from $t$ to $t + h$,

    $$y(t + \theta h) = y(t) + h \sum_i b_i(\theta) k_i,
    \qquad b_i(\theta) = \sum_{p=1}^{d} \mathtt{coefficients}_{i,p-1}\, \theta^p,
    \qquad 0 \le \theta \le 1,$$

    where the sum runs over the $s$ stages of the method and then over the extra stages

    $$k_{s+j} = f\Big(t + \mathtt{extra\_c}_j h,\;
    y(t) + h \sum_{l < s+j} \mathtt{extra\_a}_{j,l} k_l\Big).$$

    Extra stages are evaluated only where dense output is asked for.

    Hashable and compared by value; never a pytree leaf.

    **Arguments:**

    - `order`: the interpolant differs from the exact solution through $y(t)$ by
        $O(h^{\mathtt{order}+1})$.
    - `coefficients`: one row per stage, then one per extra stage; all rows have the same length,
        the degree $d$. There is no constant term, since $y(t + 0 h) = y(t)$.
    - `extra_a`: the rows of the extra stages; row `j` has `s + j` entries.
    """

    order: int
    coefficients: tuple[tuple[Fraction, ...], ...]
    extra_a: tuple[tuple[Fraction, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.order < 1:
            raise ValueError(f"The order of a dense output must be positive, got {self.order}.")
        if len(self.coefficients) <= len(self.extra_a):
            raise ValueError(
                "`coefficients` must have one row per stage and one per row of `extra_a`, got "
                f"{len(self.coefficients)} rows and {len(self.extra_a)} extra stages."
            )
        if self.degree < 1:
            raise ValueError("`coefficients` must have at least one column.")
        for i, row in enumerate(self.coefficients):
            check_row(f"Row {i} of `coefficients`", row, self.degree)
        for j, row in enumerate(self.extra_a):
            check_row(f"Row {j} of `extra_a`", row, self.stages + j)

    @property
    def stages(self) -> int:
        """The number of stages of the method, without the extra ones."""
        return len(self.coefficients) - len(self.extra_a)

    @property
    def degree(self) -> int:
        """The degree of the polynomials."""
        return len(self.coefficients[0])

    @cached_property
    def extra_c(self) -> tuple[Fraction, ...]:
        """The nodes of the extra stages: the row sums of `extra_a`."""
        return tuple(sum(row, Fraction(0)) for row in self.extra_a)


@dataclass(frozen=True)
class ButcherTableau:
    r"""The coefficients of an explicit Runge-Kutta method.

    One step from $(t, y_0)$ to $(t + h, y_1)$ of $y' = f(t, y)$ is

    $$k_i = f\Big(t + c_i h,\; y_0 + h \sum_{j<i} a_{ij} k_j\Big),\qquad
    y_1 = y_0 + h \sum_i b_i k_i,\qquad
    \mathtt{error} = h \sum_i \mathtt{b\_error}_i k_i.$$

    Drawn as usual, with `b_hat = b - b_error` for the embedded method:

        c[0] |
        c[1] | a[1][0]
        c[2] | a[2][0]  a[2][1]
         :   |    :        :
        -----+--------------------------
             | b[0]     b[1]     ...  b[s-1]
             | b_hat[0] b_hat[1] ...  b_hat[s-1]

    Hashable and compared by value; never a pytree leaf. The numbers are exact; whoever evaluates
    a method rounds them once, to the precision it computes in.

    **Arguments:**

    - `order`: the order of `b`.
    - `embedded_order`: the order of `b - b_error`, or `None` without an error estimate.
    - `a`: row `i` holds the `i` entries below the diagonal, so the first row is `()`.
    - `b`: the weights of the step.
    - `b_error`: the weights of the error itself, not of a second solution; or `None`.
    - `dense`: the dense output.
    """

    order: int
    embedded_order: int | None
    a: tuple[tuple[Fraction, ...], ...]
    b: tuple[Fraction, ...]
    b_error: tuple[Fraction, ...] | None
    dense: DenseOutput

    def __post_init__(self) -> None:
        if self.order < 1:
            raise ValueError(f"The order of a method must be positive, got {self.order}.")
        if (self.embedded_order is None) != (self.b_error is None):
            raise ValueError("`embedded_order` and `b_error` must be given together or not at all.")
        if self.embedded_order is not None and self.embedded_order < 1:
            raise ValueError(f"`embedded_order` must be positive, got {self.embedded_order}.")
        if not self.a:
            raise ValueError("A method needs at least one stage, got an empty `a`.")
        for i, row in enumerate(self.a):
            check_row(f"Row {i} of `a`", row, i)
        check_row("`b`", self.b, self.stages)
        if self.b_error is not None:
            check_row("`b_error`", self.b_error, self.stages)
        if self.dense.stages != self.stages:
            raise ValueError(
                f"`dense` is for a method with {self.dense.stages} stages, got {self.stages}."
            )

    # The weights alone tell methods apart. Hashing all numbers of a large tableau would take a
    # millisecond, each time that it is part of the key of a compiled program.
    def __hash__(self) -> int:
        return hash((self.order, self.b))

    @property
    def stages(self) -> int:
        """The number of stages, without the extra stages of the dense output."""
        return len(self.a)

    @cached_property
    def c(self) -> tuple[Fraction, ...]:
        """The nodes: the row sums of `a`.

        They differ from the published nodes by the rounding of published decimals, at most. Row
        sums are what makes a method treat `y' = f(t, y)` as the autonomous system in `(t, y)`.
        """
        return tuple(sum(row, Fraction(0)) for row in self.a)

    @property
    def fsal(self) -> bool:
        """Whether the last stage is `f(t + h, y1)`, the first stage of the next step."""
        return _is_fsal(self.a, self.b)


def _is_fsal(a: tuple[tuple[Fraction, ...], ...], b: tuple[Fraction, ...]) -> bool:
    # Exact, also for irrational methods: their last row is written as `_b[:-1]`, once.
    return a[-1] == b[:-1] and b[-1] == 0


def cubic_hermite(
    a: tuple[tuple[Fraction, ...], ...], b: tuple[Fraction, ...], order: int
) -> DenseOutput:
    r"""The cubic through both ends of a step, for methods without a dense output of their own.

    The polynomial with the values $y_0, y_1$ and the slopes $f_0, f_1$ at the ends is

    $$y(t + \theta h) = y_0 + \theta^2 (3 - 2\theta) (y_1 - y_0)
    + \theta (\theta - 1)^2 h f_0 + \theta^2 (\theta - 1) h f_1.$$

    Here $y_1 - y_0 = h \sum_i b_i k_i$ and $f_0 = k_0$, and $f_1 = f(t + h, y_1)$ is the last stage
    of a first-same-as-last method, or else one extra stage whose row is $b$. Hence

    $$b_i(\theta) = \theta^2 (3 - 2\theta) b_i
    + [k_i = f_0]\, \theta (\theta - 1)^2 + [k_i = f_1]\, \theta^2 (\theta - 1).$$

    **Arguments:**

    - `a`, `b`: as in `ButcherTableau`.
    - `order`: the order of `b`.

    **Returns:**

    A dense output of order `min(order, 3)`, continuously differentiable from step to step.
    """
    fsal = _is_fsal(a, b)
    weights = b if fsal else (*b, Fraction(0))
    rows = [[Fraction(0), 3 * weight, -2 * weight] for weight in weights]
    for row, basis in ((rows[0], (1, -2, 1)), (rows[-1], (0, -1, 1))):
        for p, value in enumerate(basis):
            row[p] += value
    return DenseOutput(
        order=min(order, 3),
        coefficients=tuple(map(tuple, rows)),
        extra_a=() if fsal else (b,),
    )
