from ._explicit import AbstractExplicitRK as AbstractExplicitRK
from ._tableau import ButcherTableau as ButcherTableau, DenseOutput as DenseOutput
from .bosh3 import Bosh3 as Bosh3
from .dopri5 import Dopri5 as Dopri5
from .dopri8 import Dopri8 as Dopri8
from .euler import Euler as Euler
from .heun import Heun as Heun
from .midpoint import Midpoint as Midpoint
from .ralston import Ralston as Ralston
from .rk4 import RK4 as RK4
from .tsit5 import Tsit5 as Tsit5
from .vern7 import Vern7 as Vern7
from .vern9 import Vern9 as Vern9
