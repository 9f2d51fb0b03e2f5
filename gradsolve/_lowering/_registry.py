"""Lowering rules, kept by primitive object."""

import abc
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives
from jax.extend.core import Jaxpr, Primitive

from ._arrays import Operand
from ._build import Builder
from ._errors import Refused


class AbstractContext(abc.ABC):
    """What a rule may use besides its operands.

    - `builder`: emits operations.
    - `outputs`: shapes and dtypes of the results, as `shape` and `dtype` of each.
    """

    builder: Builder
    outputs: Sequence[Any]

    @abc.abstractmethod
    def run(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Operand]) -> list[Operand]:
        """Lowers an inner jaxpr in place."""


Rule = Callable[..., Operand | list[Operand]]


@dataclass(frozen=True)
class _Entry:
    rule: Rule
    parameters: frozenset[str]


_RULES: dict[Primitive, _Entry] = {}
_NAMED_RULES: dict[str, _Entry] = {}


def _keywords(rule: Rule) -> frozenset[str]:
    return frozenset(
        name
        for name, parameter in inspect.signature(rule).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


def lowers(*primitives: Primitive) -> Callable[[Rule], Rule]:
    """Registers a rule.

    A rule takes the context, one operand per input and the primitive's parameters as keyword-only
    arguments, by name: those that it does not name are refused, since ignoring a parameter that
    another version of JAX adds would compile the primitive wrongly and silently. It returns one
    operand, or a list of them where the primitive has several results.
    """

    def register(rule: Rule) -> Rule:
        named = _keywords(rule)
        for primitive in primitives:
            _RULES[primitive] = _Entry(rule, named)
        return rule

    return register


def lowers_named(name: str) -> Callable[[Rule], Rule]:
    """Registers a rule for a primitive that JAX has no public name for."""

    def register(rule: Rule) -> Rule:
        _NAMED_RULES[name] = _Entry(rule, _keywords(rule))
        return rule

    return register


def existing(*names: str) -> list[Primitive]:
    """The primitives of these names that the installed version of JAX has."""
    places = (jax.lax, jax.extend.core.primitives)
    found = [getattr(place, f"{name}_p", None) for name in names for place in places]
    return list(dict.fromkeys(primitive for primitive in found if primitive is not None))


def apply_rule(
    context: AbstractContext,
    primitive: Primitive,
    operands: Sequence[Operand],
    params: dict[str, Any],
) -> list[Operand]:
    """Lowers one equation, or raises `Refused`."""
    entry = _RULES.get(primitive) or _NAMED_RULES.get(primitive.name)
    if entry is None:
        raise Refused("has no C++ lowering")
    for name in params:
        if name not in entry.parameters:
            raise Refused(f"has no C++ lowering with the parameter `{name}`")
    results = entry.rule(context, *operands, **params)
    return [results] if isinstance(results, Operand) else results


def refuse_unless(parameter: str, value: Any, *allowed: Any) -> None:
    """Refuses a parameter with a value that would change the result."""
    if value not in allowed:
        raise Refused(f"has no C++ lowering with `{parameter}={value}`")
