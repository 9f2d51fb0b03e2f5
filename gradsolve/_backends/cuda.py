"""Fused kernels on NVIDIA GPUs."""

import importlib.util
from typing import ClassVar

import jax

from .._fused.cuda import CudaKernel, architecture_of, block_size, cuda_kernel, launcher_for_gpu
from .._fused.runner import AbstractFusedRunner
from .._fused.unit import Unit
from ._base import Question


class CUDA(AbstractFusedRunner):
    """Fused kernels on an NVIDIA GPU, one thread per trajectory, on the device of the arrays."""

    sorts: ClassVar[bool] = True

    def unavailable(self, question: Question) -> str | None:
        if question.platform != "gpu":
            return (
                f"`CUDA()` works on arrays on an NVIDIA GPU, and these are on "
                f"{question.platform!r}: use `HostCPU()` or `Auto()`, or install JAX with CUDA "
                "(`pip install gradsolve[cuda13]`)."
            )
        if importlib.util.find_spec("cuda") is None:
            return (
                "`CUDA()` needs the package cuda-core: `pip install gradsolve[cuda13]` (or "
                "`gradsolve[cuda12]`, whichever CUDA your JAX is built for)."
            )
        return None

    def remark(self) -> str:
        launcher = launcher_for_gpu()
        return launcher if isinstance(launcher, str) else ""

    def compile_unit(self, unit: Unit) -> CudaKernel:
        return cuda_kernel(unit, architecture_of(jax.devices("cuda")[0]))

    def group_size(self, lanes: int) -> int:
        return block_size(lanes)
