"""End states and gradients of the stiff problems, tight enough to measure errors against.

Writes `stiff_reference.json` beside it, and checks it against solutions of other origin. See
README.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _problems import Problem, Swept, loss
from _stiff_problems import HIGH, LOW, SAMPLE, STIFF, positions
from jaxtyping import Array
from scipy.integrate import solve_ivp

import gradsolve as gs

_FILE = Path(__file__).with_name("stiff_reference.json")
_PUBLISHED = Path(__file__).parents[1] / "tests/reference/problems.json"
_RTOL = 1e-12
_MAX_STEPS = 2**16

# The name in the tests' reference set, and which of its parameters is swept.
_NAMES = {
    "robertson": ("robertson_t40", 0),
    "hires": ("hires", 0),
    "orego": ("orego_t30", 1),
    "van_der_pol": ("vdp_mu1000", 0),
    "pollu": ("pollu", 0),
}


def load(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """End states `(SAMPLE, dim)`, and gradients by the parameter and the initial state."""
    entry = json.loads(_FILE.read_text())["problems"][problem.name]
    return np.asarray(entry["states"]), np.asarray(entry["gradients"])


def relative_error(got: Any, want: np.ndarray) -> float:
    """The largest `|got - want| / |want|` of a row, in the Euclidean norm."""
    got = np.asarray(got, np.float64)
    return float(np.max(np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)))


def _solve(
    problem: Problem,
    at: np.ndarray,
    t1: float,
    weights: Array | float = 1.0,
    integrator: Any = None,
    rtol: float = _RTOL,
) -> tuple[np.ndarray, np.ndarray]:
    """With a tolerance for small components of a thousandth of the usual."""
    system, y0 = problem.sample(at, "float64")
    trajectory = gs.solve(
        system,
        y0,
        t0=0.0,
        t1=t1,
        dt0=problem.dt0,
        integrator=problem.integrator if integrator is None else integrator,
        controller=gs.PIDController(rtol=rtol, atol=jnp.asarray(problem.atol(1e-3 * rtol))),
        in_axes=gs.InAxes(system=0, y0=0),
        max_steps=_MAX_STEPS,
        backend=gs.HostCPU(),
    )
    by_system, by_y0 = trajectory.loss_grad(
        lambda y: loss(jnp.sqrt(weights) * y), wrt=("system", "y0")
    )[1]
    gradient = [np.asarray(by_system.parameter)[:, None], np.asarray(by_y0)]
    return np.asarray(trajectory.ys), np.concatenate(gradient, axis=1)


def _against_published(problem: Problem) -> dict[str, float]:
    """At the published parameters, against the quadruple precision values of the tests.

    Entries of the gradient are weighed by the size of their input.
    """
    name, index = _NAMES[problem.name]
    known = {p["name"]: p for p in json.loads(_PUBLISHED.read_text())["problems"]}[name]
    value = known["params"][index]["value"]
    at = np.array([(1.0 - LOW) / (HIGH - LOW)])
    state, gradient = _solve(problem, at, known["t1"], jnp.asarray(known["weights"]))
    scale = np.asarray(known["scale"])
    want = np.concatenate([[known["grad_params"][index]], known["grad_y0"]])
    sizes = np.concatenate([[value], scale])
    return {
        "published_state": relative_error(state / scale, np.array([known["y_t1"]]) / scale),
        "published_gradient": relative_error(gradient * sizes, want[None] * sizes),
    }


def _radau(problem: Problem, position: float) -> tuple[np.ndarray, np.ndarray]:
    """By SciPy's Radau with the variational equations, another method and other derivatives."""
    system, y0 = problem.sample(np.array([position]), "float64")
    assert isinstance(system, Swept)
    parameter, start = float(np.asarray(system.parameter)[0]), np.asarray(y0[0])
    model = type(system)
    d = problem.dim

    def field(y: Array, p: Array) -> Array:
        return model(p).vector_field(jnp.zeros(()), y)

    @jax.jit
    def extended(z: Array) -> Array:
        y, sensitivity = z[:d], z[d:].reshape(d, d + 1)
        by_y, by_p = jax.jacfwd(field, argnums=(0, 1))(y, jnp.asarray(parameter))
        slope = by_y @ sensitivity + jnp.zeros((d, d + 1)).at[:, 0].set(by_p)
        return jnp.concatenate([field(y, jnp.asarray(parameter)), slope.reshape(-1)])

    slopes = jax.jit(jax.jacfwd(extended))
    initial = np.concatenate([start, np.eye(d, d + 1, 1).reshape(-1)])
    sizes = np.asarray(problem.sizes)
    atol = np.concatenate([sizes, np.repeat(sizes, d + 1)]) * 1e-13
    solution = solve_ivp(
        lambda t, z: np.asarray(extended(z)),
        (0.0, problem.t1),
        initial,
        method="Radau",
        rtol=1e-11,
        atol=atol,
        jac=lambda t, z: np.asarray(slopes(z)),
    )
    assert solution.success, solution.message
    end = solution.y[:, -1]
    return end[:d][None], (2.0 * end[:d] @ end[d:].reshape(d, d + 1))[None]


def _checked(problem: Problem, radau: bool) -> dict[str, Any]:
    at = positions(SAMPLE)
    states, gradients = _solve(problem, at, problem.t1)
    other = _solve(problem, at, problem.t1, integrator=gs.Rodas4P(), rtol=1e-11)
    checks = {
        "rodas4p_state": relative_error(other[0], states),
        "rodas4p_gradient": relative_error(other[1], gradients),
        **_against_published(problem),
    }
    if radau:
        for lane in (0, SAMPLE - 1):
            state, gradient = _radau(problem, at[lane])
            checks[f"radau_state_{lane}"] = relative_error(state, states[[lane]])
            checks[f"radau_gradient_{lane}"] = relative_error(gradient, gradients[[lane]])
    return {"checks": checks, "states": states.tolist(), "gradients": gradients.tolist()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", choices=list(STIFF), default=list(STIFF))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    old = json.loads(_FILE.read_text())["problems"] if _FILE.exists() else {}
    report: dict[str, Any] = {"integrator": "Rodas5P", "rtol": _RTOL, "problems": old}
    for name in arguments.problems:
        # Radau factors a matrix of all sensitivities: for POLLU 440 rows.
        entry = _checked(STIFF[name], radau=STIFF[name].dim <= 8)
        report["problems"][name] = entry
        print(name, {what: f"{error:.1e}" for what, error in entry["checks"].items()}, flush=True)
        _FILE.write_text(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
