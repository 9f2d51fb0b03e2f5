"""What an integrator is: one step, its dense output, and the transpose of both."""

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx

from .._custom_types import LaneFlag, LaneState, LaneTime, Leaf
from .._ensemble.field import EnsembleField

if TYPE_CHECKING:
    # Pyright knows a class variable by the name's import from `typing` in the same file.
    from typing import ClassVar as AbstractClassVar
else:
    from equinox import AbstractClassVar


class Step(NamedTuple):
    """One attempted step of every lane."""

    y1: LaneState
    error: LaneState | None
    memo: Any  # what the next step may reuse
    dense: Any  # what the interpolation inside this step needs
    solved: LaneFlag | None  # False where an implicit equation was not solved; None: always


class StepCotangents(NamedTuple):
    """Cotangents of a step's inputs."""

    leaves: list[Leaf]
    t0: LaneTime | None
    t1: LaneTime | None
    y0: LaneState
    memo: Any


class OutputCotangents(NamedTuple):
    """Cotangents that the outputs inside a step have left so far."""

    dense: Any
    t0: LaneTime | None
    t1: LaneTime | None


class AbstractTransposedStep(abc.ABC):
    """A step, linearised about its inputs, ready to pull cotangents back."""

    step: Step
    """The step itself; its dense output is complete if outputs were announced."""

    @abc.abstractmethod
    def zero_outputs(self) -> OutputCotangents:
        """No cotangents yet."""

    @abc.abstractmethod
    def pull_output(
        self, so_far: OutputCotangents, t: LaneTime, ct: LaneState, at_end: LaneFlag
    ) -> tuple[OutputCotangents, LaneTime]:
        """Adds the cotangent `ct` of the dense output at `t`; also returns the cotangent of `t`.

        Where `at_end` holds, the output is the end state of the step: its cotangent reaches the
        stages by `ct_y1` of `pull`, and only the movement of the times is accounted for here.
        """

    @abc.abstractmethod
    def pull(
        self, outputs: OutputCotangents | None, ct_y1: LaneState, ct_memo: Any
    ) -> StepCotangents:
        """The cotangents of the step's inputs."""


class AbstractIntegrator(eqx.Module):
    """Knows stages and errors. Works on all lanes at once; time runs forwards.

    The state handed from step to step is `y` and a `memo`. If `carries_memo` is false the memo is
    a function of `(t, y)` that is merely kept to save work (the last stage of a method that is
    first-same-as-last); otherwise it belongs to the state: it is checkpointed and differentiated.
    """

    carries_memo: AbstractClassVar[bool]

    @property
    @abc.abstractmethod
    def order(self) -> int | None:
        """Order of convergence."""

    @property
    @abc.abstractmethod
    def error_order(self) -> float | None:
        """Order in the step size of the error estimate, `None` if there is none."""

    @property
    @abc.abstractmethod
    def evaluations(self) -> int:
        """About how many times a step with dense output evaluates the field."""

    @abc.abstractmethod
    def start(self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState) -> Any:
        """The memo before the first step, which is to go from `t0` to `t1`."""

    @abc.abstractmethod
    def step(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState, memo: Any
    ) -> Step:
        """One step from `t0` to `t1`."""

    @abc.abstractmethod
    def complete_dense(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, step: Step, needed: Leaf
    ) -> Any:
        """The data of the interpolation, with the stages that only it uses.

        `needed` is a scalar flag: if it is false nobody will look at the result.
        """

    @abc.abstractmethod
    def interpolate(self, dense: Any, t0: LaneTime, t1: LaneTime, t: LaneTime) -> LaneState:
        """Dense output at the times `t` in `[t0, t1]`."""

    @abc.abstractmethod
    def transpose(
        self,
        field: EnsembleField,
        wanted: Sequence[int],
        want_time: bool,
        with_outputs: bool,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        memo: Any,
    ) -> AbstractTransposedStep:
        """Linearises the step.

        `wanted` numbers the field leaves whose cotangents are asked for; `want_time` asks for
        those of `t0` and `t1`; `with_outputs` announces calls of `pull_output`.
        """

    @abc.abstractmethod
    def pull_start(
        self,
        field: EnsembleField,
        wanted: Sequence[int],
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        ct_memo: Any,
    ) -> StepCotangents | None:
        """Cotangents of the inputs of `start`; `None` if the memo is not carried."""
