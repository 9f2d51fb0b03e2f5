"""What a step size controller is."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx

from .._custom_types import LaneFlag, LaneState, LaneTime
from .._ensemble.layout import StateLayout

if TYPE_CHECKING:
    # Pyright knows a class variable by the name's import from `typing` in the same file.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


class Window(NamedTuple):
    """The interval of integration of each lane; time runs forwards, `t0 <= t1`."""

    t0: LaneTime
    t1: LaneTime


class Decision(NamedTuple):
    """What a controller makes of an attempted step."""

    accept: LaneFlag
    t_next: LaneTime  # end of the next attempt, before it is clipped to the end of the window
    underflow: LaneFlag  # the controller refuses to go on with smaller steps
    forced: LaneFlag  # the attempt could not have been made smaller
    state: Any


class AbstractController(eqx.Module):
    """Knows step sizes. Works on all lanes at once, elementwise."""

    adaptive: AbstractClassVar[bool]
    """Whether steps can be rejected; such a controller needs an error estimate."""

    @abc.abstractmethod
    def bind(self, layout: StateLayout) -> "AbstractController":
        """The controller with its arrays checked and flattened for this state."""

    @abc.abstractmethod
    def first_step(
        self,
        field: Callable[[LaneTime, LaneState], LaneState],
        window: Window,
        y0: LaneState,
        f0: LaneState,
        error_order: float | None,
    ) -> LaneTime | None:
        """The length of the first attempt where the user gives none.

        `None` for a controller whose steps are given. `f0` is `field(window.t0, y0)`.
        """

    @abc.abstractmethod
    def init(self, window: Window, dt0: LaneTime | None) -> tuple[LaneTime, Any]:
        """The end of the first attempt of each lane, and the controller's state.

        `dt0` is the length of the first attempt, `None` if the controller determines it itself.
        """

    @abc.abstractmethod
    def adapt(
        self,
        window: Window,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        y1: LaneState,
        error: LaneState | None,
        error_order: float | None,
        state: Any,
    ) -> Decision:
        """Judges the step from `(t0, y0)` to `(t1, y1)`.

        `y0`, `y1` and `error` may carry further components behind the state (tangents whose
        accuracy is to be controlled too): the norm is taken over whatever comes.
        """
