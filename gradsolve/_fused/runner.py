"""What all fused backends share."""

import abc
import functools as ft
from collections.abc import Sequence
from typing import Any

from .._backends._base import AbstractRunner, BackendReport, Question
from .._custom_types import Leaf
from .._ensemble.batching import ensemble_call
from .._ensemble.program import Program
from .._ensemble.promotion import own_promotion
from .._xla.adjoint import AdjointInputs, Cotangents, Wanted
from .._xla.record import Recording, RecordInputs
from .._xla.replay import Replayed, ReplayInputs
from . import jobs
from .launch import AbstractKernel
from .refusal import refusal
from .unit import Unit


class AbstractFusedRunner(AbstractRunner):
    """Runs each job as one kernel generated from the vector field."""

    @abc.abstractmethod
    def unavailable(self, question: Question) -> str | None:
        """Why kernels cannot be built or run here, as a sentence; `None` if they can."""

    def choose(self, question: Question) -> tuple[AbstractRunner, BackendReport]:
        name = type(self).__name__
        problem = self.unavailable(question) or refusal(name, question)
        if problem is not None:
            raise ValueError(problem)
        return self, BackendReport(name, name, f"{name} was asked for.")

    @abc.abstractmethod
    def compile_unit(self, unit: Unit) -> AbstractKernel:
        """Compiles a kernel, or finds it compiled."""

    @abc.abstractmethod
    def group_size(self, lanes: int) -> int:
        """Trajectories whose shared cotangents are summed together first."""

    def record(
        self,
        program: Program,
        store_checkpoints: bool,
        is_lane: Sequence[bool],
        leaves: Sequence[Leaf],
        inputs: RecordInputs,
    ) -> Recording:
        run = ft.partial(jobs.record, program, self.compile_unit, store_checkpoints)
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
        run = ft.partial(jobs.replay, program, self.compile_unit, store_checkpoints)
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
        run = ft.partial(jobs.adjoint, program, self.compile_unit, self.group_size, wanted)
        with own_promotion():
            out, _, ct_leaves = ensemble_call(run, is_lane, leaves, inputs, has_leaf_outputs=True)
        return out, ct_leaves
