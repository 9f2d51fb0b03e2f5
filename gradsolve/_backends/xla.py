"""Plain JAX: runs wherever JAX does, and is what every other backend is checked against."""

import functools as ft

from .._ensemble.batching import Run
from .._ensemble.program import Program
from .._xla.adjoint import Wanted, adjoint
from .._xla.record import record
from .._xla.replay import replay
from ._base import AbstractRunner, BackendReport, Question


class XLA(AbstractRunner):
    """Plain JAX, compiled by XLA; runs on every device that JAX supports."""

    def choose(self, question: Question) -> tuple[AbstractRunner, BackendReport]:
        del question
        return self, BackendReport("XLA", "XLA", "XLA was asked for.")

    def record_job(self, program: Program, store_checkpoints: bool) -> Run:
        return ft.partial(record, program, store_checkpoints)

    def replay_job(self, program: Program, store_checkpoints: bool, ensemble: int) -> Run:
        del ensemble
        return ft.partial(replay, program, store_checkpoints)

    def adjoint_job(self, program: Program, wanted: Wanted) -> Run:
        return ft.partial(adjoint, program, wanted)
