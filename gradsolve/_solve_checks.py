"""What `solve` checks before it runs, and what it reports afterwards."""

from typing import Any

import jax
import numpy as np

from . import _results as codes
from ._adjoint import DiscreteAdjoint
from ._backends import AbstractBackend
from ._checks import is_concrete
from ._controllers import AbstractController, ConstantStep, StepTo
from ._custom_types import Array, ArrayLike
from ._integrators import AbstractIntegrator
from ._results import SolveError
from ._trajectory import Trajectory


def check_choices(
    integrator: Any, controller: Any, adjoint: Any, backend: Any, dt0: Any, max_steps: Any
) -> None:
    """Raises `ValueError` for choices that are not objects of their kind, or do not go together."""
    for name, value, kind, example in (
        ("integrator", integrator, AbstractIntegrator, "gradsolve.Tsit5()"),
        ("controller", controller, AbstractController, "gradsolve.PIDController(1e-6, 1e-9)"),
        ("adjoint", adjoint, DiscreteAdjoint, "gradsolve.DiscreteAdjoint()"),
        ("backend", backend, AbstractBackend, "gradsolve.Auto()"),
    ):
        if not isinstance(value, kind):
            hint = f"`{example}`"
            if name == "integrator":
                hint += "; a Diffrax solver goes into `gradsolve.FromDiffrax(...)`"
            raise ValueError(f"`{name}` must be an object such as {hint}, got {value!r}.")
    if not isinstance(max_steps, int | np.integer) or isinstance(max_steps, bool) or max_steps < 1:
        raise ValueError(f"`max_steps` must be a positive integer, got {max_steps!r}.")
    if controller.adaptive and integrator.error_order is None:
        raise ValueError(
            f"`{type(integrator).__name__}` has no error estimate, so the adaptive "
            f"`{type(controller).__name__}` cannot choose its steps. Use "
            "`controller=gradsolve.ConstantStep(dt)`, or an integrator with an error estimate such "
            "as `gradsolve.Tsit5()`."
        )
    if not controller.adaptive and dt0 is not None:
        what = "`dt`" if isinstance(controller, ConstantStep) else "`ts`"
        raise ValueError(
            f"`dt0` is for adaptive controllers; the steps of `{type(controller).__name__}` follow "
            f"from its {what}. Leave `dt0` out."
        )


def check_first_step(dt0: ArrayLike | None, dtype: Any) -> None:
    """Raises `ValueError` unless every first step is positive and finite in the state's dtype.

    `dt0` is as the user gave it: a number on the host is not read back from a device.
    """
    if dt0 is None or not is_concrete(dt0):
        return
    with np.errstate(over="ignore"):
        values = np.asarray(dt0).astype(dtype)
    # XLA takes numbers that are too small to be normal for zero.
    if not ((values >= np.finfo(dtype).tiny) & np.isfinite(values)).all():
        raise ValueError(
            f"`dt0` must be positive and finite (the direction follows from t0 and t1), got {dt0}."
        )


def check_step_to(controller: AbstractController, t0: Array, t1: Array) -> None:
    """Raises `ValueError` unless the times of a `StepTo` begin at `t0` and end at `t1`."""
    if not isinstance(controller, StepTo) or not is_concrete((controller, t0, t1)):
        return
    ts = np.asarray(controller.ts)
    first = ts[..., 0]
    last = np.take_along_axis(ts, np.isfinite(ts).sum(-1, keepdims=True) - 1, axis=-1)[..., 0]
    if not (np.all(first == np.asarray(t0)) and np.all(last == np.asarray(t1))):
        raise ValueError(
            f"`StepTo(ts=...)` must start at `t0` and end at `t1`: it runs from {first} to {last}, "
            f"but t0={t0} and t1={t1}."
        )


def raise_if_failed(trajectory: Trajectory, status: Array) -> None:
    """Raises `SolveError`: how many trajectories failed, the first, its time, and the remedy."""
    values = np.atleast_1d(jax.device_get(status))
    failed = np.flatnonzero(values != codes.SUCCESSFUL)
    if failed.size == 0:
        return
    index = int(failed[0])
    times, counts = trajectory.mesh.times, trajectory.mesh.num_steps
    if trajectory._axes.ensemble:
        reached = times[counts[index], index]
        who = f"{failed.size} of {values.size} trajectories failed; the first is trajectory {index}"
    else:
        reached = times[counts]
        who = "The trajectory failed"
    message = codes.MESSAGES[int(values[index])]
    raise SolveError(
        f"{who}, which reached t = {float(reached):.6g}: {message} Pass `throw=False` to get the "
        "results of the others and a status per trajectory."
    )
