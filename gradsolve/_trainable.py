"""Which leaves of a system and of an initial state a fit may change."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ._custom_types import PyTree
from ._system import is_parameter


@dataclasses.dataclass(frozen=True)
class Trainable:
    """What `fit` changes, as filter specifications of the kind that `equinox.partition` takes.

    Each is a pytree of booleans and of functions from a leaf to a boolean: of the structure of the
    argument, or a prefix of it. `True` means every floating-point array below; other leaves are
    constants whatever is asked for.

    **Arguments:**

    - `system`: leaves of the system; default: every floating-point array.
    - `y0`: leaves of the initial state; default: none.
    """

    system: PyTree = True
    y0: PyTree = False


def split(name: str, spec: PyTree, tree: PyTree) -> tuple[PyTree, PyTree]:
    """What is trained, as arrays, and the rest; `None` in place of the other.

    **Raises:**

    `ValueError` if the specification does not fit the tree.
    """

    def of_subtree(choice: Any, below: PyTree) -> PyTree:
        if eqx.is_array(choice) and choice.dtype == bool and choice.ndim == 0:
            # `LotkaVolterra(True, False, ...)`: the system has made arrays of the booleans.
            choice = bool(choice)
        if isinstance(choice, bool):
            return jtu.tree_map(lambda leaf: choice and is_parameter(leaf), below)
        if callable(choice):
            return jtu.tree_map(lambda leaf: bool(choice(leaf)) and is_parameter(leaf), below)
        raise ValueError(
            f"`trainable` for `{name}` may consist of booleans and functions of a leaf, got "
            f"{choice!r}."
        )

    try:
        mask = jtu.tree_map(of_subtree, spec, tree)
    except ValueError as error:
        if "`trainable`" in str(error):
            raise
        raise ValueError(
            f"`trainable` for `{name}` must have the structure of `{name}` or be a prefix of it: "
            f"{error} Start from `jax.tree.map(lambda _: False, {name})` and set leaves to True "
            "with `equinox.tree_at`."
        ) from None
    trained, fixed = eqx.partition(tree, mask)
    return jtu.tree_map(strong, trained), fixed


def strong(leaf: Any, dtype: Any = None) -> Any:
    """A number or array as an array of a definite dtype: the one it has, or the one given.

    A weakly typed one, from `jnp.asarray(1.0)`, would become definite in the first update of a
    fit, and the second would be compiled again.
    """
    if not eqx.is_array_like(leaf):
        return leaf
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return array  # a random key
    return jax.lax.convert_element_type(array, array.dtype if dtype is None else dtype)


def named_leaves(parameters: PyTree) -> list[tuple[str, Any]]:
    """What is trained: names such as `system.alpha`, and arrays.

    `parameters` is the pair of what `split` returned for the system and for the initial state.
    """
    return [
        (f"{root}{jtu.keystr(path)}", leaf)
        for root, tree in zip(("system", "y0"), parameters, strict=True)
        for path, leaf in jtu.tree_flatten_with_path(tree)[0]
    ]
