"""The default choice of a backend."""

from ._base import AbstractBackend, AbstractRunner, BackendReport
from .xla import XLA


class Auto(AbstractBackend):
    """Chooses the fastest backend that can run the problem; `Trajectory.backend` says which."""

    def choose(self) -> tuple[AbstractRunner, BackendReport]:
        report = BackendReport("Auto", "XLA", "XLA is the only backend of this version.")
        return XLA(), report
