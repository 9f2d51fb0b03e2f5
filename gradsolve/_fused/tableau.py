"""The constants of a method as C++ tables."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from .._integrators import ButcherTableau, RosenbrockTableau


def print_tableau(tableau: ButcherTableau, dtype: np.dtype, adaptive: bool) -> str:
    """A structure `Tableau`: the stages of the method, then the extra ones of the dense output.

    Each number is rounded once, to the precision of the state.
    """
    dense = tableau.dense
    stages, extra = tableau.stages, len(dense.extra_a)
    size = stages + extra
    rows = [[*row, *[Fraction(0)] * (size - len(row))] for row in (*tableau.a, *dense.extra_a)]
    b_error = tableau.b_error or (Fraction(0),) * stages
    lines = [
        "struct Tableau {",
        f"  static constexpr int stages = {stages}, extra = {extra}, degree = {dense.degree};",
        f"  static constexpr bool fsal = {flag(tableau.fsal)}, adaptive = {flag(adaptive)};",
        *_table(f"c[{size}]", [(*tableau.c, *dense.extra_c)], dtype),
        *_table(f"a[{size}][{size}]", rows, dtype),
        *_table(f"b[{stages}]", [tableau.b], dtype),
        *_table(f"b_error[{stages}]", [b_error], dtype),
        *_table(f"dense[{size}][{dense.degree}]", dense.coefficients, dtype),
        "};",
    ]
    return "\n".join(lines) + "\n"


def print_rosenbrock_tableau(tableau: RosenbrockTableau, dtype: np.dtype, adaptive: bool) -> str:
    """The same for a Rosenbrock method."""
    dense, stages = tableau.dense, tableau.stages
    full = lambda rows: [[*row, *[Fraction(0)] * (stages - len(row))] for row in rows]
    lines = [
        "struct Tableau {",
        f"  static constexpr int stages = {stages}, extra = 0, degree = {dense.degree};",
        f"  static constexpr bool fsal = false, adaptive = {flag(adaptive)};",
        f"  static constexpr Scalar inverse_gamma = {number(1 / tableau.gamma, dtype)};",
        *_table(f"c[{stages}]", [tableau.c], dtype),
        *_table(f"d[{stages}]", [tableau.d], dtype),
        *_table(f"a[{stages}][{stages}]", full(tableau.a), dtype),
        *_table(f"C[{stages}][{stages}]", full(tableau.C), dtype),
        *_table(f"b[{stages}]", [tableau.m], dtype),
        *_table(f"b_error[{stages}]", [tableau.m_error], dtype),
        *_table(f"dense[{stages}][{dense.degree}]", dense.coefficients, dtype),
        "};",
    ]
    return "\n".join(lines) + "\n"


def flag(value: bool) -> str:
    """A constant of C++."""
    return "true" if value else "false"


def _table(name: str, rows: Sequence[Sequence[Fraction]], dtype: np.dtype) -> list[str]:
    printed = [", ".join(number(entry, dtype) for entry in row) for row in rows]
    if name.count("[") == 1:
        return [f"  static constexpr Scalar {name} = {{{printed[0]}}};"]
    body = [f"      {{{row}}}," for row in printed]
    return [f"  static constexpr Scalar {name} = {{", *body, "  };"]


def number(value: Fraction | float, dtype: np.dtype) -> str:
    """The shortest decimals that read back as the same number."""
    digits = np.format_float_positional(dtype.type(float(value)), unique=True, trim="0")
    return f"{digits}f" if dtype.itemsize == 4 else digits
