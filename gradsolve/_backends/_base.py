"""What a backend is: a choice of where code runs, and what runs it."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax

from .._custom_types import Leaf
from .._ensemble.program import Program
from .._xla.adjoint import AdjointInputs, Cotangents, Wanted
from .._xla.record import Recording, RecordInputs
from .._xla.replay import Replayed, ReplayInputs


class BackendReport(eqx.Module):
    """Which backend ran, and why.

    - `requested`, `actual`: names of the backends.
    - `reason`: one sentence.
    """

    requested: str = eqx.field(static=True)
    actual: str = eqx.field(static=True)
    reason: str = eqx.field(static=True)


@dataclasses.dataclass(frozen=True)
class Question:
    """What a backend is chosen for.

    - `program`, `structs`: the program and its leaves, for one trajectory.
    - `platform`: where the arrays are, in JAX's words: `cpu`, `gpu`, ...
    - `devices`: over how many devices they are spread.
    """

    program: Program
    structs: Sequence[jax.ShapeDtypeStruct]
    platform: str
    devices: int


class AbstractBackend(eqx.Module):
    """Knows where code runs: what a user passes as `backend`."""

    @abc.abstractmethod
    def choose(self, question: "Question") -> tuple["AbstractRunner", BackendReport]:
        """What will run, and the report of the choice.

        **Raises:**

        `ValueError` if this backend was asked for and cannot run the problem.
        """


class AbstractRunner(AbstractBackend):
    """A backend that runs the three jobs itself.

    `leaves` belong to the program, `is_lane` says which of them are per lane.
    """

    @abc.abstractmethod
    def record(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: RecordInputs,
    ) -> Recording:
        """Solves adaptively and records the accepted times."""

    @abc.abstractmethod
    def replay(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: ReplayInputs,
    ) -> Replayed:
        """Takes the recorded steps."""

    @abc.abstractmethod
    def adjoint(
        self,
        program: Program,
        wanted: Wanted,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: AdjointInputs,
    ) -> tuple[Cotangents, list[Any]]:
        """Pulls cotangents of the outputs back through the recorded steps."""
