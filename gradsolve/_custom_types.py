"""Names of the array shapes that occur everywhere.

The ensemble axis is called `lanes` and is always the last axis inside the library, so that
neighbouring trajectories are neighbours in memory (coalesced loads on a GPU, vector loads on a
CPU). A single trajectory is an ensemble of one lane.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    # Type checkers do not know Equinox's abstract class variables.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar as AbstractClassVar

from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Shaped

LaneTime: TypeAlias = Float[Array, " lanes"]
"""One time per trajectory."""
LaneState: TypeAlias = Float[Array, "dim lanes"]
"""One flat state per trajectory."""
LaneFlag: TypeAlias = Bool[Array, " lanes"]
LaneCount: TypeAlias = Int[Array, " lanes"]
MeshTimes: TypeAlias = Float[Array, "rows lanes"]
OutputTimes: TypeAlias = Float[Array, "times lanes"]
OutputStates: TypeAlias = Float[Array, "times dim lanes"]
Leaf: TypeAlias = Shaped[Array, "..."]

State: TypeAlias = PyTree[Shaped[ArrayLike, "?*state"], "State"]
Time: TypeAlias = Float[Array, ""]
Loss: TypeAlias = Callable[[Any], Float[Array, ""]]

__all__ = [
    "AbstractClassVar",
    "Array",
    "ArrayLike",
    "Bool",
    "Float",
    "Int",
    "LaneCount",
    "LaneFlag",
    "LaneState",
    "LaneTime",
    "Leaf",
    "Loss",
    "MeshTimes",
    "OutputStates",
    "OutputTimes",
    "PyTree",
    "Shaped",
    "State",
    "Time",
]
