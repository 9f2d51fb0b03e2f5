"""Lowering of traced functions of one trajectory to C++ text.

Three layers, one per file, and each knows only its neighbours: jaxpr to intermediate representation
(`_lower.py`, with the rules in `_rules/`), the passes over it (`_passes.py`, `_order.py`,
`_quotients.py`), and its text (`_print.py`).
"""

from ._calls import called_functions as called_functions
from ._calls import has_elementary_functions as has_elementary_functions
from ._errors import LoweringError as LoweringError
from ._errors import TooLargeError as TooLargeError
from ._errors import UnsupportedPrimitiveError as UnsupportedPrimitiveError
from ._ir import Block as Block
from ._ir import Function as Function
from ._ir import Leaf as Leaf
from ._ir import Op as Op
from ._ir import Value as Value
from ._lower import lower as lower
from ._print import joins_quotients as joins_quotients
from ._print import print_body as print_body
from ._quotients import has_quotients as has_quotients
from ._stores import Sink as Sink
