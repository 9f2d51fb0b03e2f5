"""Signatures of Equinox modules in the API reference.

A module's fields are the arguments of its `__init__`, which Equinox writes at run time. The pages
are made without running the package, so this extension of Griffe writes it too.
"""

from typing import Any, cast

import griffe


def _is_equinox_module(cls: griffe.Class) -> bool:
    return any(
        isinstance(base, griffe.Expr) and base.canonical_path == "equinox.Module"
        for parent in (cls, *cls.mro())
        for base in parent.bases
    )


def _fields(cls: griffe.Class) -> list[griffe.Attribute]:
    # A class variable has lost its `ClassVar` here; what is left is that no instance has it.
    return [
        cast(griffe.Attribute, member)
        for member in cls.members.values()
        if member.is_attribute
        and not member.name.startswith("_")
        and "instance-attribute" in member.labels
        and "ClassVar" not in str(cast(griffe.Attribute, member).annotation)
    ]


def _default(field: griffe.Attribute) -> str | griffe.Expr | None:
    value = field.value
    if not (isinstance(value, griffe.ExprCall) and value.canonical_path == "equinox.field"):
        return value
    arguments = {
        argument.name: argument.value
        for argument in value.arguments
        if isinstance(argument, griffe.ExprKeyword)
    }
    return arguments.get("default")


def _add_init(cls: griffe.Class) -> None:
    parameters = [
        griffe.Parameter(
            field.name,
            annotation=field.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=_default(field),
        )
        for parent in (*reversed(cls.mro()), cls)
        for field in _fields(parent)
    ]
    self = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    init = griffe.Function("__init__", parameters=griffe.Parameters(self, *parameters))
    cls.set_member("__init__", init)


class EquinoxModules(griffe.Extension):
    """Gives every Equinox module without an `__init__` of its own the one that Equinox gives it."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called by Griffe once it has read the whole package."""
        self._visit(pkg)

    def _visit(self, parent: griffe.Module | griffe.Class) -> None:
        for member in list(parent.members.values()):
            if member.is_alias:
                continue
            if isinstance(member, griffe.Class) and _is_equinox_module(member):
                if "__init__" not in member.members:
                    _add_init(member)
            elif isinstance(member, griffe.Module):
                self._visit(member)
