"""The model: an Equinox module with a vector field."""

import abc
import types
import typing
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, Array, PyTree

from ._custom_types import Time


def _accepts_array(annotation: Any) -> bool:
    """Whether a field annotation means "a JAX array", possibly one of several alternatives."""
    if isinstance(annotation, str):
        # An annotation that could not be evaluated (a local name under postponed evaluation).
        return "Array" in annotation and "ArrayLike" not in annotation
    if annotation is Array:
        return True
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return annotation.array_type in (Array, Any)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_accepts_array(alternative) for alternative in typing.get_args(annotation))
    return False


def _wants_integers(annotation: Any) -> bool:
    if not (isinstance(annotation, type) and issubclass(annotation, AbstractArray)):
        return False
    return not any("float" in dtype for dtype in annotation.dtypes)


def _as_parameter(value: Any, annotation: Any) -> Any:
    """Python and NumPy scalars and NumPy arrays become JAX arrays; anything else is untouched."""
    if not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return value
    # Under `jit` too these are constants, so that `Lorenz(None, 0, None)` can name axes there.
    with jax.ensure_compile_time_eval():
        if isinstance(value, bool | np.bool_):
            return jnp.asarray(value)
        if isinstance(value, float) or (isinstance(value, int) and not _wants_integers(annotation)):
            # A parameter written `k=1` is a number to be fitted, not an index. Naming the dtype
            # keeps JAX from making the array weakly typed, which the first update of a fit would
            # change.
            return jnp.asarray(value, jnp.result_type(float))
        return jnp.asarray(value)


class _ConvertingMeta(type(eqx.Module)):
    """Converts Python scalars given to `Array` fields once `__init__` has finished."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "mass_matrix" in getattr(cls, "__dataclass_fields__", {}):
            raise TypeError(
                f"`{cls.__name__}.mass_matrix` cannot be a field of the model, for it must be "
                "constant. Write a property that returns it, or an attribute of the class without "
                "an annotation."
            )
        self = super().__call__(*args, **kwargs)
        for name, annotation in _array_fields(cls).items():
            value = getattr(self, name, None)
            converted = _as_parameter(value, annotation)
            if converted is not value:
                object.__setattr__(self, name, converted)
        return self


def _array_fields(cls: type) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError:
        # Some annotation names something local; fall back on the raw annotations.
        hints = {
            name: annotation
            for base in reversed(cls.__mro__)
            for name, annotation in base.__dict__.get("__annotations__", {}).items()
        }
    fields = getattr(cls, "__dataclass_fields__", {})
    return {
        name: hints[name]
        for name, field in fields.items()
        if name in hints and not field.metadata.get("static", False) and _accepts_array(hints[name])
    }


class ODESystem(eqx.Module, metaclass=_ConvertingMeta):
    """A model `dy/dt = vector_field(t, y)`; subclass it and add the parameters as fields.

    Parameters are the floating-point array leaves of the module, of any shape, nested modules
    included. Arrays closed over and integer leaves are constants. A Python or NumPy number given
    to a field annotated as an array (`Array`, `Float[Array, "..."]`) is converted to an array of
    the default floating-point type.

    ??? example

        ```python
        class Decay(gs.ODESystem):
            rate: Array

            def vector_field(self, t, y):
                return -self.rate * y
        ```
    """

    @abc.abstractmethod
    def vector_field(self, t: Time, y: PyTree) -> PyTree:
        """The time derivative of one trajectory's state.

        **Arguments:**

        - `t`: the time, a scalar of the state's dtype.
        - `y`: the state, any pytree of floating-point arrays.

        **Returns:**

        `dy/dt`, with the structure, shapes and dtype of `y`, in units of `y` per unit of `t`.
        """

    @property
    def mass_matrix(self) -> Any:
        """The constant matrix `M` of `M dy/dt = vector_field(t, y)`; `None` for the identity.

        Define it as a property, or as an attribute of the class: an array of shape `(dim, dim)`,
        where `dim` counts the numbers of the state in the order of its leaves. It may be singular
        (a differential-algebraic system, of index 1), and must not depend on parameters.
        Rosenbrock methods take it.
        """
        return None


def is_parameter(leaf: Any) -> bool:
    """Whether a leaf of a system is a parameter, that is a floating-point array."""
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
