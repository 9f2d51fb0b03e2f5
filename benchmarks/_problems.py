"""The problems: a model, an ensemble, and the loss of the gradient."""

import dataclasses
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
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


class Repressilator(Swept):
    """Elowitz & Leibler (2000), Nature 403, box 1: three genes, each represses the next.

    The parameter is alpha, the transcription of a free gene; the leak is a thousandth of it.
    """

    def vector_field(self, t: Array, y: Array) -> Array:
        mrna, protein = y[:3], y[3:]
        repressor = jnp.roll(protein, 1)
        made = self.parameter / (1.0 + repressor * repressor) + self.parameter / 1000.0
        return jnp.concatenate([made - mrna, 5.0 * (mrna - protein)])


class Pleiades(Swept):
    """Hairer, Norsett & Wanner (1993), section II.10: seven stars in a plane.

    Their masses are 1, 2, ..., 6 and the parameter; the state is x, y, x', y' of all.
    """

    def vector_field(self, t: Array, y: Array) -> Array:
        masses = jnp.append(jnp.arange(1, 7, dtype=y.dtype), self.parameter)
        positions, velocities = y[:14].reshape(2, 7), y[14:]
        apart = positions[:, None, :] - positions[:, :, None]
        squared = jnp.sum(apart * apart, axis=0) + jnp.eye(7, dtype=y.dtype)  # never zero
        pull = masses / (squared * jnp.sqrt(squared))
        return jnp.concatenate([velocities, jnp.sum(apart * pull, axis=2).reshape(14)])


class Neural(gs.ODESystem):
    """A network as the vector field: all trajectories share its weights."""

    network: eqx.nn.MLP

    def vector_field(self, t: Array, y: Array) -> Array:
        return self.network(y)


Sampler = Callable[[np.ndarray, str], tuple[gs.ODESystem, Array]]


def sweep(
    model: Callable[[Array], Swept], low: float, high: float, y0: tuple[float, ...]
) -> Sampler:
    """The parameter runs from `low` to `high`; the initial state is the same."""

    def ensemble(positions: np.ndarray, dtype: str) -> tuple[gs.ODESystem, Array]:
        parameter = (low + (high - low) * positions).astype(dtype)
        states = np.tile(np.asarray(y0, dtype), (positions.size, 1))
        return model(jnp.asarray(parameter)), jnp.asarray(states)

    return ensemble


def _neural(positions: np.ndarray, dtype: str) -> tuple[gs.ODESystem, Array]:
    """A random network; initial states along a closed curve."""
    network = eqx.nn.MLP(4, 4, 32, 2, activation=jnp.tanh, key=jax.random.key(0))
    cast = lambda leaf: leaf.astype(dtype) if eqx.is_array(leaf) else leaf
    angle = 2.0 * np.pi * positions
    states = [np.cos(angle), np.sin(angle), np.cos(2.0 * angle), np.sin(2.0 * angle)]
    return Neural(jax.tree.map(cast, network)), jnp.asarray(np.stack(states, axis=1).astype(dtype))


@dataclasses.dataclass(frozen=True)
class Problem:
    """An initial value problem on `[0, t1]`.

    `dt0` is given to both libraries, so that they take the same steps. `sample` makes the ensemble
    of positions in [0, 1]. With `shared` all trajectories have the same parameters, whose gradient
    is a sum over them; otherwise each has its own. `sizes`, if given, says how large each component
    of the state becomes: `atol` is then `rtol` of it. `diffrax_coefficients` are p and i of
    Diffrax's controller; gradsolve's are the defaults, the same as here.
    """

    name: str
    title: str
    dim: int
    sample: Sampler
    t1: float
    dt0: float = 0.01
    shared: bool = False
    integrator: Any = gs.Tsit5()
    diffrax_solver: diffrax.AbstractSolver = diffrax.Tsit5()
    diffrax_coefficients: tuple[float, float] = (0.0, 1.0)
    sizes: tuple[float, ...] | None = None

    def atol(self, rtol: float) -> Any:
        """The absolute tolerance, of each component if they differ in size."""
        return rtol * 1e-3 if self.sizes is None else rtol * np.asarray(self.sizes)

    @property
    def axis(self) -> int | None:
        """The ensemble axis of the system's arrays."""
        return None if self.shared else 0

    def ensemble(self, n: int, dtype: str, order: str) -> tuple[gs.ODESystem, Array]:
        """The system and the initial states `(n, dim)`, in the order of the positions or not."""
        positions = np.linspace(0.0, 1.0, n)
        if order == "shuffled":
            positions = np.random.default_rng(0).permutation(positions)
        return self.sample(positions, dtype)

    def part(
        self, system: gs.ODESystem, y0: Array, lanes: np.ndarray
    ) -> tuple[gs.ODESystem, Array]:
        """Some trajectories of an ensemble."""
        take = lambda leaf: leaf[lanes] if eqx.is_array(leaf) and not self.shared else leaf
        return jax.tree.map(take, system), y0[lanes]


ORDERS = ("sorted", "shuffled")


def split(system: gs.ODESystem) -> tuple[Any, Any]:
    """The arrays of a system, and the rest; `equinox.combine` undoes it.

    `jax.jit` takes arrays only, and a network has functions among its leaves.
    """
    return eqx.partition(system, eqx.is_array)


def loss(y1: Array) -> Array:
    """The sum over the ensemble of `|y(t1)|^2`."""
    return jnp.sum(y1 * y1)


_SITES = (-4.0, 2.5, 8.0, 0.5, 6.0, -1.5, 4.0, -3.5)
_STARS = (
    *(3.0, 3.0, -1.0, -3.0, 2.0, -2.0, 2.0),
    *(3.0, -3.0, 2.0, 0.0, 0.0, -4.0, 4.0),
    *(0.0, 0.0, 0.0, 0.0, 0.0, 1.75, -1.5),
    *(0.0, 0.0, 0.0, -1.25, 1.0, 0.0, 0.0),
)


def _lorenz96(dim: int) -> Sampler:
    # One site differs from the others of its kind: otherwise the pattern of eight repeats.
    first = _SITES[0] if dim == 8 else 1.0
    return sweep(Lorenz96, 4.0, 8.0, (first, *_SITES[1:], *_SITES * (dim // 8 - 1)))


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("lorenz", "Lorenz, d = 3", 3, sweep(Lorenz, 0.0, 21.0, (1.0, 0.0, 0.0)), 1.0),
        Problem(
            "lotka_volterra",
            "Lotka-Volterra, d = 2",
            2,
            sweep(LotkaVolterra, 1.0, 2.0, (1.0, 1.0)),
            10.0,
        ),
        # From 0.5 on the neuron fires; below about 0.35 lies the canard explosion, where the
        # gradient is as large as rounding lets it be and says nothing about a solver.
        Problem(
            "fitzhugh_nagumo",
            "FitzHugh-Nagumo, d = 2",
            2,
            sweep(FitzHughNagumo, 0.5, 1.0, (-1.0, 1.0)),
            40.0,
        ),
        Problem("lorenz96_8", "Lorenz-96, d = 8", 8, _lorenz96(8), 1.0),
        Problem("lorenz96_40", "Lorenz-96, d = 40", 40, _lorenz96(40), 1.0),
        Problem("lorenz96_128", "Lorenz-96, d = 128", 128, _lorenz96(128), 1.0),
        Problem(
            "repressilator",
            "Repressilator, d = 6",
            6,
            sweep(Repressilator, 100.0, 400.0, (0.0, 0.0, 0.0, 5.0, 0.0, 15.0)),
            4.0,
        ),
        Problem("pleiades", "Pleiades, d = 28", 28, sweep(Pleiades, 6.0, 8.0, _STARS), 1.1),
        Problem("neural", "Neural network, d = 4", 4, _neural, 20.0, shared=True),
    )
}
