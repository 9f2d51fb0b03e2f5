"""The problems: a model, an ensemble over one of its parameters, and the loss of the gradient."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import gradsolve as gs


class Swept(gs.ODESystem):
    """A model whose only parameter is the one that the ensemble sweeps.

    All other constants are plain numbers in the field, so that both libraries differentiate by
    exactly the same inputs: this parameter and the initial state, each per trajectory.
    """

    parameter: Float[Array, "*n"]


class Lorenz(Swept):
    def vector_field(self, t: Array, y: Array) -> Array:
        return jnp.stack(
            [
                10.0 * (y[1] - y[0]),
                y[0] * (self.parameter - y[2]) - y[1],
                y[0] * y[1] - 8.0 / 3.0 * y[2],
            ]
        )


class LotkaVolterra(Swept):
    def vector_field(self, t: Array, y: Array) -> Array:
        prey, predator = y
        return jnp.stack(
            [prey * (self.parameter - predator), predator * (prey - 3.0)],
        )


class FitzHughNagumo(Swept):
    def vector_field(self, t: Array, y: Array) -> Array:
        v, w = y
        return jnp.stack([v - v * v * v / 3.0 - w + self.parameter, (v + 0.7 - 0.8 * w) / 12.5])


class Lorenz96(Swept):
    def vector_field(self, t: Array, y: Array) -> Array:
        return (jnp.roll(y, -1) - jnp.roll(y, 2)) * jnp.roll(y, 1) - y + self.parameter


@dataclasses.dataclass(frozen=True)
class Problem:
    """An initial value problem on `[0, t1]` with the parameter swept over `[low, high]`.

    `dt0` is given to both libraries, so that they take the same steps.
    """

    name: str
    title: str
    model: Callable[[Array], Swept]
    low: float
    high: float
    y0: tuple[float, ...]
    t1: float
    dt0: float = 0.01

    @property
    def dim(self) -> int:
        return len(self.y0)

    def ensemble(self, n: int, dtype: str) -> tuple[Swept, Array]:
        """The model with `n` parameter values, and the initial states `(n, dim)`."""
        parameter = np.linspace(self.low, self.high, n).astype(dtype)
        y0 = np.tile(np.asarray(self.y0, dtype), (n, 1))
        return self.model(jnp.asarray(parameter)), jnp.asarray(y0)


def loss(y1: Array) -> Array:
    """The sum over the ensemble of `|y(t1)|^2`."""
    return jnp.sum(y1 * y1)


_SITES = (-4.0, 2.5, 8.0, 0.5, 6.0, -1.5, 4.0, -3.5)

PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("lorenz", "Lorenz, d = 3", Lorenz, 0.0, 21.0, (1.0, 0.0, 0.0), 1.0),
        Problem(
            "lotka_volterra", "Lotka-Volterra, d = 2", LotkaVolterra, 1.0, 2.0, (1.0, 1.0), 10.0
        ),
        # From 0.5 on the neuron fires; below about 0.35 lies the canard explosion, where the
        # gradient is as large as rounding lets it be and says nothing about a solver.
        Problem(
            "fitzhugh_nagumo", "FitzHugh-Nagumo, d = 2", FitzHughNagumo, 0.5, 1.0, (-1.0, 1.0), 40.0
        ),
        Problem("lorenz96_8", "Lorenz-96, d = 8", Lorenz96, 4.0, 8.0, _SITES, 1.0),
        # One site differs from the others of its kind: otherwise the pattern of eight repeats.
        Problem(
            "lorenz96_40",
            "Lorenz-96, d = 40",
            Lorenz96,
            4.0,
            8.0,
            (1.0, *_SITES[1:], *_SITES * 4),
            1.0,
        ),
    )
}
