"""Plain JAX: runs wherever JAX does, and is what every other backend is checked against."""

import functools as ft
from collections.abc import Sequence
from typing import Any

from .._custom_types import Leaf
from .._ensemble.batching import ensemble_call
from .._ensemble.program import Program
from .._ensemble.promotion import own_promotion
from .._xla.adjoint import AdjointInputs, Cotangents, Wanted, adjoint
from .._xla.record import Recording, RecordInputs, record
from .._xla.replay import Replayed, ReplayInputs, replay
from ._base import AbstractRunner, BackendReport, Question


class XLA(AbstractRunner):
    """Plain JAX, compiled by XLA; runs on every device that JAX supports."""

    def choose(self, question: Question) -> tuple[AbstractRunner, BackendReport]:
        del question
        return self, BackendReport("XLA", "XLA", "XLA was asked for.")

    def record(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: RecordInputs,
    ) -> Recording:
        run = ft.partial(record, program, store_checkpoints)
        with own_promotion():
            out, _, _ = ensemble_call(run, is_lane, leaves, inputs, has_leaf_outputs=False)
        return out

    def replay(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: ReplayInputs,
    ) -> Replayed:
        run = ft.partial(replay, program, store_checkpoints)
        with own_promotion():
            out, _, _ = ensemble_call(run, is_lane, leaves, inputs, has_leaf_outputs=False)
        return out

    def adjoint(
        self,
        program: Program,
        wanted: Wanted,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: AdjointInputs,
    ) -> tuple[Cotangents, list[Any]]:
        run = ft.partial(adjoint, program, wanted)
        with own_promotion():
            out, _, ct_leaves = ensemble_call(run, is_lane, leaves, inputs, has_leaf_outputs=True)
        return out, ct_leaves
