"""The lowering rules, by theme; importing them registers them.

Some parameters are named by a rule and not used. `sharding` says where XLA keeps an array,
`precision` how coarsely it may multiply, `accuracy` how far off an elementary function may be, and
hints such as `indices_are_sorted` what XLA may assume.
"""

from . import calls as calls
from . import control as control
from . import elementwise as elementwise
from . import indexing as indexing
from . import linear as linear
from . import moves as moves
from . import reductions as reductions
from . import sorting as sorting
