"""The default choice of a backend."""

from .._fused.refusal import refusal
from ._base import AbstractBackend, AbstractRunner, BackendReport, Question
from .cuda import CUDA
from .host_cpu import HostCPU
from .xla import XLA


class Auto(AbstractBackend):
    """Chooses the fastest backend that can run the problem; `Trajectory.backend` says which.

    Fused kernels where the arrays are on a CPU or an NVIDIA GPU, and the vector field can be
    lowered and is not so large that plain JAX serves it better; otherwise plain JAX.
    """

    def choose(self, question: Question) -> tuple[AbstractRunner, BackendReport]:
        runner = {"cpu": HostCPU(), "gpu": CUDA()}.get(question.platform)
        if runner is None:
            reason = f"There are no fused kernels for the platform {question.platform!r}."
            return XLA(), BackendReport("Auto", "XLA", reason)
        name = type(runner).__name__
        if question.devices > 1:
            reason = (
                f"The arrays are spread over {question.devices} devices, and a fused kernel runs "
                "on one."
            )
            return XLA(), BackendReport("Auto", "XLA", reason)
        problem = runner.unavailable(question) or refusal(name, question, worthwhile=True)
        if problem is not None:
            return XLA(), BackendReport("Auto", "XLA", problem)
        where = "a CPU" if name == "HostCPU" else "an NVIDIA GPU"
        reason = f"The arrays are on {where} and the vector field can be lowered to C++."
        return runner, BackendReport("Auto", name, f"{reason} {runner.remark()}".rstrip())
