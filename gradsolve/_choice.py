"""Which backend runs a solve; found once per problem."""

import collections
from collections.abc import Hashable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.tree_util as jtu
from jax.core import Tracer

from ._backends import AbstractBackend, AbstractRunner, BackendReport, Question
from ._controllers import AbstractController
from ._core import Request, trace_program
from ._custom_types import PyTree
from ._integrators import AbstractIntegrator

_MAX_REMEMBERED = 256
_choices: collections.OrderedDict[Hashable, tuple[AbstractRunner, BackendReport]] = (
    collections.OrderedDict()
)


def choose_backend(
    backend: AbstractBackend,
    request: Request,
    system: PyTree,
    y0: PyTree,
    integrator: AbstractIntegrator,
    controller: AbstractController,
) -> tuple[AbstractRunner, BackendReport]:
    """What runs the problem, and why.

    To find out, the vector field and its derivative are traced and lowered, which takes some
    milliseconds; the answer is remembered by everything that it can depend on but the values of
    arrays.
    """
    platform, devices = _placement((system, y0))
    arrays, static = eqxi.hashable_partition((system, integrator, controller), eqx.is_array)
    structs = tuple((array.shape, str(array.dtype)) for array in jtu.tree_leaves(arrays))
    key = (backend, request, static, structs, platform, devices)
    known = _choices.get(key)
    if known is not None:
        _choices.move_to_end(key)
        return known
    program, leaves = trace_program(request, system, integrator, controller)
    choice = backend.choose(Question(program, leaves, platform, devices))
    _choices[key] = choice
    while len(_choices) > _MAX_REMEMBERED:
        _choices.popitem(last=False)
    return choice


def _placement(values: Any) -> tuple[str, int]:
    """The platform of the arrays, and over how many devices they are spread.

    Values being traced do not know; JAX's default is assumed then.
    """
    for leaf in jtu.tree_leaves(values):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            devices = leaf.devices()
            if len(devices) > 1 or leaf.committed:
                return next(iter(devices)).platform, len(devices)
    return jax.default_backend(), 1
