"""Which problems have no fused kernel, and the sentence that says so."""

import numpy as np

from .._backends._base import Question
from .._integrators import AbstractExplicitRK, AbstractRosenbrock
from .._lowering import LoweringError
from .functions import (
    lower_field,
    lower_jacobian,
    lower_pull,
    lower_pull_stage,
    lower_step_control,
)

# A kernel's arguments must fit into 4 KiB on a GPU; a leaf takes 16 bytes, and so does its
# cotangent.
_MAX_LEAVES = 112


# `Auto` leaves larger fields to plain JAX: 2500 operations written out (a network whose products
# were not loops yet) took minutes to compile, and 91 ms where plain JAX took 40 ms, on a busy
# 2-core CPU with 128 trajectories. Lorenz-96 with 128 states has four operations per state and
# gains, and so does a network 4-32-32-4, whose matrix products are loops and count as what goes in
# and out of them. Nothing in between has been measured.
_WORTHWHILE_OPERATIONS = 1500


def refusal(name: str, question: Question, *, worthwhile: bool = False) -> str | None:
    """Why the backend `name` has no kernels for a problem; `None` if it has.

    With `worthwhile`, also why kernels would gain nothing, for a field that could be lowered.
    """
    program, structs = question.program, question.structs
    if not isinstance(program.integrator, AbstractExplicitRK | AbstractRosenbrock):
        integrator = type(program.integrator).__name__
        return (
            f"`{name}` runs explicit Runge-Kutta and Rosenbrock methods, and `{integrator}` is "
            "none of them: use `backend=gradsolve.XLA()` or `gradsolve.Auto()`."
        )
    if len(structs) > _MAX_LEAVES:
        return (
            f"The system has {len(structs)} parameter arrays, and a kernel of `{name}` takes "
            f"{_MAX_LEAVES}: put some of them together, or use `backend=gradsolve.XLA()`."
        )
    try:
        operations = lower_field(program, structs).operations
        counted, jacobians = "The vector field has", []
        if isinstance(program.integrator, AbstractRosenbrock):
            jacobians.append(lower_jacobian(program, structs))
            operations += jacobians[0].operations
            counted = "The vector field and its Jacobian have"
        if worthwhile and operations > _WORTHWHILE_OPERATIONS:
            return (
                f"{counted} {operations} scalar operations, more than "
                f"{_WORTHWHILE_OPERATIONS}: plain JAX is compiled much faster then. `HostCPU()` "
                "and `CUDA()` run it if they are asked for."
            )
        # The controller is asked for a first step: it is then the larger of the two kernels.
        lower_step_control(program, structs, with_dt0=False)
        floating = [
            index
            for index, struct in enumerate(structs[: program.num_field_leaves])
            if np.dtype(struct.dtype) == np.dtype(program.dtype)
        ]
        lower = lower_pull_stage if jacobians else lower_pull
        lower(program, structs, floating, want_time=True)
    except LoweringError as error:
        return f"{error} Use `backend=gradsolve.XLA()`, or another formulation."
    return None
