"""The competitor, as its documentation has it, and the reference solution."""

import math
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from _problems import Problem, Swept, loss
from jaxtyping import Array

_PROBE_STEPS = 2**14
_REFERENCE_RTOL = 1e-12
_REFERENCE_CHECKPOINTS = 512

Solve = Callable[[Swept, Array], diffrax.Solution]


def _solver(
    problem: Problem,
    solver: diffrax.AbstractSolver,
    rtol: float,
    atol: float,
    max_steps: int,
    checkpoints: int | None = None,
) -> Solve:
    def solve(system: Swept, y0: Array) -> diffrax.Solution:
        time = lambda value: jnp.asarray(value, y0.dtype)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, system: system.vector_field(t, y)),
            solver,
            t0=time(0.0),
            t1=time(problem.t1),
            dt0=time(problem.dt0),
            y0=y0,
            args=system,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
            max_steps=max_steps,
            adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints),
            throw=False,  # raising from compiled code costs time; the benchmark checks the errors
        )

    return solve


def _end_state(solution: diffrax.Solution) -> Array:
    assert solution.ys is not None
    return solution.ys[0]


def count_steps(
    problem: Problem, rtol: float, atol: float, system: Swept, y0: Array
) -> tuple[int, np.ndarray]:
    """The most attempts of a trajectory, and the accepted steps of each."""
    solve = _solver(problem, diffrax.Tsit5(), rtol, atol, _PROBE_STEPS)
    stats = jax.jit(jax.vmap(lambda s, y: solve(s, y).stats))(system, y0)
    return int(np.max(stats["num_steps"])), np.asarray(stats["num_accepted_steps"])


def forward(
    problem: Problem, rtol: float, atol: float, max_steps: int
) -> Callable[[Swept, Array], Array]:
    """End states of the ensemble, compiled."""
    solve = _solver(problem, diffrax.Tsit5(), rtol, atol, max_steps)
    return jax.jit(jax.vmap(lambda s, y: _end_state(solve(s, y))))


def gradient(
    problem: Problem, rtol: float, atol: float, max_steps: int, checkpoints: int | None
) -> Callable[[Swept, Array], tuple[Swept, Array]]:
    """The gradient of the loss by the parameter and the initial states, compiled."""
    solve = _solver(problem, diffrax.Tsit5(), rtol, atol, max_steps, checkpoints)

    def objective(system: Swept, y0: Array) -> Array:
        return loss(jax.vmap(lambda s, y: _end_state(solve(s, y)))(system, y0))

    return jax.jit(jax.grad(objective, argnums=(0, 1)))


# In the order in which they are tried: the likely winners first.
CHECKPOINTS = ("sqrt", "all", "default")


def checkpoints(setting: str, max_steps: int) -> int | None:
    """Checkpoints for every step, for the square root of the steps, or as Diffrax chooses."""
    return {"all": max_steps, "sqrt": math.isqrt(max_steps - 1) + 1, "default": None}[setting]


def _cpu() -> Any:
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


class Reference:
    """End states and gradients by Dopri8 at rtol 1e-12 in float64, on the CPU if there is one.

    It is compiled once for each problem: every call has the same number of trajectories.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        solve = _solver(
            problem,
            diffrax.Dopri8(),
            _REFERENCE_RTOL,
            _REFERENCE_RTOL * 1e-3,
            _PROBE_STEPS,
            _REFERENCE_CHECKPOINTS,
        )

        def one(system: Swept, y0: Array) -> Any:
            def objective(system: Swept, y0: Array) -> tuple[Array, tuple[Array, Array]]:
                solution = solve(system, y0)
                ok = solution.result == diffrax.RESULTS.successful
                return loss(_end_state(solution)), (_end_state(solution), ok)

            return jax.grad(objective, argnums=(0, 1), has_aux=True)(system, y0)

        self._run = jax.jit(jax.vmap(one))

    def __call__(self, system: Swept, y0: Array) -> tuple[np.ndarray, np.ndarray]:
        """End states `(n, dim)`, and gradients `(n, 1 + dim)` with the parameter first."""
        parameter = np.asarray(system.parameter, np.float64)
        inputs = (self._problem.model(jnp.asarray(parameter)), np.asarray(y0, np.float64))
        (ct_system, ct_y0), (y1, ok) = self._run(*jax.device_put(inputs, _cpu()))
        if not np.all(ok):
            raise RuntimeError(f"The reference solution of {self._problem.name} failed.")
        return np.asarray(y1), flat_gradient(ct_system, ct_y0)


def flat_gradient(ct_system: Swept, ct_y0: Array) -> np.ndarray:
    """One row per trajectory: the derivative by the parameter, then by the initial state."""
    parameter = np.asarray(ct_system.parameter, np.float64)
    return np.concatenate([parameter[:, None], np.asarray(ct_y0, np.float64)], axis=1)
