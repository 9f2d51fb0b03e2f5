"""The C++ text behind a solve, a replay or a gradient, for reading."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp

from ._adjoint import DiscreteAdjoint
from ._backends import CUDA, HostCPU, Question
from ._controllers import AbstractController
from ._core import Request, trace_program
from ._custom_types import ArrayLike, Float, PyTree, validates_input
from ._ensemble.program import Program
from ._fused.cuda import cuda_source
from ._fused.generate import AdjointChoices, adjoint_unit, record_unit, replay_unit
from ._fused.host import host_source
from ._fused.refusal import refusal
from ._fused.unit import Unit
from ._in_axes import InAxes
from ._integrators import AbstractIntegrator
from ._solve import _DEFAULT_ADJOINT, _DEFAULT_CONTROLLER, default_integrator, prepare
from ._solve_checks import check_choices
from ._system import ODESystem
from ._trajectory import names_in_wrt

_JOBS = ("record", "replay", "adjoint")
_DEFAULT_BACKEND = HostCPU()


@validates_input
def kernel_source(
    system: ODESystem,
    y0: PyTree,
    *,
    job: Literal["record", "replay", "adjoint"] = "record",
    ts: Float[ArrayLike, "*lanes_and_times"] | None = None,
    integrator: AbstractIntegrator | None = None,
    controller: AbstractController = _DEFAULT_CONTROLLER,
    dt0: Float[ArrayLike, "*#lanes"] | None = None,
    in_axes: InAxes | None = None,
    wrt: str | Sequence[str] = ("system", "y0"),
    adjoint: DiscreteAdjoint = _DEFAULT_ADJOINT,
    backend: HostCPU | CUDA = _DEFAULT_BACKEND,
) -> str:
    """The generated C++ text of one kernel: what a call with the same arguments compiles.

    Needs neither a compiler nor a GPU. The text depends on shapes and dtypes, on the static parts
    of the arguments and on which of them are given, not on the values of arrays nor on the size of
    the ensemble. It includes the headers in `gradsolve/csrc/gs`, which are the same for every
    system.

    **Arguments:**

    - `system`, `y0`, `ts`, `integrator`, `controller`, `dt0`, `in_axes`: as for `solve`.
    - `job`: `"record"` is what `solve` runs, `"replay"` what `Trajectory.replay` runs, and
        `"adjoint"` what `Trajectory.loss_grad` runs after it.
    - `wrt`: for the job `"adjoint"`, what is differentiated, as for `Trajectory.loss_grad`.
    - `adjoint`: as for `solve`. If it leaves `checkpoint_every` open, the text is the one for a
        mesh whose states all fit into `memory_limit`.
    - `backend`: `HostCPU()` or `CUDA()`.

    **Returns:**

    The complete translation unit.

    **Raises:**

    `ValueError` for wrong input, and for a problem that has no fused kernel, with the reason.
    """
    if job not in _JOBS:
        raise ValueError(f"`job` must be one of {', '.join(map(repr, _JOBS))}, got {job!r}.")
    if not isinstance(backend, HostCPU | CUDA):
        raise ValueError(
            "`backend` must be `gradsolve.HostCPU()` or `gradsolve.CUDA()`, the backends whose "
            f"kernels are generated, got {backend!r}."
        )
    names = names_in_wrt(wrt, ts is not None or job != "adjoint")
    integrator = default_integrator(system) if integrator is None else integrator
    check_choices(integrator, controller, adjoint, backend, dt0, max_steps=1)
    arguments = {
        "system": system,
        "y0": y0,
        "t0": 0.0,  # the text is the same for every window
        "t1": 1.0,
        "ts": ts,
        "dt0": dt0,
        "controller": controller,
    }
    _, arrays, layout, lanes = prepare(arguments, _without_window(in_axes))
    request = Request(layout, arrays.axes, lanes, adjoint, 1, 1)
    program, structs = trace_program(request, system, integrator, arrays.controller)
    platform = "gpu" if isinstance(backend, CUDA) else "cpu"
    problem = refusal(type(backend).__name__, Question(program, structs, platform, 1))
    if problem is not None:
        raise ValueError(problem)
    if job == "record":
        unit = record_unit(program, structs, ts is not None, dt0 is not None)
    else:
        # A replay knows its steps: it takes the leaves of the system, and none of the controller.
        program, structs = trace_program(request, system, integrator, None)
        if job == "replay":
            unit = replay_unit(program, structs, ts is not None)
        else:
            unit = _adjoint_unit(program, structs, names, ts is not None)
    return cuda_source(unit) if isinstance(backend, CUDA) else host_source(unit)


def _without_window(in_axes: Any) -> Any:
    """Axes without those of `t0` and `t1`, which are not given here and do not matter."""
    if not isinstance(in_axes, InAxes) or (in_axes.t0 is None and in_axes.t1 is None):
        return in_axes
    others = dataclasses.replace(in_axes, t0=None, t1=None)
    return None if others == InAxes() else others


def _adjoint_unit(
    program: Program, structs: Sequence[Any], names: Sequence[str], with_outputs: bool
) -> Unit:
    """The kernel of `loss_grad`: all parameters at once, cotangents of `ys` or of the end state."""
    parameters = range(program.field_jaxpr.num_parameters) if "system" in names else ()
    choices = AdjointChoices(
        wanted=tuple(i for i in parameters if jnp.issubdtype(structs[i].dtype, jnp.floating)),
        with_outputs=with_outputs,
        with_end=not with_outputs,
        with_times="t0" in names or "t1" in names,
        with_output_times="ts" in names,
        with_segments=(program.adjoint.checkpoint_every or 1) > 1,
    )
    return adjoint_unit(program, structs, choices)
