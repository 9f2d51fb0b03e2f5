from ._base import AbstractBackend as AbstractBackend
from ._base import AbstractRunner as AbstractRunner
from ._base import BackendReport as BackendReport
from .auto import Auto as Auto
from .xla import XLA as XLA
