"""`fit`: minimises a loss of the solution with an Optax optimiser."""

import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax

from . import _results as codes
from ._adjoint import DiscreteAdjoint
from ._backends import AbstractBackend
from ._checks import is_concrete
from ._controllers import AbstractController
from ._custom_types import Array, ArrayLike, Float, Loss, PyTree
from ._fit_update import Problem, Report, init, update
from ._in_axes import InAxes, resolve_axes
from ._integrators import AbstractIntegrator
from ._progress import progress_bar
from ._rerecord import AbstractRerecord, Always
from ._results import SolveError
from ._solve import (
    _DEFAULT_ADJOINT,
    _DEFAULT_BACKEND,
    _DEFAULT_CONTROLLER,
    default_integrator,
    solve,
)
from ._system import ODESystem
from ._trainable import Trainable, named_leaves, split, strong
from ._trajectory import Trajectory
from ._window import window_from_outputs

System = TypeVar("System", bound=ODESystem)

_DEFAULT_RERECORD = Always()

# A replayed mesh no longer suits the parameters if the loss along it and the loss of a new solve
# differ by this fraction of the loss and by the second fraction of what the fit has gained. Solver
# tolerances cause far smaller differences, unless the loss itself is nearly zero.
_STALE = 1e-2
_STALE_GAIN = 1e-4


class FitResult(eqx.Module, Generic[System]):
    """What `fit` returns: the best parameters it met, those with the lowest loss.

    - `system`: the model with the best parameters.
    - `y0`: the initial state that goes with it.
    - `loss`: the loss there, the lowest of `losses`.
    - `losses`: the loss at the initial parameters and after each update, `steps + 1` numbers.
    - `trajectory`: `solve` at the best parameters, with a mesh of its own. With `Every` and `Never`
        the losses are those of replays, so `loss(trajectory.ys)` may differ from them.
    - `steps`: updates done.
    - `interrupted`: whether Ctrl-C ended the fit.
    - `recordings`: adaptive solves whose mesh served an update or more. Trial points of a line
        search are not counted.
    - `growths`: how often a mesh needed more room than the compiled update had, which cost a
        compilation each time.
    """

    system: System
    y0: PyTree
    loss: Float[Array, ""]
    losses: Float[Array, " steps"]
    trajectory: Trajectory
    steps: int
    interrupted: bool
    recordings: int
    growths: int


class FitError(SolveError):
    """A fit could not go on. `result` is the best so far, `None` if there is nothing yet."""

    result: FitResult[Any] | None

    def __init__(self, message: str, result: FitResult[Any] | None = None):
        super().__init__(message)
        self.result = result


def fit(
    system: System,
    y0: PyTree | Callable[[System], PyTree],
    *,
    ts: Float[ArrayLike, "..."],
    loss: Loss,
    optimizer: optax.GradientTransformation,
    steps: int,
    t0: Float[ArrayLike, "..."] | None = None,
    t1: Float[ArrayLike, "..."] | None = None,
    trainable: PyTree | Trainable | None = None,
    rerecord: AbstractRerecord = _DEFAULT_RERECORD,
    in_axes: InAxes | None = None,
    progress: bool = True,
    callback: Callable[[int, float, System], Any] | None = None,
    integrator: AbstractIntegrator | None = None,
    controller: AbstractController = _DEFAULT_CONTROLLER,
    dt0: Float[ArrayLike, "..."] | None = None,
    max_steps: int = 4096,
    adjoint: DiscreteAdjoint = _DEFAULT_ADJOINT,
    backend: AbstractBackend = _DEFAULT_BACKEND,
    throw: bool = True,
) -> FitResult[System]:
    """Minimises `loss(ys)` over parameters of the system, and over initial states if asked to.

    One update, with its solve and its gradient, is compiled once and used for the whole fit. A
    later fit uses it too if `loss` and `optimizer` are the same objects and shapes have not
    changed.

    A compiled solve has a mesh of fixed capacity. It is chosen from a first solve at the initial
    parameters: room for four times the steps, or one and a half times where a mesh takes much
    memory. If a trajectory needs more, the capacity is increased, the update is compiled again and
    done again from the same parameters; `FitResult.growths` counts how often. No update uses a
    truncated solve.

    **Arguments:**

    - `system`: the model with its initial parameters.
    - `y0`: the initial state, or a function from the whole (with `in_axes`, batched) system to it,
        for initial states that depend on parameters.
    - `ts`: output times, as in `solve`; for a loss of the final state alone pass `t0` and
        `ts=[t1]`.
    - `t0`, `t1`: start and end; default: the first and the last output time (of each trajectory,
        if they have their own).
    - `loss`: maps `ys`, in the form of `Trajectory.ys`, to a number. Rows padded by `inf` in `ts`
        are nan: leave them out by `jnp.where` *before* computing with them.
    - `optimizer`: an Optax optimiser, for example `optax.adam(1e-2)`. Those with a line search
        (`optax.lbfgs()`) get what they need; their trial points are solved with a mesh of
        `max_steps` rows, so that a smaller `max_steps` saves time there.
    - `steps`: updates to do.
    - `trainable`: what may change; default: every floating-point array of the system. A filter
        specification for the system, or `Trainable(system=..., y0=...)` to fit initial states as
        well.
    - `rerecord`: when a mesh is recorded: `Always()`, `Every(k)` or `Never()`.
    - `in_axes`: which axes run over an ensemble, as in `solve`.
    - `progress`: whether a bar shows the loss and the rate.
    - `callback`: called as `callback(step, loss, system)` for `step` = 0, 1, ..., `steps`, where
        `loss` is that of `system`, after `step` updates. If it returns something true the fit ends.
    - `integrator`, `controller`, `dt0`, `max_steps`, `adjoint`, `backend`: as in `solve`.
    - `throw`: whether the fit stops when a trajectory fails or when the loss or its gradient is not
        finite. With `throw=False` it goes on while the parameters are finite: the rows of failed
        trajectories are nan, which the loss must leave out.

    **Returns:**

    A `FitResult`. Ctrl-C ends a fit early; the result is the best so far, with `interrupted` set.

    **Raises:**

    `ValueError` for wrong input; `FitError` if the fit cannot go on, with the best so far in its
    `result`; `SolveError` if the solve at the initial parameters fails.
    """
    _check_choices(loss, optimizer, steps, rerecord, callback)
    if not is_concrete((system, y0, t0, t1, ts, dt0, controller)):
        raise ValueError(
            "`fit` is a loop in Python and cannot be traced: call it outside `jax.jit` and "
            "`jax.grad`."
        )
    if ts is None:
        raise ValueError(
            "`ts` must be given: the times at which `loss` sees the solution. For the final state "
            "alone pass `ts=[t1]`."
        )
    t0, t1, in_axes = window_from_outputs(ts, t0, t1, in_axes)
    parameters, fixed = _split(system, y0, trainable)

    # A first solve checks the rest of the input, by value too, and says how many steps to expect.
    state = y0(system) if callable(y0) else y0
    times = {"t0": t0, "t1": t1, "ts": ts, "dt0": dt0}
    integrator = default_integrator(system) if integrator is None else integrator
    choices: dict[str, Any] = {
        "controller": controller,
        "integrator": integrator,
        "adjoint": adjoint,
        "backend": backend,
        "max_steps": max_steps,
    }
    first = solve(system, state, **times, **choices, in_axes=in_axes, throw=throw)
    _check_loss(loss, first)

    dtype = first._layout.dtype
    times = {
        name: None if time is None else jnp.asarray(time, dtype) for name, time in times.items()
    }
    arguments = {"system": system, "y0": state, "controller": controller, **times}
    problem = Problem(
        fixed=fixed,
        loss=loss,
        optimizer=optimizer,
        axes=resolve_axes(in_axes, arguments)[0],
        bytes_per_row=(first._layout.dim + 1) * first._lanes * jnp.dtype(dtype).itemsize,
        throw=throw,
        **times,
        **choices,
    )
    attempts = int(np.max(np.asarray(first.stats.num_steps)))
    more = controller.adaptive and rerecord.records_again
    room = problem.room_to_spare(attempts) if more else problem.room_for(attempts)
    run = _Run(problem, rerecord, parameters, first._lanes, room)
    with progress_bar(steps, progress) as advance:
        try:
            for step in range(steps + 1):
                if step > 0:
                    run.move()
                run.evaluate()
                value = float(run.losses[-1])
                advance(step, value)
                if callback is not None and callback(step, value, run.system):
                    break
        except KeyboardInterrupt:
            if run.best is None:
                raise
            return run.result(interrupted=True)
    return run.result(interrupted=False)


class _Run:
    """The state of a fit on its way."""

    def __init__(
        self,
        problem: Problem,
        rerecord: AbstractRerecord,
        parameters: tuple[PyTree, PyTree],
        lanes: int,
        room: int,
    ):
        self.problem = problem
        self.rerecord = rerecord
        self.lanes = lanes
        self.parameters = parameters
        self.updates = 0  # done so far
        self.state = jtu.tree_map(strong, init(problem.optimizer, parameters))
        self.room = room
        self.recorded: Trajectory | None = None
        self.next: tuple[PyTree, PyTree, Any] | None = None  # parameters, state, their finiteness
        self.losses: list[np.ndarray] = []
        self.best: tuple[np.ndarray, PyTree] | None = None
        self.recordings = 0
        self.growths = 0

    @property
    def system(self) -> Any:
        return self.problem.model(self.parameters)[0]

    def evaluate(self) -> None:
        """The loss at the parameters, and what the next update would make of them."""
        problem = self.problem
        due = self.rerecord.due(self.updates)
        self.recordings += due
        if due and not self.rerecord.within_update:
            self.recorded = self._record()
        while True:
            room = None if self.recorded else self.room
            parameters, state, report = update(
                problem, room, self.recorded, self.parameters, self.state
            )
            report = jax.device_get(report)
            if room in (None, problem.max_steps) or not report.out_of_steps:
                break
            self._grow(room)
        if problem.throw:
            self._raise_if_failed(report)
        self.next = parameters, state, report.finite_parameters
        self.losses.append(report.loss)
        if np.isfinite(report.loss) and (self.best is None or report.loss < self.best[0]):
            self.best = report.loss, self.parameters

    def move(self) -> None:
        """Makes the update."""
        assert self.next is not None
        parameters, state, finite = self.next
        broken = _names(self.parameters, finite)
        if broken:
            raise self._error(
                f"the next one would make {broken} inf or nan. `optax.apply_if_finite` around the "
                "optimiser leaves out such updates."
            )
        self.parameters, self.state = parameters, state
        self.updates += 1

    def result(self, *, interrupted: bool) -> FitResult[Any]:
        if self.best is None:
            raise FitError(
                f"None of the {len(self.losses)} losses of the fit is finite. With `throw=False` "
                "the loss must leave out the rows of failed trajectories, which are nan."
            )
        loss, parameters = self.best
        system, y0 = self.problem.model(parameters)
        trajectory = self.problem.solve(parameters)
        if not self.rerecord.within_update:
            self._warn_if_stale(trajectory)
        return FitResult(
            system=system,
            y0=y0,
            loss=jnp.asarray(loss),
            losses=jnp.asarray(np.stack(self.losses)),
            trajectory=trajectory,
            steps=len(self.losses) - 1,
            interrupted=interrupted,
            recordings=self.recordings,
            growths=self.growths,
        )

    def _record(self) -> Trajectory:
        try:
            trajectory = self.problem.solve(self.parameters, throw=self.problem.throw)
        except SolveError as error:
            raise self._error(str(error)) from error
        steps = int(np.max(np.asarray(trajectory.mesh.num_steps)))
        if steps > self.room:
            self._grow(steps)
        # All meshes get one shape, so that the compiled update takes any of them. Rows past the
        # last step repeat its time.
        times = trajectory.mesh.times[: self.room + 1]
        padding = ((0, self.room + 1 - times.shape[0]), *[(0, 0)] * (times.ndim - 1))
        times = jnp.pad(times, padding, mode="edge")
        return eqx.tree_at(lambda trajectory: trajectory.mesh.times, trajectory, times)

    def _grow(self, steps: int) -> None:
        """Room for twice so many steps; costs a compilation."""
        self.room = self.problem.room_for(2 * steps)
        self.growths += 1

    def _raise_if_failed(self, report: Report) -> None:
        if report.failed:
            who = "the trajectory failed"
            if self.problem.axes.ensemble:
                who = (
                    f"{report.failed} of {self.lanes} trajectories failed; the first is "
                    f"trajectory {report.first}"
                )
            message = codes.MESSAGES[int(report.status)]
            if not self.rerecord.within_update:
                message = (
                    "a replay met inf or nan, so the mesh no longer suits the parameters. Record "
                    "more often: `rerecord=Every(k)` with a smaller k, or `Always()`."
                )
            raise self._error(f"{who}: {message}")
        if not np.isfinite(report.loss):
            raise self._error(
                f"the loss is {report.loss}. If the solution may leave the domain of the loss (a "
                "logarithm of something negative), guard it there; nan from padded `ts` must be "
                "left out before it is used."
            )
        broken = _names(self.parameters, report.finite_gradient)
        if broken:
            raise self._error(
                f"the loss is {report.loss:.6g}, but its gradient with respect to {broken} is not "
                "finite. A square root or a norm at zero does this, and so does a `jnp.where` "
                "whose other branch is not finite: choose its argument before computing with it."
            )

    def _error(self, what: str) -> FitError:
        """An error that keeps what the fit has reached."""
        message = f"The fit stopped after {self.updates} updates: {what}"
        if self.best is None:
            return FitError(message)
        message += (
            " Smaller steps of the optimiser, or parameters that cannot leave their domain (the "
            "logarithm of a positive one), may help. The best parameters so far, with the loss "
            f"{self.best[0]:.6g}, are in `result` of this error."
        )
        return FitError(message, self.result(interrupted=False))

    def _warn_if_stale(self, trajectory: Trajectory) -> None:
        assert self.best is not None
        replayed = self.best[0]
        solved = np.asarray(self.problem.loss(trajectory.ys))
        allowed = _STALE * np.abs(solved) + _STALE_GAIN * np.abs(self.losses[0] - replayed)
        if not np.abs(solved - replayed) <= allowed:
            warnings.warn(
                f"The best loss along a replayed mesh is {replayed:.6g}, but solving anew at the "
                f"same parameters gives {solved:.6g}: the mesh no longer suited the parameters. "
                "Record more often, with `rerecord=Always()` or `Every(k)`.",
                stacklevel=3,
            )


def _names(parameters: PyTree, fine: ArrayLike) -> str:
    """The trained leaves that are not fine, as a list in words."""
    if np.all(fine):
        return ""
    named = zip(named_leaves(parameters), np.asarray(fine), strict=True)
    return ", ".join(f"`{name}`" for (name, _), ok in named if not ok)


def _split(
    system: ODESystem, y0: PyTree, trainable: PyTree | Trainable | None
) -> tuple[tuple[PyTree, PyTree], tuple[PyTree, PyTree]]:
    """What is trained of the system and of y0, and the rest of each."""
    if trainable is None:
        trainable = Trainable()
    elif not isinstance(trainable, Trainable):
        trainable = Trainable(system=trainable)
    if callable(y0):
        if trainable.y0 is not False:
            raise ValueError(
                "`y0` is a function of the system, so `trainable.y0` must be False: what the "
                "initial state depends on is part of the system and trained there."
            )
    else:
        y0 = jtu.tree_map(strong, y0)
    systems = split("system", trainable.system, system)
    states = split("y0", trainable.y0, y0)
    parameters = (systems[0], states[0])
    if not jtu.tree_leaves(parameters):
        raise ValueError(
            f"`trainable={trainable}` selects no floating-point array, so there is nothing to fit. "
            "Leave it out to fit all parameters of the system."
        )
    return parameters, (systems[1], states[1])


def _check_choices(loss: Any, optimizer: Any, steps: Any, rerecord: Any, callback: Any) -> None:
    if not callable(loss):
        raise ValueError(f"`loss` must be a function of `ys`, got {loss!r}.")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            f"`optimizer` must be an Optax optimiser such as `optax.adam(1e-2)`, got {optimizer!r}."
        )
    if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"`steps` must be a positive number of updates, got {steps!r}.")
    if not isinstance(rerecord, AbstractRerecord):
        raise ValueError(
            "`rerecord` must be `gradsolve.Always()`, `gradsolve.Every(k)` or "
            f"`gradsolve.Never()`, got {rerecord!r}."
        )
    if callback is not None and not callable(callback):
        raise ValueError(
            f"`callback` must be a function of `(step, loss, system)` or None, got {callback!r}."
        )


def _check_loss(loss: Loss, trajectory: Trajectory) -> None:
    value = eqx.filter_eval_shape(loss, trajectory.ys)
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise ValueError(f"`loss(ys)` must return a single number, got {value!r}.")
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"`loss(ys)` must return a single floating-point number, got an array of shape "
            f"{value.shape} and dtype {value.dtype}. Reduce it with `jnp.mean` or `jnp.sum`."
        )
