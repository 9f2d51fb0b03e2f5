"""Fused kernels on NVIDIA GPUs."""

import jax

from .._fused.cuda import CudaKernel, architecture_of, block_size, cuda_kernel
from .._fused.runner import AbstractFusedRunner
from .._fused.unit import Unit
from ._base import AbstractRunner, BackendReport


class CUDA(AbstractFusedRunner):
    """Fused kernels on an NVIDIA GPU, one thread per trajectory, on the device of the arrays."""

    def choose(self) -> tuple[AbstractRunner, BackendReport]:
        return self, BackendReport("CUDA", "CUDA", "CUDA was asked for.")

    def compile_unit(self, unit: Unit) -> CudaKernel:
        return cuda_kernel(unit, architecture_of(jax.devices("cuda")[0]))

    def group_size(self, lanes: int) -> int:
        return block_size(lanes)
