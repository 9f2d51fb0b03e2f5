"""Ensembles of low-dimensional ODEs, and their exact discrete gradient."""

from . import datasets as datasets
from . import plot as plot
from ._adjoint import DiscreteAdjoint as DiscreteAdjoint
from ._backends import CUDA as CUDA
from ._backends import XLA as XLA
from ._backends import Auto as Auto
from ._backends import BackendReport as BackendReport
from ._backends import HostCPU as HostCPU
from ._controllers import ConstantStep as ConstantStep
from ._controllers import PIDController as PIDController
from ._controllers import StepTo as StepTo
from ._controllers import rms_norm as rms_norm
from ._fit import FitError as FitError
from ._fit import FitResult as FitResult
from ._fit import fit as fit
from ._in_axes import InAxes as InAxes
from ._integrators import RK4 as RK4
from ._integrators import Bosh3 as Bosh3
from ._integrators import Dopri5 as Dopri5
from ._integrators import Dopri8 as Dopri8
from ._integrators import Euler as Euler
from ._integrators import FromDiffrax as FromDiffrax
from ._integrators import Heun as Heun
from ._integrators import Midpoint as Midpoint
from ._integrators import Ralston as Ralston
from ._integrators import Tsit5 as Tsit5
from ._integrators import Vern7 as Vern7
from ._integrators import Vern9 as Vern9
from ._kernel_source import kernel_source as kernel_source
from ._mesh import Mesh as Mesh
from ._rerecord import Always as Always
from ._rerecord import Every as Every
from ._rerecord import Never as Never
from ._results import RESULTS as RESULTS
from ._results import SolveError as SolveError
from ._solve import solve as solve
from ._system import ODESystem as ODESystem
from ._trainable import Trainable as Trainable
from ._trajectory import Stats as Stats
from ._trajectory import Trajectory as Trajectory

__version__ = "0.1.0"
