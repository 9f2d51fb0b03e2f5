"""Indomethacin in the blood of six people."""

from typing import NamedTuple

import numpy as np

from .._custom_types import Float, Int
from ._read import by_subject, read_columns


class Indomethacin(NamedTuple):
    """Concentrations of indomethacin after one intravenous dose.

    - `subject`: numbers 1 to 6.
    - `ts`: times of the 11 samples of each subject after the injection, in h.
    - `ys`: concentrations in the plasma, in mg/L.
    """

    subject: Int[np.ndarray, " subjects"]
    ts: Float[np.ndarray, "subjects times"]
    ys: Float[np.ndarray, "subjects times"]


def indomethacin() -> Indomethacin:
    """Loads the concentrations of indomethacin in 6 subjects, 11 samples in 8 h each.

    ??? cite "Source"

        K. C. Kwan, G. O. Breault, E. R. Umbenhauer, F. G. McMahon and D. E. Duggan, *Kinetics of
        indomethacin absorption, elimination, and enterohepatic circulation in man*, Journal of
        Pharmacokinetics and Biopharmaceutics 4, 255–280 (1976). The data set `Indometh` of R.

    **Returns:**

    An `Indomethacin`.
    """
    columns = by_subject(read_columns("indomethacin"))
    return Indomethacin(
        subject=columns["Subject"][:, 0].astype(int), ts=columns["time"], ys=columns["conc"]
    )
