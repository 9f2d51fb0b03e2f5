"""The vector field of a whole ensemble, and its linearisation."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from .._custom_types import LaneState, LaneTime, Leaf

FieldCall = Callable[[Sequence[Leaf], Leaf, Leaf], Leaf]
"""`(leaves, t, y) -> dy/dt` of one trajectory, with a flat state."""

Pullback = Callable[[LaneState], tuple[list[Leaf], LaneTime | None, LaneState]]


class EnsembleField:
    """`dy/dt` of every lane at once.

    Time always runs forwards here: a lane that integrates backwards has `direction` -1 and sees
    the field `s f(s t, y)` of the reversed time `s t`. Multiplying by plus or minus one is exact.
    """

    def __init__(
        self,
        call: FieldCall,
        leaves: Sequence[Leaf],
        is_lane: Sequence[bool],
        direction: LaneTime,
    ) -> None:
        self._call = call
        self.leaves = list(leaves)
        self.is_lane = tuple(is_lane)
        self.direction = direction

    def __call__(self, t: LaneTime, y: LaneState) -> LaneState:
        return self._evaluate(self.leaves, t, y)

    def _evaluate(self, leaves: Sequence[Leaf], t: LaneTime, y: LaneState) -> LaneState:
        axes = [-1 if lane else None for lane in self.is_lane]
        call = jax.vmap(self._call, in_axes=(axes, 0, -1), out_axes=-1)
        return self.direction * call(list(leaves), self.direction * t, y)

    def linearise(
        self, wanted: Sequence[int], want_time: bool, t: LaneTime, y: LaneState
    ) -> tuple[LaneState, Pullback]:
        """The field's value and its VJP, by JAX, for the leaves numbered in `wanted`, `t`, `y`."""

        def evaluate(some: list[Leaf], t: LaneTime, y: LaneState) -> LaneState:
            leaves = list(self.leaves)
            for index, leaf in zip(wanted, some, strict=True):
                leaves[index] = leaf
            return self._evaluate(leaves, t, y)

        some = [self.leaves[index] for index in wanted]
        if want_time:
            k, pull = jax.vjp(evaluate, some, t, y)
            return k, pull
        k, pull_without_time = jax.vjp(lambda some, y: evaluate(some, t, y), some, y)

        def pullback(ct: LaneState) -> tuple[list[Leaf], LaneTime | None, LaneState]:
            ct_leaves, ct_y = pull_without_time(ct)
            return ct_leaves, None, ct_y

        return k, pullback


def weighted_sum(weights: Sequence[float], values: Sequence[LaneState]) -> LaneState | None:
    """`sum_i weights[i] values[i]` in that order, skipping exact zeros; `None` if all are zero."""
    total = None
    for weight, value in zip(weights, values, strict=False):
        if weight == 0:
            continue
        term = value if weight == 1 else weight * value
        total = term if total is None else total + term
    return total


def where_lanes(flag: Leaf, yes: Leaf, no: Leaf) -> Leaf:
    """`jnp.where` on the last axis, broadcast over whatever stands before it."""
    return jnp.where(flag, yes, no)
