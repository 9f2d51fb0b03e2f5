"""From a jaxpr to the intermediate representation."""

import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from . import _rules as _rules
from ._arrays import Operand, known, of_values, view
from ._build import Builder
from ._errors import Refused, TooLargeError
from ._ir import Function, Input, Leaf, object_array
from ._passes import optimize
from ._registry import AbstractContext, apply_rule

MAX_OPERATIONS = 20_000
"""The default for the most scalar operations that a function may have.

A field of this size is about 0.7 MB of C++, which g++ compiles in about half a minute.
"""


def lower(
    jaxpr: Jaxpr,
    inputs: Sequence[Input | np.ndarray],
    *,
    structural_zeros: bool = True,
    max_operations: int = MAX_OPERATIONS,
) -> Function:
    """Lowers a function of one trajectory to operations on scalars.

    **Arguments:**

    - `jaxpr`: the traced function.
    - `inputs`: one per constant and argument of the jaxpr, in this order: a `Leaf`, the name of a
        C++ argument, or an array of known numbers. Entry `i` of an array argument, in C order,
        becomes `ARGUMENT(name, i)`; a scalar one has no index.
    - `structural_zeros`: whether the product of an exact zero with anything is zero, as befits a
        derivative, also where the other factor is infinite.
    - `max_operations`: the most scalar operations that the function may have.

    **Returns:**

    The function, with dead code removed and products contracted into sums.

    **Raises:**

    A `LoweringError`, whose sentence names the primitive and the user's file and line.
    """
    variables = [*jaxpr.constvars, *jaxpr.invars]
    if len(variables) != len(inputs):
        raise ValueError(
            f"The jaxpr has {len(variables)} constants and arguments, got {len(inputs)} inputs."
        )
    builder = Builder(max_operations, structural_zeros)
    operands = [
        _input(builder, variable.aval, given)
        for variable, given in zip(variables, inputs, strict=True)
    ]
    count = len(jaxpr.constvars)
    outputs = _Walker(builder).run(jaxpr, operands[:count], operands[count:])
    function = Function(
        tuple(given for given in inputs if not isinstance(given, np.ndarray)),
        tuple(output.values(builder) for output in outputs),
        builder.root,
    )
    return optimize(function)


def _input(builder: Builder, aval: Any, given: Input | np.ndarray) -> Operand:
    if isinstance(given, np.ndarray):
        return known(given)
    if isinstance(given, Leaf):
        if given.shape != aval.shape or given.dtype != aval.dtype:
            raise ValueError(
                f"Leaf {given.index} is {given.dtype}{list(given.shape)}, but the jaxpr takes "
                f"{aval.dtype}{list(aval.shape)}."
            )
        return view(given)
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return _opaque(aval)
    if aval.shape == ():
        entries = [builder.argument(given, None, aval.dtype)]
    else:
        size = int(np.prod(aval.shape))
        entries = [builder.argument(given, i, aval.dtype) for i in range(size)]
    return of_values(object_array(entries, aval.shape), aval.dtype)


class _Walker(AbstractContext):
    """Lowers the equations of a jaxpr and of those inside it, in order."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.outputs: Sequence[Any] = ()
        self._place = ""
        # Iterations of a long scan may all fold to nothing; they take time nevertheless.
        self._visits_left = 50 * builder.max_operations

    def run(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Operand]) -> list[Operand]:
        """Lowers a jaxpr in place."""
        environment: dict[Any, Operand] = {}
        for variable, const in zip(jaxpr.constvars, consts, strict=True):
            environment[variable] = (
                const if isinstance(const, Operand) else _constant(const, variable.aval)
            )
        environment.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Operand:
            if isinstance(atom, Literal):
                return _constant(atom.val, atom.aval)
            return environment[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(atom) for atom in eqn.invars])
            environment.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: JaxprEqn, operands: list[Operand]) -> list[Operand]:
        outer = self._place, self.outputs
        self._place = _user_place(eqn.source_info) or self._place
        self.outputs = [variable.aval for variable in eqn.outvars]
        try:
            self._visits_left -= 1
            if self._visits_left < 0:
                raise Refused("is repeated too often to be unrolled", TooLargeError)
            return apply_rule(self, eqn.primitive, operands, eqn.params)
        except Refused as refused:
            where = f"; it is used at {self._place}" if self._place else ""
            raise refused.error(
                f"The primitive `{eqn.primitive.name}` {refused.predicate}{where}."
            ) from None
        finally:
            self._place, self.outputs = outer


def _constant(value: Any, aval: Any) -> Operand:
    if aval.dtype == jax.dtypes.float0:
        return known(np.zeros(aval.shape, np.bool_))
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return _opaque(aval)
    return known(np.asarray(value, dtype=aval.dtype).reshape(aval.shape))


def _opaque(aval: Any) -> Operand:
    # A random key: whatever uses it is refused where it is used.
    return Operand(np.empty(aval.shape, dtype=object), aval.dtype)


# ---- The user's file and line -------------------------------------------------------------------

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (os.path.dirname(__file__), jax.__file__, eqx.__file__)
)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _is_library(file: str) -> bool:
    # Installed packages, a user's among them, may lie inside the standard library's directory.
    return (
        file.startswith(_LIBRARIES)
        or file.startswith("<")
        or (file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file)
    )


def _user_place(source_info: Any) -> str:
    """File, line and function of the innermost frame that is neither ours nor a library's.

    Code that JAX traced once and cached (a `jit` inside `jax.numpy`) has no such frame; then the
    place of the equation that contains it says more.
    """
    traceback = source_info.traceback
    if traceback is None:
        return ""
    for frame in traceback.frames:
        if not _is_library(frame.file_name):
            return f"{frame.file_name}:{frame.line_num} ({frame.function_name})"
    return ""
