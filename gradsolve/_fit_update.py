"""The compiled part of a fit: one update of the parameters."""

import functools as ft
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax

from . import _results as codes
from ._adjoint import DiscreteAdjoint
from ._backends import AbstractBackend
from ._controllers import AbstractController
from ._core import TRACE_COUNTS
from ._custom_types import Array, Loss, PyTree
from ._in_axes import Axes, InAxes
from ._integrators import AbstractIntegrator
from ._solve import solve
from ._trainable import strong
from ._trajectory import Trajectory, status_of

# The mesh of a compiled solve and its checkpoints are filled with zeros in every update. Up to this
# many bytes that takes no time worth saving; above, filling them can take as long as the solve.
_LITTLE_MEMORY = 2**22


class Problem(eqx.Module):
    """Everything about a fit that its updates do not change."""

    fixed: tuple[PyTree, PyTree]  # system and y0, with None in place of what is trained
    loss: Loss
    optimizer: optax.GradientTransformation
    t0: Array
    t1: Array
    ts: Array
    dt0: Array | None
    controller: AbstractController
    integrator: AbstractIntegrator
    adjoint: DiscreteAdjoint
    backend: AbstractBackend
    axes: Axes = eqx.field(static=True)
    bytes_per_row: int = eqx.field(static=True)  # of a mesh and its checkpoints
    max_steps: int = eqx.field(static=True)
    throw: bool = eqx.field(static=True)

    def model(self, parameters: tuple[PyTree, PyTree]) -> tuple[Any, PyTree]:
        """The system and the initial state."""
        system, y0 = eqx.combine(parameters, self.fixed)
        return system, y0(system) if callable(y0) else y0

    def solve(
        self, parameters: tuple[PyTree, PyTree], *, throw: bool = False, room: int | None = None
    ) -> Trajectory:
        """Solves with the user's choices, in traced code with a mesh of `room` steps."""
        system, y0 = self.model(parameters)
        in_axes = None
        if self.axes.ensemble:
            trees = {name: getattr(self, name) for name in ("t0", "t1", "ts", "dt0", "controller")}
            trees |= {"system": system, "y0": y0}
            in_axes = InAxes(
                **{
                    name: jtu.tree_unflatten(jtu.tree_structure(tree), getattr(self.axes, name))
                    for name, tree in trees.items()
                }
            )
        return solve(
            system,
            y0,
            t0=self.t0,
            t1=self.t1,
            ts=self.ts,
            integrator=self.integrator,
            controller=self.controller,
            dt0=self.dt0,
            in_axes=in_axes,
            max_steps=self.max_steps if room is None else room,
            adjoint=self.adjoint,
            backend=self.backend,
            throw=throw,
        )

    def room_for(self, steps: int) -> int:
        """A capacity of at least so many steps.

        Compiled code depends on it, so there are few: `64 * 4**k` where memory does not matter,
        `2**k` and `3 * 2**(k - 1)` above.
        """
        room = 64
        while room < steps:
            room *= 4
        if room * self.bytes_per_row > _LITTLE_MEMORY:
            room = 1 << (steps - 1).bit_length()
            room = room * 3 // 4 if room * 3 // 4 >= steps else room
        return min(self.max_steps, room)

    def room_to_spare(self, steps: int) -> int:
        """A capacity for a fit whose first solve needs so many steps, and later ones maybe more."""
        room = self.room_for(4 * steps)
        if room * self.bytes_per_row > _LITTLE_MEMORY:
            room = self.room_for(steps + steps // 2)
        return room


class Report(NamedTuple):
    """What the host needs to know of an update."""

    loss: Array
    failed: Array  # the number of trajectories
    first: Array  # the index of the first of them
    status: Array  # its status
    out_of_steps: Array  # whether any trajectory is
    finite_gradient: Array  # per trained leaf
    finite_parameters: Array  # per trained leaf, after the update


@eqx.filter_jit
def init(optimizer: optax.GradientTransformation, parameters: PyTree) -> PyTree:
    """The optimiser's state before the first update."""
    return optimizer.init(parameters)


@eqx.filter_jit
def update(
    problem: Problem,
    room: int | None,
    recorded: Trajectory | None,
    parameters: tuple[PyTree, PyTree],
    state: PyTree,
) -> tuple[PyTree, PyTree, Report]:
    """The loss at `parameters`, and the parameters after one update.

    Replays `recorded`; without it, solves with a mesh of `room` steps.
    """
    TRACE_COUNTS["fit"] += 1

    def evaluate(parameters: PyTree, room: int | None) -> tuple[Array, Array]:
        if recorded is None:
            trajectory = problem.solve(parameters, room=room)
            ys, status = trajectory.ys, status_of(trajectory.result)
        else:
            ys = recorded.replay(*problem.model(parameters))
            status = _replay_status(recorded, ys)
        return problem.loss(ys), jnp.atleast_1d(status)

    def trial(at: PyTree) -> Array:
        # Optax's line searches may compute in double precision.
        at = jtu.tree_map(lambda leaf, like: leaf.astype(like.dtype), at, parameters)
        value, status = evaluate(at, None)
        # A line search must not be told the loss of a failed solve.
        failed = jnp.any(status != codes.SUCCESSFUL) & problem.throw
        return jnp.where(failed, jnp.inf, value)

    (value, status), gradient = jax.value_and_grad(
        lambda parameters: evaluate(parameters, room), has_aux=True
    )(parameters)
    optimizer = optax.with_extra_args_support(problem.optimizer)
    changes, new_state = optimizer.update(
        gradient, state, parameters, value=value, grad=gradient, value_fn=trial
    )
    new_parameters = optax.apply_updates(parameters, changes)
    # The same types come out as went in, whatever the optimiser does: nothing is compiled twice.
    new_state = jtu.tree_map(
        lambda new, old: strong(new, old.dtype) if eqx.is_array(new) else new, new_state, state
    )
    failed = status != codes.SUCCESSFUL
    first = jnp.argmax(failed)
    finite = lambda tree: jnp.stack([jnp.all(jnp.isfinite(x)) for x in jtu.tree_leaves(tree)])
    report = Report(
        loss=value,
        failed=jnp.sum(failed),
        first=first,
        status=status[first],
        out_of_steps=jnp.any(status == codes.MAX_STEPS_REACHED),
        finite_gradient=finite(gradient),
        finite_parameters=finite(new_parameters),
    )
    return new_parameters, new_state, report


def _replay_status(recorded: Trajectory, ys: PyTree) -> Array:
    """The recorded status, or `nonfinite` where a replay ran into inf or nan."""
    assert recorded.ts is not None
    axes_before = 2 if recorded._axes.ensemble else 1  # trajectories and times
    undefined = [
        jnp.any(~jnp.isfinite(leaf), axis=tuple(range(axes_before, leaf.ndim)))
        for leaf in jtu.tree_leaves(ys)
    ]
    undefined = ft.reduce(jnp.logical_or, undefined) & jnp.isfinite(recorded.ts)
    status = status_of(recorded.result)
    lost = (status == codes.SUCCESSFUL) & jnp.any(undefined, axis=-1)
    return jnp.where(lost, codes.NONFINITE, status)
