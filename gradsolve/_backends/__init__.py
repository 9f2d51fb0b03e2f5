from ._base import AbstractBackend as AbstractBackend
from ._base import AbstractRunner as AbstractRunner
from ._base import BackendReport as BackendReport
from ._base import Question as Question
from .auto import Auto as Auto
from .cuda import CUDA as CUDA
from .host_cpu import HostCPU as HostCPU
from .xla import XLA as XLA
