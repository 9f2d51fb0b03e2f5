"""A solved trajectory or ensemble: replayed, differentiated, evaluated, serialised."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from ._adjoint import DiscreteAdjoint
from ._backends import AbstractRunner, BackendReport
from ._checks import check_same_structure, check_values, check_window, is_concrete
from ._core import Arguments, Request, linearise_replay, pull_back, run_replay
from ._custom_types import Array, ArrayLike, Bool, Float, Int, Loss, PyTree, validates_input
from ._ensemble.layout import StateLayout
from ._in_axes import Axes
from ._integrators import AbstractIntegrator
from ._mesh import Mesh
from ._results import RESULTS
from ._system import ODESystem

_DIFFERENTIABLE = ("system", "y0", "ts", "t0", "t1")


class Stats(eqx.Module):
    """Counts per trajectory; `num_steps` are attempts, accepted and rejected."""

    num_steps: Int[Array, "*lanes"]
    num_accepted_steps: Int[Array, "*lanes"]
    num_rejected_steps: Int[Array, "*lanes"]


class Trajectory(eqx.Module):
    """The result of `solve`. A pytree: it can be jitted over, vmapped over and serialised.

    - `ys`: the states at `ts`, or the final state if `ts` is None, in the structure of `y0`. For an
        ensemble of `n` trajectories each leaf has the shape `(n, times, *state)` or `(n, *state)`.
        Rows after a failure and padded rows are nan.
    - `ts`, `t0`, `t1`: the times as used, in the dtype of the state.
    - `mesh`: the accepted steps.
    - `result`: a `RESULTS` member per trajectory.
    - `stats`: counts per trajectory.
    - `system`, `y0`: what was solved.
    - `backend`: which backend ran, and why.
    """

    ys: PyTree
    ts: Float[Array, "*#lanes times"] | None
    t0: Float[Array, "*#lanes"]
    t1: Float[Array, "*#lanes"]
    mesh: Mesh
    result: Any
    stats: Stats
    system: ODESystem
    y0: PyTree
    backend: BackendReport
    _integrator: AbstractIntegrator
    _backend: AbstractRunner
    _layout: StateLayout = eqx.field(static=True)
    _axes: Axes = eqx.field(static=True)
    _lanes: int = eqx.field(static=True)
    _adjoint: DiscreteAdjoint = eqx.field(static=True)

    @property
    def integrator(self) -> AbstractIntegrator:
        """The method that was used."""
        return self._integrator

    @property
    def succeeded(self) -> Bool[Array, "*lanes"]:
        """Whether each trajectory reached `t1`."""
        return self.result == RESULTS.successful

    @validates_input
    def replay(
        self,
        system: ODESystem | None = None,
        y0: PyTree = None,
        *,
        ts: Float[ArrayLike, "*#lanes times"] | None = None,
        t0: Float[ArrayLike, "*#lanes"] | None = None,
        t1: Float[ArrayLike, "*#lanes"] | None = None,
    ) -> PyTree:
        """The states along the recorded mesh, for other parameters; differentiable.

        The derivative is that of the discrete map `(system, y0, ts, t0, t1) -> ys` that takes
        exactly the recorded steps; interior mesh times are constants, the first and last move with
        t0 and t1.

        **Arguments:**

        - `system`, `y0`: of the recorded structure, shapes and dtypes; default: those recorded.
        - `ts`: output times within the window, any number of them; default: those recorded.
        - `t0`, `t1`: where the first step starts and the last one ends.

        **Returns:**

        The states in the form of `ys`.

        **Raises:**

        `ValueError` if a structure differs from the recorded one or if `ts` is out of order.
        """
        if system is None:
            system = self.system
        else:
            check_same_structure("system", self.system, system)
        if y0 is None:
            y0 = self.y0
        else:
            check_same_structure("y0", self.y0, y0)
        axes = self._axes
        moved: dict[str, Any] = {"ts": ts, "t0": t0, "t1": t1}
        for name, value in moved.items():
            if value is None:
                moved[name] = getattr(self, name)
            else:
                moved[name], axis = self._times(name, value)
                axes = dataclasses.replace(axes, **{name: (axis,)})
        if not (ts is None and t0 is None and t1 is None):
            check_values(moved["t0"], moved["t1"], moved["ts"], None, None, check_states=False)
            check_window(self.mesh, self.t0, self.t1, moved["t0"], moved["t1"])
        ts, t0, t1 = moved["ts"], moved["t0"], moved["t1"]
        request, arguments = self._replay_request(
            {"system": system, "y0": y0, "ts": ts, "t0": t0, "t1": t1}, axes
        )
        return run_replay(
            request, arguments, self.mesh, status_of(self.result), self._integrator, self._backend
        )

    def _times(self, name: str, value: Any) -> tuple[Array, int | None]:
        """Times as an array of the state's dtype, and their ensemble axis."""
        array = jnp.asarray(value, self._layout.dtype)
        own = ("times",) if name == "ts" else ()
        lanes = self._lanes if self._axes.ensemble else None
        if array.ndim == len(own):
            return array, None
        if lanes is not None and array.ndim == 1 + len(own) and array.shape[0] == lanes:
            return array, 0
        shapes = f"({', '.join(own)}{',' if own else ''})"
        if lanes is not None:
            shapes += f" or ({', '.join((str(lanes), *own))}{'' if own else ','})"
        raise ValueError(f"`{name}` must have the shape {shapes}, got {array.shape}.")

    def _replay_request(
        self, values: dict[str, Any], axes: Axes | None = None
    ) -> tuple[Request, Arguments]:
        request = Request(self._layout, axes or self._axes, self._lanes, self._adjoint, 0, 0)
        return request, Arguments(**values)

    @validates_input
    def loss_grad(
        self,
        loss: Loss,
        system: ODESystem | None = None,
        y0: PyTree = None,
        wrt: str | Sequence[str] = "system",
    ) -> tuple[Float[Array, ""], PyTree]:
        """The value of `loss(ys)` along the recorded mesh, and its exact gradient.

        **Arguments:**

        - `loss`: maps `ys` to a number.
        - `system`, `y0`: as in `replay`.
        - `wrt`: `"system"`, `"y0"`, `"ts"`, `"t0"` or `"t1"`, or a tuple of these.

        **Returns:**

        `(value, gradient)`; the gradient has the structure of what is named by `wrt` (a tuple of
        them for a tuple), with `None` in place of leaves that are not floating-point arrays.

        **Raises:**

        `ValueError` for an unknown name in `wrt`.
        """
        names = names_in_wrt(wrt, self.ts is not None)
        values = {
            "system": self.system if system is None else system,
            "y0": self.y0 if y0 is None else y0,
            "ts": self.ts,
            "t0": self.t0,
            "t1": self.t1,
        }
        check_same_structure("system", self.system, values["system"])
        check_same_structure("y0", self.y0, values["y0"])
        chosen = tuple(values[name] for name in names)
        if is_concrete((self, chosen)):
            request, arguments = self._replay_request(values)
            ys, pullback = linearise_replay(
                names,
                request,
                arguments,
                self.mesh,
                status_of(self.result),
                self._integrator,
                self._backend,
            )
            value, ct_ys = eqx.filter_value_and_grad(loss)(ys)
            by_name = pull_back(pullback, ct_ys)
            gradients = tuple(by_name[name] for name in names)
            return value, gradients[0] if isinstance(wrt, str) else gradients

        constant = {name: values[name] for name in ("system", "y0") if name not in names}

        def objective(chosen: tuple[PyTree, ...]) -> Float[Array, ""]:
            return loss(self.replay(**constant, **dict(zip(names, chosen, strict=True))))

        value, gradients = eqx.filter_value_and_grad(objective)(chosen)
        return value, gradients[0] if isinstance(wrt, str) else gradients

    @validates_input
    def evaluate(self, t: Float[ArrayLike, "*lanes_and_times"]) -> PyTree:
        """Dense output at any times of the window, in any order; differentiable like `replay`.

        **Arguments:**

        - `t`: a time, an array of times, or for an ensemble an array `(n, times)`.

        **Returns:**

        The states, in the form of `ys`; a scalar `t` gives one state (per trajectory).
        """
        t = jnp.asarray(t, self._layout.dtype)
        times = jnp.atleast_1d(t)
        direction = jnp.where(self.t1 < self.t0, -1, 1)
        if direction.ndim == 1 and times.ndim == 1:
            # Trajectories may run in different directions: each has its own order.
            times = jnp.broadcast_to(times, (direction.shape[0], *times.shape))
        order = jnp.argsort(direction[..., None] * times, axis=-1)
        inverse = jnp.argsort(order, axis=-1)
        ys = self.replay(ts=jnp.take_along_axis(times, order, axis=-1))
        axis = 1 if self._axes.ensemble else 0

        def restore(leaf: Array) -> Array:
            if inverse.ndim == 1:
                leaf = jnp.take(leaf, inverse, axis=axis)
            else:
                shape = (*inverse.shape, *[1] * (leaf.ndim - 2))
                leaf = jnp.take_along_axis(leaf, inverse.reshape(shape), axis=1)
            return jnp.squeeze(leaf, axis) if t.ndim == 0 else leaf

        return jtu.tree_map(restore, ys)


def names_in_wrt(wrt: Any, has_outputs: bool) -> tuple[str, ...]:
    """What `wrt` names, as a tuple; raises `ValueError` for anything else."""
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt or ())
    if not names or any(name not in _DIFFERENTIABLE for name in names):
        raise ValueError(
            f"`wrt` may name {', '.join(map(repr, _DIFFERENTIABLE))} or a tuple of them, got "
            f"{wrt!r}."
        )
    if "ts" in names and not has_outputs:
        raise ValueError("`wrt` names 'ts', but there are no output times (`ts=None`).")
    return names


def status_of(result: Any) -> Int[Array, "*lanes"]:
    """The integers behind an enumeration item."""
    return result._value
