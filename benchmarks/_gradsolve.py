"""What is measured of gradsolve."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from _problems import Problem, loss, split
from jaxtyping import Array

import gradsolve as gs

Gradient = tuple[gs.ODESystem, Array]


def backends() -> dict[str, Callable[[], Any]]:
    """The backends of this version by their lower-case names."""
    names = ("XLA", "Auto", "CUDA", "HostCPU")
    return {name.lower(): getattr(gs, name) for name in names if hasattr(gs, name)}


def options(
    problem: Problem, rtol: float, atol: Any, backend: str, memory_limit: int
) -> dict[str, Any]:
    """The keyword arguments of `gradsolve.solve`."""
    return {
        "t0": 0.0,
        "t1": problem.t1,
        "dt0": problem.dt0,
        "integrator": problem.integrator,
        "controller": gs.PIDController(rtol=rtol, atol=atol),
        "in_axes": gs.InAxes(system=None if problem.shared else eqx.if_array(0), y0=0),
        "adjoint": gs.DiscreteAdjoint(memory_limit=memory_limit),
        "backend": backends()[backend](),
    }


def on_xla(options: dict[str, Any]) -> dict[str, Any]:
    """The same on plain JAX."""
    return {**options, "backend": gs.XLA()}


def forward(
    system: gs.ODESystem, y0: Array, max_steps: int, options: dict[str, Any]
) -> Callable[[], Array]:
    """End states of the ensemble, in the caller's own `jit`, which is given a list of arrays.

    Taking a model apart is Python; a program that repeats the call does it once.
    """
    arrays, static = split(system)
    leaves, treedef = jax.tree.flatten(arrays)

    def solve(leaves: list[Array], y0: Array) -> Array:
        system = eqx.combine(jax.tree.unflatten(treedef, leaves), static)
        return gs.solve(system, y0, max_steps=max_steps, **options).ys

    run = jax.jit(solve)
    return lambda: run(leaves, y0)


def replay_gradient(trajectory: gs.Trajectory, system: gs.ODESystem, y0: Array) -> Gradient:
    """The gradient along the recorded mesh."""
    return trajectory.loss_grad(loss, system, y0, wrt=("system", "y0"))[1]


def replay_gradient_compiled(
    trajectory: gs.Trajectory, system: gs.ODESystem, y0: Array
) -> Callable[[], list[Array]]:
    """The same in the caller's own `jit`, to which trajectory and gradient are lists of arrays.

    Taking a trajectory apart is Python and takes longer than a small ensemble does; a program that
    repeats the call does it once.
    """
    leaves, treedef = jax.tree.flatten((trajectory, system))
    is_array = [eqx.is_array(leaf) for leaf in leaves]
    arrays = [leaf for leaf, flag in zip(leaves, is_array, strict=True) if flag]

    def gradient(arrays: list[Array], y0: Array) -> list[Array]:
        remaining = iter(arrays)
        every = [
            next(remaining) if flag else leaf for leaf, flag in zip(leaves, is_array, strict=True)
        ]
        trajectory, system = jax.tree.unflatten(treedef, every)
        return jax.tree.leaves(replay_gradient(trajectory, system, y0))

    run = jax.jit(gradient)
    return lambda: run(arrays, y0)


def replayed_by_xla(trajectory: gs.Trajectory) -> gs.Trajectory:
    """A trajectory whose recorded mesh is replayed by plain JAX."""
    return eqx.tree_at(lambda t: t._backend, trajectory, gs.XLA())


def record_and_adjoint(
    system: gs.ODESystem, y0: Array, max_steps: int, options: dict[str, Any]
) -> Callable[[], Gradient]:
    """A new mesh and the gradient along it in one compiled function."""
    arrays, static = split(system)

    def objective(arrays: Any, y0: Array) -> Array:
        return loss(gs.solve(eqx.combine(arrays, static), y0, max_steps=max_steps, **options).ys)

    run = jax.jit(jax.grad(objective, argnums=(0, 1)))
    return lambda: run(arrays, y0)
