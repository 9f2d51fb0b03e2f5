from ._base import AbstractController as AbstractController
from ._base import Decision as Decision
from ._base import Window as Window
from .constant import ConstantStep as ConstantStep
from .norms import rms_norm as rms_norm
from .pid import PIDController as PIDController
from .step_to import StepTo as StepTo
