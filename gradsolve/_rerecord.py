"""When a fit records its mesh: policy objects given to `fit`."""

import abc
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import numpy as np

if TYPE_CHECKING:
    # Type checkers know a class variable by its name in `typing` only.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


class AbstractRerecord(eqx.Module):
    """Knows before which updates of a fit a mesh is recorded."""

    within_update: AbstractClassVar[bool]
    """Whether each update is an adaptive solve itself, instead of a replay of a recorded mesh."""

    records_again: AbstractClassVar[bool]
    """Whether there are meshes after the first, which may need more steps."""

    @abc.abstractmethod
    def due(self, update: int) -> bool:
        """Whether a mesh is recorded before update number `update` (0 is the first)."""


class Always(AbstractRerecord):
    """Every update is an adaptive solve, differentiated along the steps that it takes.

    The error of every loss and gradient is then controlled at the parameters they belong to.
    """

    within_update: ClassVar[bool] = True
    records_again: ClassVar[bool] = True

    def due(self, update: int) -> bool:
        del update
        return True


class Every(AbstractRerecord):
    """Records a mesh before every `k`-th update; the updates in between replay it.

    The steps of a replay were chosen for other parameters, so its error is not controlled. Choose
    this when parameters move little in `k` updates. A replay is cheaper than an adaptive solve
    where many steps are rejected.

    **Arguments:**

    - `k`: updates per recording.
    """

    k: int = eqx.field(static=True)
    within_update: ClassVar[bool] = False
    records_again: ClassVar[bool] = True

    def __check_init__(self):
        integer = isinstance(self.k, int | np.integer) and not isinstance(self.k, bool)
        if not integer or self.k < 1:
            raise ValueError(f"`Every(k)` needs a positive number of updates, got {self.k!r}.")

    def due(self, update: int) -> bool:
        return update % self.k == 0


class Never(AbstractRerecord):
    """Records one mesh, at the initial parameters, and replays it in every update.

    The loss is then one smooth function of the parameters, as line searches and last refinements
    like it. Its error is not controlled away from the initial parameters; `fit` warns if the mesh
    no longer suits the result.
    """

    within_update: ClassVar[bool] = False
    records_again: ClassVar[bool] = False

    def due(self, update: int) -> bool:
        return update == 0
