"""Hares and lynxes in the books of the Hudson's Bay Company."""

from typing import NamedTuple

import numpy as np

from .._custom_types import Float
from ._read import read_columns


class HudsonBay(NamedTuple):
    """Pelts of snowshoe hares and Canadian lynxes, bought by the Hudson's Bay Company.

    - `year`: 1900, 1901, ..., 1920.
    - `hare`, `lynx`: thousands of pelts in that year.
    """

    year: Float[np.ndarray, " years"]
    hare: Float[np.ndarray, " years"]
    lynx: Float[np.ndarray, " years"]

    @property
    def ts(self) -> Float[np.ndarray, " years"]:
        """The years."""
        return self.year

    @property
    def ys(self) -> Float[np.ndarray, "years 2"]:
        """Hares and lynxes side by side, in thousands of pelts."""
        return np.stack([self.hare, self.lynx], axis=1)


def hudson_bay() -> HudsonBay:
    """Loads 21 years of pelts of predator and prey, 1900 to 1920.

    Numbers of pelts bought in Canada, in thousands, taken as a measure of the two populations.

    ??? cite "Source"

        The records of the Hudson's Bay Company, as tabulated by C. G. Hewitt, *The Conservation of
        the Wild Life of Canada* (Scribner, 1921) and by E. P. Odum, *Fundamentals of Ecology*
        (Saunders, 1953). The numbers are those of P. Howard, *Modeling Basics* (lecture notes,
        2009), which B. Carpenter, *Predator-prey population dynamics: the Lotka-Volterra model in
        Stan* (2018), uses too.

    **Returns:**

    A `HudsonBay`.
    """
    columns = read_columns("hudson_bay_lynx_hare")
    return HudsonBay(columns["year"], columns["hare"], columns["lynx"])
