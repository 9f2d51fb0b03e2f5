"""Problems and integrators that many tests share."""

import functools as ft
import importlib.util
import json
import pathlib
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import gradsolve as gs

_HERE = pathlib.Path(__file__).parent


@ft.cache
def _fields() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("reference_fields", _HERE / "reference/fields.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FIELDS


@ft.cache
def reference_problems() -> dict[str, dict[str, Any]]:
    """The reference set: solutions and gradients correct to float64."""
    text = (_HERE / "reference/problems.json").read_text()
    return {problem["name"]: problem for problem in json.loads(text)["problems"]}


NON_STIFF = tuple(name for name, problem in reference_problems().items() if not problem["stiff"])


class ReferenceSystem(gs.ODESystem):
    """A reference problem as a user would write it: parameters as one array."""

    p: Float[Array, " parameters"]
    name: str

    def vector_field(self, t, y):
        return _fields()[self.name](t, y, self.p)


def reference_case(name: str) -> tuple[ReferenceSystem, Array, dict[str, Any]]:
    """The system, the initial state and the reference values of a problem."""
    problem = reference_problems()[name]
    p = jnp.array([parameter["value"] for parameter in problem["params"]])
    return ReferenceSystem(p, name), jnp.array(problem["y0"]), problem


class LotkaVolterra(gs.ODESystem):
    """Predator and prey."""

    alpha: Array
    beta: Array
    gamma: Array
    delta: Array

    def vector_field(self, t, y):
        hare, lynx = y
        return jnp.stack(
            [
                self.alpha * hare - self.beta * hare * lynx,
                self.delta * hare * lynx - self.gamma * lynx,
            ]
        )


class Decay(gs.ODESystem):
    """`y' = -k y`, for states of any shape."""

    k: Array

    def vector_field(self, t, y):
        return jax.tree_util.tree_map(lambda leaf: -self.k * leaf, y)


EXPLICIT = (
    gs.Euler(),
    gs.Midpoint(),
    gs.Heun(),
    gs.Ralston(),
    gs.RK4(),
    gs.Bosh3(),
    gs.Dopri5(),
    gs.Tsit5(),
    gs.Dopri8(),
    gs.Vern7(),
    gs.Vern9(),
)

ROSENBROCK = (
    gs.Rosenbrock23(),
    gs.Ros3p(),
    gs.Rodas3(),
    gs.ROS34PW2(),
    gs.GRK4T(),
    gs.Rodas4(),
    gs.Rodas4P(),
    gs.Rodas5P(),
)

# Explicit methods that Diffrax has too, and that have an error estimate.
SHARED_WITH_DIFFRAX = (
    (gs.Midpoint(), diffrax.Midpoint()),
    (gs.Heun(), diffrax.Heun()),
    (gs.Ralston(), diffrax.Ralston()),
    (gs.Bosh3(), diffrax.Bosh3()),
    (gs.Dopri5(), diffrax.Dopri5()),
    (gs.Tsit5(), diffrax.Tsit5()),
    (gs.Dopri8(), diffrax.Dopri8()),
)


def relative(got: Any, want: Any) -> float:
    """The largest difference of two pytrees, relative to the largest entry of each wanted leaf."""
    differences = jax.tree_util.tree_map(
        lambda g, w: jnp.max(jnp.abs(g - w)) / jnp.maximum(jnp.max(jnp.abs(w)), 1e-300), got, want
    )
    return float(max(jax.tree_util.tree_leaves(differences)))


ALL_INPUTS = ("system", "y0", "t0", "t1")


def under(backend: Any, trajectory: gs.Trajectory) -> gs.Trajectory:
    """The same mesh under another backend."""
    return eqx.tree_at(lambda t: t._backend, trajectory, backend)


def replayed(trajectory: gs.Trajectory, loss: Any = None) -> tuple[Any, Any]:
    """The replay and the gradients for everything that can be differentiated."""
    names = ALL_INPUTS if trajectory.ts is None else (*ALL_INPUTS, "ts")
    _, gradients = trajectory.loss_grad(loss or smooth_loss, wrt=names)
    return trajectory.replay(), dict(zip(names, gradients, strict=True))


def smooth_loss(ys: Any) -> Array:
    """Weighs every number differently; rows that are nan by definition do not count."""
    total = jnp.zeros(())
    for leaf in jax.tree_util.tree_leaves(ys):
        weights = 1 + jnp.cos(jnp.arange(leaf.size).reshape(leaf.shape).astype(leaf.dtype))
        finite = jnp.isfinite(leaf)
        total = total + jnp.sum(jnp.where(finite, weights * jnp.where(finite, leaf, 0) ** 2, 0))
    return total


# Two backends arrange the same sums of products differently (fused multiply-adds, common factors).
# Over some hundred steps of problems that amplify perturbations by less than a few thousand,
# rounding of 1e-16 each adds up to far less than this.
SAME_MESH = 1e-11


def disagreement(fused: gs.Trajectory, loss: Any = None) -> dict[str, float]:
    """Values and gradients of a fused trajectory against the plain-JAX backend on its own mesh.

    The time derivatives of one trajectory are differences of numbers of the size of the others, so
    they are compared on one scale.
    """
    got_ys, got = replayed(fused, loss)
    want_ys, want = replayed(under(gs.XLA(), fused), loss)
    out = {"ys": _relative_where_finite(got_ys, want_ys)}
    times = lambda g: jnp.concatenate(
        [jnp.ravel(g[name]) for name in ("t0", "t1", "ts") if name in g]
    )
    for name in ("system", "y0"):
        out[name] = _relative_where_finite(got[name], want[name])
    out["times"] = _relative_where_finite(times(got), times(want))
    return out


def _relative_where_finite(got: Any, want: Any) -> float:
    """As `relative`; what is not a finite number must be the same in both."""
    if jax.tree_util.tree_structure(got) != jax.tree_util.tree_structure(want):
        return float("inf")
    pairs = list(zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True))
    worst = 0.0
    for g, w in pairs:
        g, w = np.asarray(g), np.asarray(w)
        finite = np.isfinite(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            return float("inf")
        if not np.array_equal(np.isfinite(g), finite):
            return float("inf")
        if finite.any():
            largest = max(float(np.max(np.abs(w[finite]))), 1e-300)
            worst = max(worst, float(np.max(np.abs(g[finite] - w[finite]))) / largest)
    return worst


def same_bits(a: Any, b: Any) -> bool:
    """Whether two pytrees are equal bit for bit, nan included."""
    leaves_a, leaves_b = jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b)
    return len(leaves_a) == len(leaves_b) and all(
        np.asarray(x).dtype == np.asarray(y).dtype
        and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(leaves_a, leaves_b, strict=True)
    )


def same_counts(a: gs.Trajectory, b: gs.Trajectory) -> bool:
    """Whether two recordings accepted and rejected the same numbers of steps."""
    return bool(
        np.array_equal(a.stats.num_accepted_steps, b.stats.num_accepted_steps)
        and np.array_equal(a.stats.num_rejected_steps, b.stats.num_rejected_steps)
    )


class Driven(gs.ODESystem):
    """A predator and its prey in a changing environment: short code that depends on everything."""

    p: Float[Array, " 4"]

    def vector_field(self, t, y):
        p = self.p
        return jnp.stack(
            [
                y[0] * (p[0] - p[1] * y[1]) + p[2] * t * y[1],
                p[3] * y[1] * (y[0] - 1.0) - 0.1 * t * y[1],
            ]
        )


def driven_ensemble(lanes: int) -> tuple[Driven, Array]:
    """Parameters and initial states that differ, and so do the numbers of steps."""
    x = jnp.linspace(0.0, 1.0, max(lanes, 2))[:lanes]
    p = jnp.stack([0.4 + 3.0 * x, 0.7 + x * x, 0.2 - 0.3 * x, 0.5 + jnp.sin(7 * x) ** 2], axis=1)
    y0 = jnp.stack([1.0 + x, 2.0 - 1.2 * x], axis=1)
    return Driven(p), y0


def diffrax_term() -> diffrax.ODETerm:
    """A term whose args is an `ODESystem`."""
    return diffrax.ODETerm(lambda t, y, system: system.vector_field(t, y))
