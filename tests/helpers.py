"""Problems and integrators that many tests share."""

import functools as ft
import importlib.util
import json
import pathlib
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
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


def diffrax_term() -> diffrax.ODETerm:
    """A term whose args is an `ODESystem`."""
    return diffrax.ODETerm(lambda t, y, system: system.vector_field(t, y))
