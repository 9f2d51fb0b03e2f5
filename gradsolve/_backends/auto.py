"""The default choice of a backend."""

from collections.abc import Sequence
from typing import Any

from .._custom_types import Leaf
from .._ensemble.program import Program
from .._xla.adjoint import AdjointInputs, Cotangents, Wanted
from .._xla.record import Recording, RecordInputs
from .._xla.replay import Replayed, ReplayInputs
from ._base import AbstractBackend, BackendReport
from .xla import XLA


class Auto(AbstractBackend):
    """Chooses the fastest backend that can run the problem; `Trajectory.backend` says which."""

    def choose(self) -> tuple[AbstractBackend, BackendReport]:
        report = BackendReport("Auto", "XLA", "XLA is the only backend of this version.")
        return XLA(), report

    def record(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: RecordInputs,
    ) -> Recording:
        return self.choose()[0].record(program, store_checkpoints, is_lane, leaves, inputs)

    def replay(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: ReplayInputs,
    ) -> Replayed:
        return self.choose()[0].replay(program, store_checkpoints, is_lane, leaves, inputs)

    def adjoint(
        self,
        program: Program,
        wanted: Wanted,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: AdjointInputs,
    ) -> tuple[Cotangents, list[Any]]:
        return self.choose()[0].adjoint(program, wanted, is_lane, leaves, inputs)
