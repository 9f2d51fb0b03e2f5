"""The coefficients of Rosenbrock methods, as exact rational numbers."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from ._tableau import DenseOutput, check_row


@dataclass(frozen=True)
class RosenbrockTableau:
    r"""The coefficients of a Rosenbrock method, in the form without matrix-vector products.

    One step from $(t, y_0)$ to $(t + h, y_1)$ of $y' = f(t, y)$ is, with
    $J = \partial f/\partial y$ and $f_t = \partial f/\partial t$ at $(t, y_0)$,

    $$\Big(\frac{I}{\gamma h} - J\Big) u_i = f\Big(t + c_i h,\; y_0 + \sum_{j<i} a_{ij} u_j\Big)
    + \frac{1}{h} \sum_{j<i} C_{ij} u_j + h\, d_i f_t, \qquad
    y_1 = y_0 + \sum_i m_i u_i, \qquad \mathtt{error} = \sum_i \mathtt{m\_error}_i u_i.$$

    Hashable and compared by value; never a pytree leaf. The numbers are exact; whoever evaluates
    a method rounds them once, to the precision it computes in.

    **Arguments:**

    - `order`: the order of `m`.
    - `embedded_order`: the order of `m - m_error`.
    - `gamma`: the diagonal.
    - `a`, `C`: row `i` holds the `i` entries below the diagonal, so the first row is `()`.
    - `c`: the nodes.
    - `d`: the weights of $f_t$.
    - `m`: the weights of the step.
    - `m_error`: the weights of the error itself, not of a second solution.
    - `H`: the dense output, as published for these methods: with $K_r = \sum_i H_{ri} u_i$ it is
        $(1 - \theta) y_0 + \theta (y_1 + (1 - \theta)(K_1 + \theta (K_2 + \theta K_3)))$, with as
        many $K_r$ as there are rows.
    - `dense_order`: its order.

    ??? cite "Reference"

        E. Hairer and G. Wanner, *Solving Ordinary Differential Equations II*, section IV.7.
    """

    order: int
    embedded_order: int
    gamma: Fraction
    a: tuple[tuple[Fraction, ...], ...]
    C: tuple[tuple[Fraction, ...], ...]
    c: tuple[Fraction, ...]
    d: tuple[Fraction, ...]
    m: tuple[Fraction, ...]
    m_error: tuple[Fraction, ...]
    H: tuple[tuple[Fraction, ...], ...]
    dense_order: int

    def __post_init__(self) -> None:
        for name in ("order", "embedded_order", "dense_order"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}.")
        if self.gamma <= 0:
            raise ValueError(f"`gamma` must be positive, got {self.gamma}.")
        if not self.a or len(self.a) != len(self.C):
            raise ValueError(
                "`a` and `C` must have one row per stage, got "
                f"{len(self.a)} and {len(self.C)} rows."
            )
        for name in ("a", "C"):
            for i, row in enumerate(getattr(self, name)):
                check_row(f"Row {i} of `{name}`", row, i)
        for name in ("c", "d", "m", "m_error"):
            check_row(f"`{name}`", getattr(self, name), self.stages)
        if not self.H:
            raise ValueError("`H` must have at least one row.")
        for r, row in enumerate(self.H):
            check_row(f"Row {r} of `H`", row, self.stages)

    # As in `ButcherTableau`: the weights alone tell methods apart.
    def __hash__(self) -> int:
        return hash((self.order, self.m))

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.a)

    @cached_property
    def same_value(self) -> tuple[int, ...]:
        """For each stage the first one that evaluates the field at the same place."""
        places = list(zip(self.a, self.c, strict=True))
        trimmed = [(_without_zeros(row), c) for row, c in places]
        return tuple(trimmed.index(place) for place in trimmed)

    @cached_property
    def dense(self) -> DenseOutput:
        r"""The dense output as polynomials $b_i(\theta)$: $y_0 + \sum_i b_i(\theta) u_i$.

        The nested form of `H` times out to $b_i(\theta) = m_i \theta
        + \sum_r H_{ri} (\theta^r - \theta^{r+1})$.
        """
        rows = []
        for i, weight in enumerate(self.m):
            row = [weight, *[Fraction(0)] * len(self.H)]
            for r, each in enumerate(self.H):
                row[r] += each[i]
                row[r + 1] -= each[i]
            rows.append(tuple(row))
        return DenseOutput(order=self.dense_order, coefficients=tuple(rows))


def _without_zeros(row: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """A row without the zeros at its end: a later stage may have more of them."""
    length = max((i + 1 for i, entry in enumerate(row) if entry != 0), default=0)
    return row[:length]
