"""The vector field of a whole ensemble, and its linearisation."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr, Literal

from .._custom_types import Array, LaneMatrix, LaneState, LaneTime, Leaf
from .components import (
    MAX_OPERATIONS,
    MAX_SIZE,
    TooLarge,
    evaluate_components,
    object_array,
    split,
    struct,
)

Pullback = Callable[[LaneState], tuple[list[Leaf], LaneTime | None, LaneState]]

Derivatives = tuple[LaneMatrix, LaneState | None]
"""The field's derivatives by the state and by time; `None` if time does not appear in it."""

JacobianPullback = Callable[
    [LaneMatrix, LaneState | None], tuple[list[Leaf], LaneTime | None, LaneState]
]


class FieldJaxpr:
    """The vector field of one trajectory: a jaxpr of `(*parameters, t, y) -> dy/dt`, flat state.

    Its constants (arrays that the field closes over) are passed in explicitly: the leaves of the
    field are the parameters followed by the constants. `evaluations` is the number of times that a
    step evaluates the field. `mass` is the matrix that multiplies `dy/dt`, `None` for the identity.
    """

    def __init__(
        self, jaxpr: Jaxpr, num_parameters: int, evaluations: int, mass: np.ndarray | None
    ) -> None:
        self.jaxpr = jaxpr
        self.mass = mass
        self._max_operations = MAX_OPERATIONS // evaluations
        self.num_parameters = num_parameters
        self.dim = struct(jaxpr.invars[-1]).shape[0]
        sizes = [struct(var).size for var in (*jaxpr.invars[:num_parameters], *jaxpr.constvars)]
        self.is_split = tuple(size <= MAX_SIZE for size in sizes)
        self.in_components = self.dim <= MAX_SIZE and self._fits()
        self.has_time = _reaches_outputs(jaxpr, jaxpr.invars[num_parameters])

    def _fits(self) -> bool:
        variables = (*self.jaxpr.invars[: self.num_parameters], *self.jaxpr.constvars)
        structs = [struct(var) for var in variables]
        scalar = jax.ShapeDtypeStruct((), struct(self.jaxpr.invars[-1]).dtype)

        def call(leaves: list[Leaf], t: Array, y: list[Array]) -> list[Array]:
            return self.call_components(leaves, t, y)

        try:
            jax.eval_shape(call, structs, scalar, [scalar] * self.dim)
        except TooLarge:
            return False
        return True

    def __call__(self, leaves: Sequence[Leaf], t: Array, y: Array) -> Array:
        count = self.num_parameters
        return eval_jaxpr(self.jaxpr, list(leaves[count:]), *leaves[:count], t, y)[0]

    def call_components(self, leaves: Sequence[Any], t: Array, y: Sequence[Array]) -> list[Array]:
        """The same, component by component; small leaves may come as object arrays of scalars."""
        count = self.num_parameters
        values = [split(leaf) for leaf in leaves]
        return evaluate_components(
            self.jaxpr, values[count:], values[:count], t, y, self._max_operations
        )


class EnsembleField:
    """`dy/dt` of every lane at once.

    Time always runs forwards here: a lane that integrates backwards has `direction` -1 and sees
    the field `s f(s t, y)` of the reversed time `s t`. Multiplying by plus or minus one is exact.
    """

    def __init__(
        self,
        field: FieldJaxpr,
        leaves: Sequence[Leaf],
        is_lane: Sequence[bool],
        direction: LaneTime,
    ) -> None:
        self._field = field
        self.mass = field.mass
        self.leaves = list(leaves)
        self.is_lane = tuple(is_lane)
        self.direction = direction

    def __call__(self, t: LaneTime, y: LaneState) -> LaneState:
        y = self._components(materialise(y))
        return self._join(self._evaluate(self._take_apart(self.leaves), t, y))

    def one_lane(self, leaves: Sequence[Leaf], direction: Array, t: Array, y: Array) -> Array:
        """`dy/dt` of one lane with these leaves and this direction, for code that vmaps over lanes.

        Along the lanes, `leaves` have the axis -1 where `is_lane` says so.
        """
        return direction * self._field(leaves, direction * t, y)

    def linearise(
        self, wanted: Sequence[int], want_time: bool, t: LaneTime, y: LaneState
    ) -> tuple[LaneState, Pullback]:
        """The field's value and its VJP, by JAX, for the leaves numbered in `wanted`, `t`, `y`."""
        parts = self._take_apart(self.leaves)

        def evaluate(some: list[Any], t: LaneTime, y: Any) -> Any:
            every = list(parts)
            for index, part in zip(wanted, some, strict=True):
                every[index] = part
            return self._evaluate(every, t, y)

        some = [parts[index] for index in wanted]
        y = materialise(y)
        if want_time:
            k, pull = jax.vjp(evaluate, some, t, self._components(y))
        else:
            k, pull = jax.vjp(lambda some, y: evaluate(some, t, y), some, self._components(y))

        def pullback(ct: LaneState) -> tuple[list[Leaf], LaneTime | None, LaneState]:
            ct_some, *ct_t, ct_y = pull(self._components(materialise(ct)))
            ct_leaves = [
                self._put_together(index, part) for index, part in zip(wanted, ct_some, strict=True)
            ]
            return ct_leaves, ct_t[0] if want_time else None, self._join(ct_y)

        return self._join(k), pullback

    def jacobian(self, t: LaneTime, y: LaneState) -> Derivatives:
        """The field's derivatives by state and time, by JAX."""
        return self._derivatives(self.leaves, t, materialise(y))

    def linearise_jacobian(
        self, wanted: Sequence[int], want_time: bool, t: LaneTime, y: LaneState
    ) -> tuple[Derivatives, JacobianPullback]:
        """The same and their VJP, for the leaves numbered in `wanted`, `t` and `y`."""

        def evaluate(some: list[Leaf], t: LaneTime, y: LaneState) -> Derivatives:
            every = list(self.leaves)
            for index, leaf in zip(wanted, some, strict=True):
                every[index] = leaf
            return self._derivatives(every, t, y)

        some = [self.leaves[index] for index in wanted]
        y = materialise(y)
        if want_time:
            out, pull = jax.vjp(evaluate, some, t, y)
        else:
            out, pull = jax.vjp(lambda some, y: evaluate(some, t, y), some, y)

        def pullback(
            ct_jacobian: LaneMatrix, ct_slope: LaneState | None
        ) -> tuple[list[Leaf], LaneTime | None, LaneState]:
            if self._field.has_time and ct_slope is None:
                ct_slope = jnp.zeros_like(y)
            ct_some, *ct_t, ct_y = pull((ct_jacobian, ct_slope))
            return ct_some, ct_t[0] if want_time else None, ct_y

        return out, pullback

    def _derivatives(self, leaves: Sequence[Leaf], t: LaneTime, y: LaneState) -> Derivatives:
        axes = [-1 if lane else None for lane in self.is_lane]

        def one(leaves: list[Leaf], direction: Array, t: Array, y: Array) -> Any:
            by_state = jax.jacfwd(lambda y: self.one_lane(leaves, direction, t, y))(y)
            if not self._field.has_time:
                return by_state, None
            by_time = jax.jacfwd(lambda t: self.one_lane(leaves, direction, t, y))(t)
            return by_state, by_time

        run = jax.vmap(one, in_axes=(axes, 0, 0, -1), out_axes=-1)
        return run(list(leaves), self.direction, t, y)

    # In component form a state is a list of its components, and a small leaf a list of its
    # entries; in array form both are themselves.

    def _components(self, y: LaneState) -> Any:
        return [y[i] for i in range(self._field.dim)] if self._field.in_components else y

    def _join(self, y: Any) -> LaneState:
        return jnp.stack(y) if self._field.in_components else y

    def _is_split(self, index: int) -> bool:
        return self._field.in_components and self._field.is_split[index]

    def _take_apart(self, leaves: Sequence[Leaf]) -> list[Any]:
        parts = []
        for index, leaf in enumerate(leaves):
            if not self._is_split(index):
                parts.append(leaf)
            elif self.is_lane[index]:
                rows = leaf.reshape(-1, leaf.shape[-1])
                parts.append([rows[i] for i in range(rows.shape[0])])
            else:
                entries = leaf.reshape(-1)
                parts.append([entries[i] for i in range(entries.shape[0])])
        return parts

    def _put_together(self, index: int, part: Any) -> Leaf:
        shape = self.leaves[index].shape
        if not self._is_split(index):
            return part
        return (
            jnp.stack(part).reshape(shape) if part else jnp.zeros(shape, self.leaves[index].dtype)
        )

    def _evaluate(self, parts: list[Any], t: LaneTime, y: Any) -> Any:
        tau = self.direction * t
        if not self._field.in_components:
            axes = [-1 if lane else None for lane in self.is_lane]
            run = jax.vmap(self._field, in_axes=(axes, 0, -1), out_axes=-1)
            return self.direction * run(parts, tau, y)

        axes = [
            [-1 if lane else None] * len(part) if self._is_split(i) else (-1 if lane else None)
            for i, (part, lane) in enumerate(zip(parts, self.is_lane, strict=True))
        ]

        def one(parts: list[Any], t: Array, y: list[Array]) -> list[Array]:
            return self._field.call_components(
                [self._object_array(i, part) for i, part in enumerate(parts)], t, y
            )

        dy = jax.vmap(one, in_axes=(axes, 0, 0))(parts, tau, y)
        return [self.direction * component for component in dy]

    def _object_array(self, index: int, part: Any) -> Any:
        if not self._is_split(index):
            return part
        shape = self.leaves[index].shape
        return object_array(part, shape[:-1] if self.is_lane[index] else shape)


def _reaches_outputs(jaxpr: Jaxpr, variable: Any) -> bool:
    """Whether an output may depend on a variable; an equation passes it on to all its results."""
    touched = {variable}
    for eqn in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in touched for atom in eqn.invars):
            touched.update(eqn.outvars)
    return any(not isinstance(atom, Literal) and atom in touched for atom in jaxpr.outvars)


def materialise(x: LaneState) -> LaneState:
    """`x`, computed once and stored, where XLA respects a barrier.

    XLA fuses the arithmetic that makes `x` into every operation that reads it, and a vector field
    reads its argument many times.
    """
    return jax.lax.optimization_barrier(x)


def weighted_sum(weights: Sequence[float], values: Sequence[LaneState]) -> LaneState | None:
    """`sum_i weights[i] values[i]` in that order, skipping exact zeros; `None` if all are zero."""
    total = None
    for weight, value in zip(weights, values, strict=False):
        if weight == 0:
            continue
        term = value if weight == 1 else weight * value
        total = term if total is None else total + term
    return total
