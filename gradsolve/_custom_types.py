"""Names of the array shapes that occur everywhere.

The ensemble axis is called `lanes` and is always the last axis inside the library, so that
neighbouring trajectories are neighbours in memory (coalesced loads on a GPU, vector loads on a
CPU). A single trajectory is an ensemble of one lane.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree, Shaped

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:

    def validates_input(function: _F) -> _F: ...
else:
    from typing import no_type_check as validates_input

# `validates_input` marks a public function that checks its arguments itself, with sentences for
# people: a run-time type checker (the test suite uses one) leaves its arguments alone.

LaneTime: TypeAlias = Float[Array, " lanes"]
"""One time per trajectory."""
SharedOrLaneTime: TypeAlias = Float[Array, "#lanes"]
"""One time per trajectory, or one for all of them."""
LaneState: TypeAlias = Float[Array, "dim lanes"]
"""One flat state per trajectory."""
LaneMatrix: TypeAlias = Float[Array, "dim dim lanes"]
"""One matrix per trajectory."""
LaneFlag: TypeAlias = Bool[Array, " lanes"]
LaneCount: TypeAlias = Int[Array, " lanes"]
MeshTimes: TypeAlias = Float[Array, "rows lanes"]
OutputTimes: TypeAlias = Float[Array, "times lanes"]
SharedOrLaneTimes: TypeAlias = Float[Array, "times #lanes"]
OutputStates: TypeAlias = Float[Array, "times dim lanes"]
Leaf: TypeAlias = Shaped[Array, "..."]

Time: TypeAlias = Float[Array, ""]
Loss: TypeAlias = Callable[[Any], Float[Array, ""]]

__all__ = [
    "Array",
    "ArrayLike",
    "Bool",
    "Float",
    "Int",
    "LaneCount",
    "LaneFlag",
    "LaneMatrix",
    "LaneState",
    "LaneTime",
    "Leaf",
    "Loss",
    "MeshTimes",
    "OutputStates",
    "OutputTimes",
    "PyTree",
    "Shaped",
    "SharedOrLaneTime",
    "SharedOrLaneTimes",
    "Time",
    "validates_input",
]
