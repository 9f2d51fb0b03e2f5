"""Any ODE solver of Diffrax as an integrator: its step is vmapped over lanes, and so is its VJP."""

import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._controllers import AbstractController, PIDController, rms_norm
from .._controllers._checks import check_positive
from .._custom_types import Array, LaneFlag, LaneState, LaneTime, Leaf, PyTree
from .._ensemble.field import EnsembleField
from ._base import (
    AbstractIntegrator,
    AbstractTransposedStep,
    OutputCotangents,
    Step,
    StepCotangents,
)

Tolerance = float | tuple[float, ...]
"""One number, or one per component of the flat state. Not an array: arrays are traced."""

# What Diffrax puts in place of the tolerances that a root finder is to take from the controller.
_FROM_CONTROLLER = diffrax.with_stepsize_controller_tols(diffrax.VeryChord)().rtol

_VectorField = Callable[[Any, Any, Any], Any]


def _innermost(solver: diffrax.AbstractSolver) -> Any:
    while isinstance(solver, diffrax.AbstractWrappedSolver):
        solver = solver.solver
    return solver


def _taken_from_controller(solver: diffrax.AbstractSolver) -> list[str]:
    """Which options of the root finder are to be filled in; none if there is no root finder."""
    root_finder = getattr(_innermost(solver), "root_finder", None)
    names = ("rtol", "atol", "norm")
    return [name for name in names if getattr(root_finder, name, None) is _FROM_CONTROLLER]


def _is_imex(solver: diffrax.AbstractSolver) -> bool:
    tableau = getattr(_innermost(solver), "tableau", None)
    return isinstance(tableau, diffrax.MultiButcherTableau)


def _static_number(value: Any) -> Any:
    """A number as a Python float, which `jax.jit` treats as part of the program."""
    if value is None or isinstance(value, tuple):
        return value
    if isinstance(value, Tracer) or np.ndim(value) != 0:
        raise ValueError(
            "`rtol` and `atol` of `FromDiffrax` must be numbers that are known before tracing, got "
            f"{value!r}."
        )
    return float(value)


def _static_solver(solver: Any) -> Any:
    """The solver with scalar arrays among its options turned into Python numbers."""

    def convert(leaf: Any) -> Any:
        if not eqx.is_array(leaf) and not isinstance(leaf, np.ndarray):
            return leaf
        if isinstance(leaf, Tracer) or leaf.ndim != 0:
            raise ValueError(
                f"The options of `{type(solver).__name__}` must be numbers that are known before "
                f"tracing, got {leaf!r}."
            )
        return leaf.item()

    return jtu.tree_map(convert, solver) if isinstance(solver, diffrax.AbstractSolver) else solver


def _check_solver(solver: Any) -> None:
    """Raises `ValueError` for what cannot solve `dy/dt = f(t, y)`."""
    if not isinstance(solver, diffrax.AbstractSolver):
        raise ValueError(
            "`FromDiffrax(solver)` needs a solver of Diffrax such as `diffrax.Kvaerno5()`, got "
            f"{solver!r}."
        )
    name = type(_innermost(solver)).__name__
    structure = solver.term_structure
    origin = typing.get_origin(structure) or structure
    if _is_imex(solver):
        return
    if origin is diffrax.MultiTerm:
        raise ValueError(
            f"`diffrax.{name}` is for stochastic differential equations, and an `ODESystem` is "
            "deterministic. Use an ODE solver such as `diffrax.Tsit5()` or `diffrax.Kvaerno5()`."
        )
    if not (isinstance(origin, type) and issubclass(diffrax.ODETerm, origin)):
        raise ValueError(
            f"`diffrax.{name}` needs one vector field for each part of a split state, and an "
            "`ODESystem` has one vector field. Use `diffrax.LeapfrogMidpoint()` or "
            "`diffrax.ReversibleHeun()`, or solve the two fields with `diffrax.diffeqsolve`."
        )


def _terms(solver: diffrax.AbstractSolver, vector_field: _VectorField) -> Any:
    """The terms that the solver expects; an implicit-explicit one gets the field as implicit."""
    term = diffrax.ODETerm(vector_field)
    if not _is_imex(solver):
        return term
    tableaus = _innermost(solver).tableau.tableaus
    # At most one tableau is implicit; if none is, any of them will do.
    chosen = next((i for i, tableau in enumerate(tableaus) if tableau.implicit), 0)
    nothing = diffrax.ODETerm(lambda t, y, args: jnp.zeros_like(y))
    return diffrax.MultiTerm(*[term if i == chosen else nothing for i in range(len(tableaus))])


class _LaneSolver(eqx.Module):
    """A Diffrax solver on one lane. `args` are the lane's field leaves and its direction.

    The leaves go through `args`, not through the closure of the vector field, so that the implicit
    function rule of the root finder sees them.
    """

    solver: Any
    vector_field: _VectorField = eqx.field(static=True)

    @property
    def terms(self) -> Any:
        return _terms(self.solver, self.vector_field)

    def start(self, args: Any, t0: Array, t1: Array, y0: Array) -> Any:
        state = self.solver.init(self.terms, t0, t1, y0, args)
        if isinstance(self.solver, diffrax.AbstractRungeKutta) and state is not None:
            # Diffrax evaluates the first stage of a first-same-as-last method within the first
            # step. It decides so for all lanes of a vmap together, so that a lane on its first step
            # would change the arithmetic of its neighbours. Here that stage is evaluated
            # beforehand: every step is then like every other, and the memo has a derivative.
            state = (False, self.solver.func(self.terms, t0, y0, args))
        return jtu.tree_map(jnp.asarray, state)

    def step(self, args: Any, t0: Array, t1: Array, y0: Array, memo: Any) -> Step:
        y1, error, dense, memo, result = self.solver.step(
            self.terms, t0, t1, y0, args, memo, made_jump=False
        )
        solved = result == diffrax.RESULTS.successful
        if not isinstance(solved, Tracer) and bool(solved):
            solved = None  # an explicit method: known while tracing
        else:
            # A replay has no status to report: what was not solved must not pass for a solution.
            y1 = jnp.where(solved, y1, jnp.nan)
        if error is not None:
            error = jnp.where(jnp.isnan(error), jnp.inf, error)
        memo, dense = jtu.tree_map(jnp.asarray, (memo, dense))
        return Step(y1, error, memo, dense, solved)


class FromDiffrax(AbstractIntegrator):
    """An ODE solver of [Diffrax](https://docs.kidger.site/diffrax/) as an integrator.

    It works under every controller, mesh, replay and gradient of this library, and costs what
    Diffrax's step costs. The gradient is the derivative of Diffrax's own step, solver state
    included; where the step solves an implicit equation, it is that of the implicit function,
    evaluated at the solution that the root finder has found. It is therefore exact up to the
    tolerance of the root finder.

    An implicit-explicit method (`KenCarp3`, `KenCarp4`, `KenCarp5`, `Sil3`) treats the whole vector
    field implicitly: its explicit term is zero. Solvers that need several vector fields
    (`SemiImplicitEuler`) and those for stochastic equations are refused.

    A step whose implicit equation is not solved is rejected; a controller that cannot reject ends
    the trajectory with the status `nonfinite`, and a replay has nan from there on.

    !!! tip

        `VeryChord`, the default root finder of the `Kvaerno`, `KenCarp` and `Sil` methods, gives up
        unless it has converged after two iterations (Diffrax 0.7.2), and the controller then takes
        many small steps. With

        ```python
        root_finder = diffrax.with_stepsize_controller_tols(optimistix.Chord)()
        gs.FromDiffrax(diffrax.Kvaerno5(root_finder=root_finder))
        ```

        Robertson's problem takes 58 accepted and 2 rejected steps to t = 40 at `rtol=1e-8`, with
        the default 818 and 827; a `KenCarp` method may not arrive at all with the default.

    **Arguments:**

    - `solver`: the solver, such as `diffrax.Kvaerno5()`. Its options must be numbers, not traced
        arrays.
    - `rtol`, `atol`: the tolerances of the root finder of an implicit solver, in the root mean
        square norm. `None` takes those of the `PIDController` of the solve, as Diffrax does (the
        smallest over an ensemble whose trajectories have their own). Other controllers have none,
        so the two must then be given. A root finder with tolerances of its own, as in
        `diffrax.Kvaerno5(root_finder=diffrax.VeryChord(rtol=1e-10, atol=1e-12))`, keeps them. The
        tolerances are compiled into the program.

    **Raises:**

    `ValueError` for a solver that is not for ODEs, for tolerances that have no use or are not
    positive, and from `solve` if the tolerances are not known.

    ??? cite "Reference"

        Kidger (2021), *On Neural Differential Equations*, PhD thesis, University of Oxford.
    """

    carries_memo: ClassVar[bool] = True
    solver: diffrax.AbstractSolver = eqx.field(converter=_static_solver)
    rtol: Tolerance | None = eqx.field(converter=_static_number, default=None)
    atol: Tolerance | None = eqx.field(converter=_static_number, default=None)

    def __check_init__(self):
        _check_solver(self.solver)
        given = [name for name in ("rtol", "atol") if getattr(self, name) is not None]
        if given and not _taken_from_controller(self.solver):
            raise ValueError(
                f"`{given[0]}` of `FromDiffrax` is for root finders without tolerances of their "
                f"own; `{type(self.solver).__name__}` has no use for it. Leave it out."
            )
        for name in given:
            check_positive(name, getattr(self, name), zero_allowed=name == "atol")

    def with_tolerances(self, controller: AbstractController, per_lane: bool) -> "FromDiffrax":
        """The same integrator with the tolerances of its root finder filled in.

        **Arguments:**

        - `controller`: the controller of the solve, bound to the state.
        - `per_lane`: whether its arrays have a leading ensemble axis.

        **Raises:**

        `ValueError` if tolerances are wanted, and the controller has none or they are traced.
        """
        missing = [name for name in ("rtol", "atol") if getattr(self, name) is None]
        if not missing or not _taken_from_controller(self.solver):
            return self
        name = type(self.solver).__name__
        remedy = f"`FromDiffrax(diffrax.{name}(), rtol=1e-8, atol=1e-10)`"
        if not isinstance(controller, PIDController):
            raise ValueError(
                f"`diffrax.{name}` solves an implicit equation in every step, and "
                f"`{type(controller).__name__}` has no tolerances for it. Give them, as in "
                f"{remedy}."
            )
        found = {"rtol": self.rtol, "atol": self.atol}
        for key in missing:
            value = getattr(controller, key)
            if isinstance(value, Tracer):
                raise ValueError(
                    f"`{key}` of the controller is traced, but the root finder of `diffrax.{name}` "
                    "needs a tolerance that is known before tracing. Write it as numbers or as a "
                    f"NumPy array, or give the root finder its own, as in {remedy}."
                )
            value = np.asarray(value)
            if per_lane:
                value = value.min(axis=0)
            found[key] = tuple(map(float, value)) if value.ndim else float(value)
        return FromDiffrax(self.solver, **found)

    @property
    def order(self) -> int | None:
        return self.solver.order(_terms(self.solver, lambda t, y, args: y))

    @property
    def error_order(self) -> float | None:
        if not isinstance(self.solver, diffrax.AbstractAdaptiveSolver):
            return None
        order = self.solver.error_order(_terms(self.solver, lambda t, y, args: y))
        return None if order is None else float(order)

    @property
    def evaluations(self) -> int:
        # Diffrax scans over the stages, so the field is compiled a few times, whatever the solver.
        return 7

    def _lane_solver(self, field: EnsembleField) -> _LaneSolver:
        def vector_field(t: Array, y: Array, args: Any) -> Array:
            leaves, direction = args
            return field.one_lane(leaves, direction, t, y)

        return _LaneSolver(self._solver_with_tolerances(), vector_field)

    def _solver_with_tolerances(self) -> Any:
        chosen = {"rtol": self.rtol, "atol": self.atol, "norm": rms_norm}
        names = _taken_from_controller(self.solver)
        values = [
            jnp.asarray(chosen[name]) if isinstance(chosen[name], tuple) else chosen[name]
            for name in names
        ]
        where = lambda solver: [getattr(_innermost(solver).root_finder, name) for name in names]
        return eqx.tree_at(where, self.solver, values) if names else self.solver

    def _start(
        self,
        field: EnsembleField,
        leaves: Sequence[Leaf],
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
    ) -> Any:
        lane = self._lane_solver(field)
        start = lambda leaves, direction, *inputs: lane.start((leaves, direction), *inputs)
        axes = (_leaf_axes(field), 0, 0, 0, -1)
        return jax.vmap(start, in_axes=axes, out_axes=-1)(list(leaves), field.direction, t0, t1, y0)

    def _step(
        self,
        field: EnsembleField,
        leaves: Sequence[Leaf],
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        memo: Any,
    ) -> Step:
        lane = self._lane_solver(field)
        step = lambda leaves, direction, *inputs: lane.step((leaves, direction), *inputs)
        axes = (_leaf_axes(field), 0, 0, 0, -1, -1)
        return jax.vmap(step, in_axes=axes, out_axes=-1)(
            list(leaves), field.direction, t0, t1, y0, memo
        )

    def start(self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState) -> Any:
        return self._start(field, field.leaves, t0, t1, y0)

    def step(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, y0: LaneState, memo: Any
    ) -> Step:
        return self._step(field, field.leaves, t0, t1, y0, memo)

    def complete_dense(
        self, field: EnsembleField, t0: LaneTime, t1: LaneTime, step: Step, needed: Leaf
    ) -> Any:
        del field, t0, t1, needed
        return step.dense

    def interpolate(self, dense: Any, t0: LaneTime, t1: LaneTime, t: LaneTime) -> LaneState:
        def evaluate(dense: Any, t0: Array, t1: Array, t: Array) -> Array:
            return self.solver.interpolation_cls(t0=t0, t1=t1, **dense).evaluate(t)

        return jax.vmap(evaluate, in_axes=(-1, 0, 0, 0), out_axes=-1)(dense, t0, t1, t)

    def transpose(
        self,
        field: EnsembleField,
        wanted: Sequence[int],
        want_time: bool,
        with_outputs: bool,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        memo: Any,
    ) -> "_TransposedStep":
        return _TransposedStep(self, field, wanted, want_time, with_outputs, t0, t1, y0, memo)

    def pull_start(
        self,
        field: EnsembleField,
        wanted: Sequence[int],
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        ct_memo: Any,
    ) -> StepCotangents:
        def run(some: list[Leaf], t0: LaneTime, t1: LaneTime, y0: LaneState) -> Any:
            memo = self._start(field, _replace(field.leaves, wanted, some), t0, t1, y0)
            return eqx.filter(memo, eqx.is_inexact_array)

        _, pull = jax.vjp(run, [field.leaves[index] for index in wanted], t0, t1, y0)
        leaves, ct_t0, ct_t1, ct_y0 = pull(ct_memo)
        return StepCotangents(leaves, ct_t0, ct_t1, ct_y0, None)


def _leaf_axes(field: EnsembleField) -> list[int | None]:
    return [-1 if lane else None for lane in field.is_lane]


def _replace(leaves: Sequence[Leaf], wanted: Sequence[int], some: Sequence[Leaf]) -> list[Leaf]:
    every = list(leaves)
    for index, leaf in zip(wanted, some, strict=True):
        every[index] = leaf
    return every


class _TransposedStep(AbstractTransposedStep):
    r"""The VJP of Diffrax's step, by JAX, and of its interpolation.

    The step is the map $(\theta, t_0, t_1, y_0, m_0) \mapsto (y_1, m_1, d)$ with the solver state
    $m$ and the data $d$ of the interpolation. An output $y(t; t_0, t_1, d)$ inside the step with
    the cotangent $c$ leaves $\bar d \mathrel{+}= \partial_d y^T c$, and likewise for its three
    times; all of them enter the VJP of the step at once. An output at the end of the step is $y_1$
    itself, so it leaves nothing in $\bar d$. The interpolation depends on the times through
    $(t - t_0)/(t_1 - t_0)$ alone, and there as an output inside the step does.
    """

    def __init__(
        self,
        integrator: FromDiffrax,
        field: EnsembleField,
        wanted: Sequence[int],
        want_time: bool,
        with_outputs: bool,
        t0: LaneTime,
        t1: LaneTime,
        y0: LaneState,
        memo: Any,
    ) -> None:
        self._integrator = integrator
        self._want_time = want_time
        self._t0, self._t1 = t0, t1
        memo, constant = eqx.partition(memo, eqx.is_inexact_array)

        def run(some: list[Leaf], times: Any, y0: LaneState, memo: Any) -> Any:
            start, end = times if want_time else (t0, t1)
            leaves = _replace(field.leaves, wanted, some)
            step = integrator._step(field, leaves, start, end, y0, eqx.combine(memo, constant))
            dense = step.dense if with_outputs else None
            return (step.y1, *eqx.filter((step.memo, dense), eqx.is_inexact_array)), step

        some = [field.leaves[index] for index in wanted]
        times = (t0, t1) if want_time else None
        outputs, self._pull, step = jax.vjp(run, some, times, y0, memo, has_aux=True)
        self.step = step._replace(error=None)
        self._zero_dense = jtu.tree_map(jnp.zeros_like, outputs[2])

    def zero_outputs(self) -> OutputCotangents:
        zero = jnp.zeros_like(self._t0) if self._want_time else None
        return OutputCotangents(self._zero_dense, zero, zero)

    def pull_output(
        self, so_far: OutputCotangents, t: LaneTime, ct: LaneState, at_end: LaneFlag
    ) -> tuple[OutputCotangents, LaneTime]:
        dense, constant = eqx.partition(self.step.dense, eqx.is_inexact_array)

        def run(dense: Any, t0: LaneTime, t1: LaneTime, t: LaneTime) -> LaneState:
            return self._integrator.interpolate(eqx.combine(dense, constant), t0, t1, t)

        _, pull = jax.vjp(run, dense, self._t0, self._t1, t)
        ct_dense, ct_t0, ct_t1, ct_t = pull(ct)
        ct_dense = jtu.tree_map(
            lambda total, more: total + jnp.where(at_end, 0, more), so_far.dense, ct_dense
        )
        if not self._want_time:
            return OutputCotangents(ct_dense, None, None), ct_t
        return OutputCotangents(ct_dense, so_far.t0 + ct_t0, so_far.t1 + ct_t1), ct_t

    def pull(
        self, outputs: OutputCotangents | None, ct_y1: LaneState, ct_memo: PyTree
    ) -> StepCotangents:
        ct_dense = self._zero_dense if outputs is None else outputs.dense
        leaves, times, ct_y0, ct_memo = self._pull((ct_y1, ct_memo, ct_dense))
        if not self._want_time:
            return StepCotangents(leaves, None, None, ct_y0, ct_memo)
        ct_t0, ct_t1 = times
        if outputs is not None:
            ct_t0, ct_t1 = ct_t0 + outputs.t0, ct_t1 + outputs.t1
        return StepCotangents(leaves, ct_t0, ct_t1, ct_y0, ct_memo)
