"""The competitor, as its documentation has it, and the reference of problems that are not stiff."""

import math
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _problems import Problem, loss, split
from jaxtyping import Array

import gradsolve as gs

_PROBE_STEPS = 2**14
_STIFF_STEPS = 2**16
_REFERENCE_RTOL = 1e-12
_REFERENCE_CHECKPOINTS = 512

Solve = Callable[[Any, Array], diffrax.Solution]


def _solver(
    problem: Problem,
    static: Any,
    solver: diffrax.AbstractSolver,
    rtol: Any,
    atol: Any,
    max_steps: int,
    checkpoints: int | None = None,
) -> Solve:
    """One trajectory, as a function of the system's arrays and the initial state."""
    pcoeff, icoeff = problem.diffrax_coefficients
    controller = diffrax.PIDController(rtol=rtol, atol=atol, pcoeff=pcoeff, icoeff=icoeff)

    def solve(arrays: Any, y0: Array) -> diffrax.Solution:
        time = lambda value: jnp.asarray(value, y0.dtype)
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, system: system.vector_field(t, y)),
            solver,
            t0=time(0.0),
            t1=time(problem.t1),
            dt0=time(problem.dt0),
            y0=y0,
            args=eqx.combine(arrays, static),
            stepsize_controller=controller,
            max_steps=max_steps,
            adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints),
            throw=False,  # raising from compiled code costs time; the benchmark checks the errors
        )

    return solve


def _end_state(solution: diffrax.Solution) -> Array:
    assert solution.ys is not None
    return solution.ys[0]


def count_steps(
    problem: Problem, rtol: float, atol: float, system: gs.ODESystem, y0: Array
) -> tuple[int, np.ndarray]:
    """The most attempts of a trajectory, and the accepted steps of each."""
    arrays, static = split(system)
    solve = _solver(problem, static, problem.diffrax_solver, rtol, atol, _PROBE_STEPS)
    every = jax.vmap(lambda a, y: solve(a, y).stats, in_axes=(problem.axis, 0))
    stats = jax.jit(every)(arrays, y0)
    return int(np.max(stats["num_steps"])), np.asarray(stats["num_accepted_steps"])


def forward(
    problem: Problem, rtol: float, atol: float, max_steps: int, system: gs.ODESystem, y0: Array
) -> Callable[[], Array]:
    """End states of the ensemble, compiled."""
    arrays, static = split(system)
    solve = _solver(problem, static, problem.diffrax_solver, rtol, atol, max_steps)
    run = jax.jit(jax.vmap(lambda a, y: _end_state(solve(a, y)), in_axes=(problem.axis, 0)))
    return lambda: run(arrays, y0)


def gradient(
    problem: Problem,
    rtol: float,
    atol: float,
    max_steps: int,
    checkpoints: int | None,
    system: gs.ODESystem,
    y0: Array,
) -> Callable[[], tuple[gs.ODESystem, Array]]:
    """The gradient of the loss by the parameters and the initial states, compiled."""
    arrays, run = _gradient(problem, rtol, atol, max_steps, checkpoints, system)
    return lambda: run(arrays, y0)


def _gradient(
    problem: Problem,
    rtol: float,
    atol: Any,
    max_steps: int,
    checkpoints: int | None,
    system: gs.ODESystem,
) -> tuple[Any, Any]:
    """The arrays of the system, and the jitted function of them and the initial states."""
    arrays, static = split(system)
    solve = _solver(problem, static, problem.diffrax_solver, rtol, atol, max_steps, checkpoints)
    every = jax.vmap(lambda a, y: _end_state(solve(a, y)), in_axes=(problem.axis, 0))
    return arrays, jax.jit(jax.grad(lambda a, y: loss(every(a, y)), argnums=(0, 1)))


def compile_forward(
    problem: Problem, system: gs.ODESystem, y0: Array
) -> Callable[[float], tuple[Array, Any, Array]]:
    """End states, step counts and success of each trajectory, as a function of `rtol`.

    One compiled function serves all tolerances; the steps are bounded so that it ends.
    """
    arrays, static = split(system)

    def one(arrays: Any, y0: Array, rtol: Array, atol: Array) -> Any:
        solve = _solver(problem, static, problem.diffrax_solver, rtol, atol, _STIFF_STEPS)
        solution = solve(arrays, y0)
        ok = solution.result == diffrax.RESULTS.successful
        return _end_state(solution), solution.stats, ok

    run = jax.jit(jax.vmap(one, in_axes=(problem.axis, 0, None, None)))
    tolerances = lambda rtol: (jnp.asarray(rtol), jnp.asarray(problem.atol(rtol)))
    compiled = run.lower(arrays, y0, *tolerances(1e-6)).compile()
    return lambda rtol: compiled(arrays, y0, *tolerances(rtol))


def compile_gradient(
    problem: Problem, rtol: float, max_steps: int, setting: str, system: gs.ODESystem, y0: Array
) -> Callable[[], tuple[Any, Array]]:
    """The gradient, compiled before its first call."""
    arrays, run = _gradient(
        problem, rtol, problem.atol(rtol), max_steps, checkpoints(setting, max_steps), system
    )
    compiled = run.lower(arrays, y0).compile()
    return lambda: compiled(arrays, y0)


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

    It is compiled once for each problem and number of trajectories.
    """

    def __init__(self, problem: Problem, system: gs.ODESystem) -> None:
        self._problem = problem
        solve = _solver(
            problem,
            split(system)[1],
            diffrax.Dopri8(),
            _REFERENCE_RTOL,
            _REFERENCE_RTOL * 1e-3,
            _PROBE_STEPS,
            _REFERENCE_CHECKPOINTS,
        )

        def one(arrays: Any, y0: Array) -> Any:
            def objective(arrays: Any, y0: Array) -> tuple[Array, tuple[Array, Array]]:
                solution = solve(arrays, y0)
                ok = solution.result == diffrax.RESULTS.successful
                return loss(_end_state(solution)), (_end_state(solution), ok)

            return jax.grad(objective, argnums=(0, 1), has_aux=True)(arrays, y0)

        self._run = jax.jit(jax.vmap(one, in_axes=(problem.axis, 0)))

    def __call__(self, system: gs.ODESystem, y0: Array) -> tuple[np.ndarray, Any]:
        """End states `(n, dim)`, and the gradient, of shared parameters too per trajectory."""
        inputs = jax.tree.map(lambda x: np.asarray(x, np.float64), (split(system)[0], y0))
        gradient, (y1, ok) = self._run(*jax.device_put(inputs, _cpu()))
        if not np.all(ok):
            raise RuntimeError(f"The reference solution of {self._problem.name} failed.")
        return np.asarray(y1), gradient


def gradient_rows(gradient: Any) -> np.ndarray:
    """One row per trajectory: the derivative by its parameter, then by its initial state."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(gradient)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def shared_row(gradient: Any) -> np.ndarray:
    """One row: the derivative by the parameters that all trajectories share."""
    *leaves, _ = (np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(gradient))
    return np.concatenate(leaves)[None]
