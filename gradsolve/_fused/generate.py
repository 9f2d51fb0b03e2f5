"""From a program to the translation unit of each job."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._ensemble.program import Program
from .._integrators import AbstractRosenbrock
from .._lowering import Function, LoweringError
from .functions import (
    lower_field,
    lower_jacobian,
    lower_pull,
    lower_pull_stage,
    lower_step_control,
)
from .unit import Unit
from .writer import Writer


@dataclasses.dataclass(frozen=True)
class AdjointChoices:
    """What an adjoint kernel is asked for, beside the field."""

    wanted: tuple[int, ...]
    with_outputs: bool
    with_end: bool
    with_times: bool
    with_output_times: bool
    with_segments: bool


def record_unit(
    program: Program, structs: Sequence[Any], with_outputs: bool, with_dt0: bool
) -> Unit:
    """The adaptive recording."""
    field = lower_field(program, structs)
    control = lower_step_control(program, structs, with_dt0)
    jacobian = _jacobian(program, structs)
    functions = [field, *jacobian, control.begin, control.judge]
    writer = Writer("record", program, structs, functions)
    writer.field(field)
    writer.jacobian(jacobian)
    writer.step_control(control)
    flags = {"with_outputs": with_outputs, "with_dt0": with_dt0}
    return writer.unit(flags)


def replay_unit(program: Program, structs: Sequence[Any], with_outputs: bool) -> Unit:
    """The replay of a mesh."""
    field = lower_field(program, structs)
    jacobian = _jacobian(program, structs)
    writer = Writer("replay", program, structs, [field, *jacobian])
    writer.field(field)
    writer.jacobian(jacobian)
    return writer.unit({"with_outputs": with_outputs})


def adjoint_unit(program: Program, structs: Sequence[Any], choices: AdjointChoices) -> Unit:
    """The adjoint of a replay."""
    for index in choices.wanted:
        if np.dtype(structs[index].dtype) != np.dtype(program.dtype):
            raise LoweringError(
                f"The leaf `{program.leaf_names[index]}` is {structs[index].dtype} and the state "
                f"is {program.dtype}: a fused adjoint needs one precision. Convert the leaf, or "
                "use `XLA()`."
            )
    field = lower_field(program, structs)
    with_times = choices.with_times or choices.with_output_times
    jacobian = _jacobian(program, structs)
    lower = lower_pull_stage if jacobian else lower_pull
    pull = lower(program, structs, choices.wanted, with_times)
    writer = Writer("adjoint", program, structs, [field, *jacobian, pull])
    writer.field(field)
    writer.jacobian(jacobian)
    writer.pull(pull, [structs[index] for index in choices.wanted], with_times)
    flags = {
        "with_outputs": choices.with_outputs,
        "with_end": choices.with_end,
        "with_times": with_times,
        "with_output_times": choices.with_output_times,
        "with_segments": choices.with_segments,
    }
    return writer.unit(flags)


def _jacobian(program: Program, structs: Sequence[Any]) -> list[Function]:
    """The derivatives of the field, for a method that needs them."""
    rosenbrock = isinstance(program.integrator, AbstractRosenbrock)
    return [lower_jacobian(program, structs)] if rosenbrock else []
