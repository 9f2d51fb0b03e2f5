"""What is measured of gradsolve."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from _problems import Problem, Swept, loss
from jaxtyping import Array

import gradsolve as gs

Gradient = tuple[Swept, Array]


def backends() -> dict[str, Callable[[], Any]]:
    """The backends of this version by their lower-case names."""
    names = ("XLA", "Auto", "CUDA", "HostCPU")
    return {name.lower(): getattr(gs, name) for name in names if hasattr(gs, name)}


def options(
    problem: Problem, rtol: float, atol: float, backend: str, memory_limit: int
) -> dict[str, Any]:
    """The keyword arguments of `gradsolve.solve`."""
    return {
        "t0": 0.0,
        "t1": problem.t1,
        "dt0": problem.dt0,
        "integrator": gs.Tsit5(),
        "controller": gs.PIDController(rtol=rtol, atol=atol),
        "in_axes": gs.InAxes(system=eqx.if_array(0), y0=0),
        "adjoint": gs.DiscreteAdjoint(memory_limit=memory_limit),
        "backend": backends()[backend](),
    }


def forward(max_steps: int, options: dict[str, Any]) -> Callable[[Swept, Array], Array]:
    """End states of the ensemble, compiled by the caller's own `jit`."""
    return jax.jit(lambda s, y: gs.solve(s, y, max_steps=max_steps, **options).ys)


def replay_gradient(trajectory: gs.Trajectory, system: Swept, y0: Array) -> Gradient:
    """The gradient along the recorded mesh."""
    return trajectory.loss_grad(loss, system, y0, wrt=("system", "y0"))[1]


def record_and_adjoint(
    max_steps: int, options: dict[str, Any]
) -> Callable[[Swept, Array], Gradient]:
    """A new mesh and the gradient along it in one compiled function."""

    def objective(system: Swept, y0: Array) -> Array:
        return loss(gs.solve(system, y0, max_steps=max_steps, **options).ys)

    return jax.jit(jax.grad(objective, argnums=(0, 1)))
