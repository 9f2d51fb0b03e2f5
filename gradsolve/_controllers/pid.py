"""Adaptive steps under a PI or PID controller."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._custom_types import Array, ArrayLike, Float, LaneFlag, LaneState, LaneTime, PyTree
from .._ensemble.layout import StateLayout
from ._base import AbstractController, Decision, Window
from ._checks import check_positive
from .initial_step import hairer_step
from .norms import rms_norm

Tolerance = PyTree[Float[ArrayLike, "..."]]


class _Memory(NamedTuple):
    """Squares of the scaled errors of the last two accepted steps; whether at `dtmin`."""

    previous: LaneTime
    before: LaneTime
    at_dtmin: LaneFlag


class PIDController(AbstractController):
    r"""Chooses steps so that the estimated local error stays within the tolerances.

    A step is accepted if `norm(error / (atol + rtol * max(|y0|, |y1|))) < 1`. With
    $\epsilon_n$ the inverse of that norm at step $n$ and $k$ the order of the error estimate, the
    next step is the present one times

    $$\mathrm{safety}\; \epsilon_n^{(p + i + d)/k}\; \epsilon_{n-1}^{-(p + 2d)/k}\;
    \epsilon_{n-2}^{d/k}$$

    clipped to `[1, factormax]` after an accepted step and `[factormin, safety]` after a rejected
    one. A candidate that is not finite is rejected with `factormin`. These are the formulas of
    Diffrax, so both accept and reject the same steps under the same explicit `dt0`.

    **Arguments:**

    - `rtol`, `atol`: relative and absolute tolerance, each a positive number (`atol` may be zero)
        or a pytree shaped like the state (or a prefix of it), one scale per component. `atol` has
        the units of the state.
    - `pcoeff`, `icoeff`, `dcoeff`: the coefficients $p$, $i$, $d$. The default is an I controller;
        `pcoeff=0.3, icoeff=0.4` is a PI controller for mildly stiff problems.
    - `dtmin`, `dtmax`: bounds of the step size, in units of `t`.
    - `force_dtmin`: whether a step at `dtmin` is accepted whatever its error; otherwise the
        trajectory ends with the status `step_size_underflow`.
    - `safety`, `factormin`, `factormax`: as above.
    - `norm`: maps a pytree shaped like the state to a number.

    ??? cite "References"

        Söderlind (2003), *Digital filters in adaptive time-stepping*, ACM TOMS 29, 1–26.
        Hairer, Nørsett & Wanner, *Solving Ordinary Differential Equations I*, section II.4.
    """

    adaptive: ClassVar[bool] = True
    rtol: Tolerance
    atol: Tolerance
    pcoeff: float = 0.0
    icoeff: float = 1.0
    dcoeff: float = 0.0
    dtmin: Float[ArrayLike, ""] | None = None
    dtmax: Float[ArrayLike, ""] | None = None
    force_dtmin: bool = eqx.field(static=True, default=True)
    safety: float = 0.9
    factormin: float = 0.2
    factormax: float = 10.0
    norm: Callable[[PyTree], Float[Array, ""]] = eqx.field(static=True, default=rms_norm)
    _layout: StateLayout | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_positive("rtol", self.rtol)
        check_positive("atol", self.atol, zero_allowed=True)
        for name in ("dtmin", "dtmax"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("safety", "factormin", "factormax"):
            check_positive(name, getattr(self, name))

    def bind(self, layout: StateLayout) -> "PIDController":
        as_time = lambda x: None if x is None else _as_array(x, layout)
        return PIDController(
            rtol=_flat_tolerance("rtol", self.rtol, layout),
            atol=_flat_tolerance("atol", self.atol, layout),
            pcoeff=self.pcoeff,
            icoeff=self.icoeff,
            dcoeff=self.dcoeff,
            dtmin=as_time(self.dtmin),
            dtmax=as_time(self.dtmax),
            force_dtmin=self.force_dtmin,
            safety=self.safety,
            factormin=self.factormin,
            factormax=self.factormax,
            norm=self.norm,
            _layout=layout,
        )

    def scale(self, y: LaneState) -> LaneState:
        """`atol + rtol |y|`, the size of a tolerable error."""
        return self.atol + jnp.abs(y) * self.rtol

    def scaled_norm(self, x: LaneState) -> LaneTime:
        """The norm of a scaled error, lane by lane."""
        if self.norm is rms_norm:
            return jnp.sqrt(_mean_square(x))
        assert self._layout is not None
        unflatten = self._layout.unflatten
        return jax.vmap(lambda column: self.norm(unflatten(column)), in_axes=-1)(x)

    def squared_norm(self, x: LaneState) -> LaneTime:
        """Its square: the root of a root mean square is left to the power that follows."""
        if self.norm is rms_norm:
            return _mean_square(x)
        norm = self.scaled_norm(x)
        return norm * norm

    def first_step(
        self,
        field: Callable[[LaneTime, LaneState], LaneState],
        window: Window,
        y0: LaneState,
        f0: LaneState,
        error_order: float | None,
    ) -> LaneTime:
        assert error_order is not None
        return hairer_step(self.scale, self.scaled_norm, field, window, y0, f0, error_order)

    def init(self, window: Window, dt0: LaneTime | None) -> tuple[LaneTime, _Memory]:
        assert dt0 is not None
        if self.dtmax is not None:
            dt0 = jnp.minimum(dt0, self.dtmax)
        if self.dtmin is not None:
            dt0 = jnp.maximum(dt0, self.dtmin)
        one = jnp.ones_like(window.t0)
        return window.t0 + dt0, _Memory(one, one, jnp.zeros_like(one, dtype=bool))

    def adapt(
        self,
        window: Window,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        y1: LaneState,
        error: LaneState | None,
        error_order: float | None,
        state: _Memory,
    ) -> Decision:
        del window
        assert error is not None
        assert error_order is not None
        finite = jnp.all(jnp.isfinite(y1), axis=0)
        before, after = jnp.abs(y0), jnp.abs(y1)
        size = jnp.where(finite & (after > before), after, before)
        # Without an absolute tolerance a component that stays exactly zero has no error: not 0 / 0.
        atol = jnp.maximum(self.atol, jnp.finfo(y0.dtype).tiny)
        squared = self.squared_norm(error / (atol + size * self.rtol))
        squared = jnp.where(finite & ~jnp.isnan(squared), squared, jnp.inf)
        accept = (squared < 1) | (state.at_dtmin & finite)

        # The formula above with squares of errors, not their inverses: half the exponents, negated.
        halved = 2 * error_order
        factor = self.safety * _power(squared, -(self.icoeff + self.pcoeff + self.dcoeff) / halved)
        factor = factor * _power(state.previous, (self.pcoeff + 2 * self.dcoeff) / halved)
        factor = factor * _power(state.before, -self.dcoeff / halved)
        smallest = jnp.where(accept, 1, self.factormin).astype(squared.dtype)
        largest = jnp.where(accept, self.factormax, self.safety).astype(squared.dtype)
        factor = jnp.where(factor < smallest, smallest, factor)
        factor = jnp.where(factor > largest, largest, factor)
        dt = (t1 - t0) * factor
        # A failed step (error inf) or an error of exactly zero says nothing about the next step.
        squared = jnp.where((squared == 0) | jnp.isinf(squared), 1, squared)

        underflow = jnp.zeros_like(accept)
        at_dtmin = state.at_dtmin
        if self.dtmax is not None:
            dt = jnp.minimum(dt, self.dtmax)
        if self.dtmin is not None:
            if not self.force_dtmin:
                underflow = dt < self.dtmin
            # Return to dtmin itself: rounding must not accumulate in repeated minimal steps.
            dt = jnp.where(at_dtmin & (factor == 1), self.dtmin, dt)
            at_dtmin = dt <= self.dtmin
            dt = jnp.maximum(dt, self.dtmin)
        memory = _Memory(
            jnp.where(accept, squared, state.previous),
            jnp.where(accept, state.previous, state.before),
            at_dtmin,
        )
        t_next = jnp.where(accept, t1, t0) + dt
        return Decision(accept, t_next, underflow, state.at_dtmin, memory)


def _mean_square(x: LaneState) -> LaneTime:
    # A product with the reciprocal is what XLA makes of the division in a mean.
    return jnp.sum(x * x, axis=0) * (1 / x.shape[0])


def _power(base: LaneTime, exponent: float) -> LaneTime | float:
    if isinstance(exponent, int | float) and exponent == 0:
        return 1.0
    return step_size_power(base, jnp.asarray(exponent, base.dtype))


@jax.jit
def step_size_power(base: LaneTime, exponent: Array) -> LaneTime:
    """`base**exponent` of positive numbers; fused kernels know the function by its name."""
    return base**exponent


def _as_array(value: ArrayLike, layout: StateLayout) -> Any:
    """A number stays on the host, so that binding a controller starts no device work."""
    if isinstance(value, jax.Array):
        return value.astype(layout.dtype)
    return np.asarray(value, layout.dtype)


def _flat_tolerance(name: str, tolerance: Tolerance, layout: StateLayout) -> Any:
    """A scalar, or one number per component of the flat state."""
    if jtu.tree_structure(tolerance) == jtu.tree_structure(0):
        leaf = _as_array(tolerance, layout)
        if leaf.ndim == 0:
            return leaf
    try:
        full = jtu.tree_map(
            lambda part, below: jtu.tree_map(
                lambda struct: jnp.broadcast_to(jnp.asarray(part, struct.dtype), struct.shape),
                below,
            ),
            tolerance,
            layout.structs(),
        )
    except (ValueError, TypeError):
        shapes = jtu.tree_map(jnp.shape, tolerance)
        raise ValueError(
            f"`{name}` must be a number or shaped like the state {layout.structs()}, got a value "
            f"with the shapes {shapes}."
        ) from None
    return layout.flatten(full)
