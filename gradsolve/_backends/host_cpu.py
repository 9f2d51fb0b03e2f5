"""Fused kernels on the CPU."""

import equinox as eqx

from .._build import CompilerNotFoundError, host_compiler
from .._fused.host import GROUP, HostKernel, available_threads, host_kernel
from .._fused.runner import AbstractFusedRunner
from .._fused.unit import Unit
from ._base import Question


class HostCPU(AbstractFusedRunner):
    """Fused kernels, compiled by the machine's C++ compiler, on packs of trajectories and threads.

    **Arguments:**

    - `threads`: how many threads work; `None` for one per processor that the process may use. The
        numbers do not depend on it.
    """

    threads: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.threads is not None and not (isinstance(self.threads, int) and self.threads >= 1):
            raise ValueError(f"`threads` must be a positive integer or None, got {self.threads!r}.")

    def unavailable(self, question: Question) -> str | None:
        if question.platform != "cpu":
            return (
                f"`HostCPU()` works on arrays in the memory of the CPU, and these are on "
                f"{question.platform!r}: use `CUDA()` or `Auto()`, or move them with "
                "`jax.device_put(..., jax.devices('cpu')[0])`."
            )
        try:
            host_compiler()
        except CompilerNotFoundError as error:
            return str(error)
        return None

    def compile_unit(self, unit: Unit) -> HostKernel:
        return host_kernel(unit, self.threads or available_threads())

    def group_size(self, lanes: int) -> int:
        return GROUP
