"""Launching a kernel from inside a computation of JAX: the only file that knows how."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
from jax.experimental.buffer_callback import buffer_callback

from .._custom_types import Array
from .arguments import ArgumentList, Packer


class AbstractKernel(abc.ABC):
    """Compiled code that can be launched.

    `repeatable`: whether launching does nothing but put work on a stream. XLA may then record the
    launch once, in a CUDA graph, and repeat the graph without calling Python again.
    """

    repeatable: ClassVar[bool]

    @abc.abstractmethod
    def addresses(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[int]:
        """Where the buffers lie."""

    @abc.abstractmethod
    def launch(self, context: Any, arguments: bytes, lanes: int, reduce: bool) -> None:
        """Runs the kernel, on the stream of the computation where there is one.

        `reduce` says that an adjoint has cotangents which all trajectories share.
        """


def launch(
    kernel: AbstractKernel, arguments: ArgumentList, lanes: int, *, reduce: bool = False
) -> list[Array]:
    """Adds a launch to the computation being traced; returns the arrays that are written.

    No array is copied, and nothing waits for a device.
    """
    pack = Packer(arguments)
    structs = tuple(jax.ShapeDtypeStruct(like.shape, like.dtype) for like in arguments.outputs)

    def callback(context: Any, outputs: Sequence[Any], *inputs: Any) -> None:
        kernel.launch(context, pack(kernel.addresses(outputs, inputs)), lanes, reduce)

    call = buffer_callback(callback, structs, command_buffer_compatible=kernel.repeatable)
    return list(call(*arguments.inputs))
