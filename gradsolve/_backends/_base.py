"""What a backend is: a choice of where code runs, and what runs it."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax

from .._custom_types import Leaf
from .._ensemble.batching import Run, ensemble_call, num_lanes
from .._ensemble.program import Program
from .._ensemble.promotion import own_promotion
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

    A runner supplies each job as a function of the arrays alone; how `jax.vmap` folds a new axis
    into the ensemble is the same for all. `leaves` belong to the program, `is_lane` says which of
    them are per lane.
    """

    @abc.abstractmethod
    def record_job(self, program: Program, store_checkpoints: bool) -> Run:
        """Solves adaptively and records the accepted times: `RecordInputs` to `Recording`."""

    @abc.abstractmethod
    def replay_job(self, program: Program, store_checkpoints: bool, ensemble: int) -> Run:
        """Takes the recorded steps: `ReplayInputs` to `Replayed`.

        `ensemble` is the number of trajectories before `jax.vmap` makes a batch of ensembles.
        """

    @abc.abstractmethod
    def adjoint_job(self, program: Program, wanted: Wanted) -> Run:
        """Pulls cotangents of the outputs back through the steps: to `Cotangents`."""

    def record(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: RecordInputs,
    ) -> Recording:
        """Solves adaptively and records the accepted times."""
        run = self.record_job(program, store_checkpoints)
        return _call(run, is_lane, leaves, inputs, has_leaf_outputs=False)[0]

    def replay(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: ReplayInputs,
    ) -> Replayed:
        """Takes the recorded steps."""
        run = self.replay_job(program, store_checkpoints, num_lanes(inputs))
        return _call(run, is_lane, leaves, inputs, has_leaf_outputs=False)[0]

    def adjoint(
        self,
        program: Program,
        wanted: Wanted,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: AdjointInputs,
    ) -> tuple[Cotangents, list[Any]]:
        """Pulls cotangents of the outputs back through the recorded steps."""
        run = self.adjoint_job(program, wanted)
        return _call(run, is_lane, leaves, inputs, has_leaf_outputs=True)


def _call(
    run: Run,
    is_lane: Sequence[bool],
    leaves: Sequence[Leaf],
    inputs: Any,
    *,
    has_leaf_outputs: bool,
) -> tuple[Any, list[Any]]:
    """The outputs per lane, and those of the leaves."""
    with own_promotion():
        out, _, of_leaves = ensemble_call(
            run, is_lane, leaves, inputs, has_leaf_outputs=has_leaf_outputs
        )
    return out, of_leaves
