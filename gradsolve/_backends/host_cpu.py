"""Fused kernels on the CPU."""

import equinox as eqx

from .._fused.host import GROUP, HostKernel, available_threads, host_kernel
from .._fused.runner import AbstractFusedRunner
from .._fused.unit import Unit
from ._base import AbstractRunner, BackendReport


class HostCPU(AbstractFusedRunner):
    """Fused kernels, compiled by the machine's C++ compiler, on packs of trajectories and threads.

    **Arguments:**

    - `threads`: how many threads work; `None` for one per processor that the process may use. The
        numbers do not depend on it.
    """

    threads: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.threads is not None and not (
            isinstance(self.threads, int) and self.threads >= 1
        ):
            raise ValueError(f"`threads` must be a positive integer or None, got {self.threads!r}.")

    def choose(self) -> tuple[AbstractRunner, BackendReport]:
        return self, BackendReport("HostCPU", "HostCPU", "HostCPU was asked for.")

    def compile_unit(self, unit: Unit) -> HostKernel:
        return host_kernel(unit, self.threads or available_threads())

    def group_size(self, lanes: int) -> int:
        return GROUP
