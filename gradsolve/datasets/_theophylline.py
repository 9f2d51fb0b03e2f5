"""Theophylline in the blood of twelve people."""

from typing import NamedTuple

import numpy as np

from .._custom_types import Float, Int
from ._read import by_subject, read_columns


class Theophylline(NamedTuple):
    """Concentrations of theophylline after one oral dose.

    - `subject`: numbers 1 to 12.
    - `weight`: of the subject, in kg.
    - `dose`: given by mouth at time 0, in mg per kg of weight.
    - `ts`: times of the 11 samples of each subject, in h; the first is 0.
    - `ys`: concentrations in the serum, in mg/L.
    """

    subject: Int[np.ndarray, " subjects"]
    weight: Float[np.ndarray, " subjects"]
    dose: Float[np.ndarray, " subjects"]
    ts: Float[np.ndarray, "subjects times"]
    ys: Float[np.ndarray, "subjects times"]


def theophylline() -> Theophylline:
    """Loads the concentrations of theophylline in 12 subjects, 11 samples in 25 h each.

    ??? cite "Source"

        A study by R. Upton, in A. J. Boeckmann, L. B. Sheiner and S. L. Beal, *NONMEM Users Guide:
        Part V* (NONMEM Project Group, University of California, San Francisco, 1994). The data set
        `Theoph` of R.

    **Returns:**

    A `Theophylline`.
    """
    columns = by_subject(read_columns("theophylline"))
    return Theophylline(
        subject=columns["Subject"][:, 0].astype(int),
        weight=columns["Wt"][:, 0],
        dose=columns["Dose"][:, 0],
        ts=columns["Time"],
        ys=columns["conc"],
    )
