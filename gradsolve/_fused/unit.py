"""A translation unit: the text of one kernel with everything that is particular to a problem."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Unit:
    """The text of one kernel, the same for a CPU and a GPU but for the entry point.

    - `job`: `record`, `replay` or `adjoint`.
    - `text`: C++ up to the entry point; needs the headers in `csrc/`.
    - `num_leaves`, `num_wanted`, `entries`: leaves it takes, those whose cotangents it returns, and
        the number of entries of the latter.
    - `side_by_side`: whether it computes functions or quotients of doubles several at a time.
    - `linear_systems`: whether its steps solve linear systems.
    """

    job: str
    text: str
    num_leaves: int
    num_wanted: int
    entries: int
    side_by_side: bool
    linear_systems: bool

    @property
    def arguments(self) -> str:
        """The C++ type of the kernel's arguments."""
        wanted = ", Problem::num_wanted" if self.job == "adjoint" else ""
        return f"gs::{self.job.capitalize()}Arguments<Problem::num_leaves{wanted}>"
