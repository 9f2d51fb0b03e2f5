"""What all fused backends share."""

import abc
import functools as ft
from typing import ClassVar

from .._backends._base import AbstractRunner, BackendReport, Question
from .._ensemble.batching import Run
from .._ensemble.program import Program
from .._xla.adjoint import Wanted
from . import jobs
from .launch import AbstractKernel
from .refusal import refusal
from .unit import Unit


class AbstractFusedRunner(AbstractRunner):
    """Runs each job as one kernel generated from the vector field.

    `sorts`: whether a replay may keep states for its adjoint in an order of its own.
    """

    sorts: ClassVar[bool] = False

    @abc.abstractmethod
    def unavailable(self, question: Question) -> str | None:
        """Why kernels cannot be built or run here, as a sentence; `None` if they can."""

    def remark(self) -> str:
        """What a user should know about how kernels run here, as a sentence; mostly nothing."""
        return ""

    def choose(self, question: Question) -> tuple[AbstractRunner, BackendReport]:
        name = type(self).__name__
        problem = self.unavailable(question) or refusal(name, question)
        if problem is not None:
            raise ValueError(problem)
        reason = f"{name} was asked for. {self.remark()}".rstrip()
        return self, BackendReport(name, name, reason)

    @abc.abstractmethod
    def compile_unit(self, unit: Unit) -> AbstractKernel:
        """Compiles a kernel, or finds it compiled."""

    @abc.abstractmethod
    def group_size(self, lanes: int) -> int:
        """Trajectories whose shared cotangents are summed together first."""

    def record_job(self, program: Program, store_checkpoints: bool) -> Run:
        return ft.partial(jobs.record, program, self.compile_unit, store_checkpoints)

    def replay_job(self, program: Program, store_checkpoints: bool, ensemble: int) -> Run:
        return ft.partial(
            jobs.replay, program, self.compile_unit, self.sorts, store_checkpoints, ensemble
        )

    def adjoint_job(self, program: Program, wanted: Wanted) -> Run:
        return ft.partial(jobs.adjoint, program, self.compile_unit, self.group_size, wanted)
