"""Launching a kernel from inside a computation of JAX."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback

from .._custom_types import Array
from .arguments import ArgumentList


class Handler(NamedTuple):
    """A compiled function that XLA calls to launch a kernel; see `csrc/launch.cpp`.

    `target` is its name, `kernel` the name of the kernel, and `numbers` are what it takes beside
    the kernel's arguments.
    """

    target: str
    kernel: str
    numbers: Mapping[str, int]


class AbstractKernel(abc.ABC):
    """Compiled code that can be launched.

    `repeatable`: whether a launch by Python does nothing but put work on a stream. XLA may then
    record it once, in a CUDA graph, and repeat the graph without calling Python again.
    """

    repeatable: ClassVar[bool] = True

    @abc.abstractmethod
    def handler(self, lanes: int, reduce: bool) -> Handler | None:
        """What launches the kernel; `None` where only Python can, by `launch`.

        `reduce` says that an adjoint has cotangents which all trajectories share.
        """

    def launch(
        self,
        context: Any,
        arguments: ArgumentList,
        buffers: Sequence[Any],
        lanes: int,
        reduce: bool,
    ) -> None:
        """Launches the kernel on the stream of a computation; outputs precede inputs."""
        raise NotImplementedError


def launch(
    kernel: AbstractKernel, arguments: ArgumentList, lanes: int, *, reduce: bool = False
) -> list[Array]:
    """Adds a launch to the computation being traced; returns the arrays that are written.

    No array is copied, and nothing waits for a device.
    """
    structs = tuple(jax.ShapeDtypeStruct(like.shape, like.dtype) for like in arguments.outputs)
    handler = kernel.handler(lanes, reduce)
    if handler is not None:
        call = jax.ffi.ffi_call(handler.target, structs)
        results = call(
            *arguments.inputs,
            kernel=handler.kernel,
            words=np.array(arguments.words, np.int64),
            slots=np.array([*arguments.output_slots, *arguments.input_slots], np.int64),
            **{name: np.int64(number) for name, number in handler.numbers.items()},
        )
        return list(results)

    def callback(context: Any, outputs: Sequence[Any], *inputs: Any) -> None:
        kernel.launch(context, arguments, (*outputs, *inputs), lanes, reduce)

    call = buffer_callback(callback, structs, command_buffer_compatible=kernel.repeatable)
    return list(call(*arguments.inputs))
