"""The lowering rules, by theme; importing them registers them."""

from . import calls as calls
from . import control as control
from . import elementwise as elementwise
from . import indexing as indexing
from . import linear as linear
from . import moves as moves
from . import reductions as reductions
from . import sorting as sorting
