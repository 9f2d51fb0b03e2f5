"""How many rows a mesh gets when the number of steps is not known beforehand."""

import collections
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._checks import is_concrete
from ._core import Request, SolveOutput, trim_mesh
from ._mesh import Mesh

# The first guess of a mesh's capacity takes about this much memory; it grows by this factor.
_FIRST_MESH_BYTES = 2**24
_GROWTH = 8
# Up to this size rows are not worth saving.
_SMALL_MESH_BYTES = 2**20

_capacity_hints: collections.OrderedDict[Request, int] = collections.OrderedDict()


def solve_growing(call: Any, request: Request) -> SolveOutput:
    """Runs with a small mesh first, again with a larger one if it was too small, then trims it.

    Compilation depends on the capacity, so capacities come from a short list. What sufficed for a
    request of the same static description last time is tried first.
    """
    itemsize = jnp.dtype(request.layout.dtype).itemsize
    first = _FIRST_MESH_BYTES // (request.lanes * itemsize)
    capacity = max(64, 1 << max(first, 1).bit_length() - 1)
    capacity = max(capacity, _capacity_hints.get(request, 0))
    while True:
        capacity = min(capacity, request.max_steps)
        sized = dataclasses.replace(request, capacity=capacity)
        out = call(sized)
        if not is_concrete(out):
            # The vector field closes over traced values: the size cannot depend on the result.
            return call(request)
        unfinished, steps, failed = np.asarray(out.summary)  # the only wait for the device
        if not unfinished:
            break
        if capacity == request.max_steps:
            # A mesh of `max_steps` rows is never too small: better no result than a wrong one.
            raise RuntimeError(
                f"The backend left trajectories unfinished in a mesh of {capacity} steps, which "
                "`max_steps` allows no more than. This is an error in gradsolve; "
                "`backend=gradsolve.XLA()` avoids it."
            )
        capacity *= _GROWTH
    _capacity_hints[request] = capacity
    _capacity_hints.move_to_end(request)
    while len(_capacity_hints) > 256:
        _capacity_hints.popitem(last=False)
    bytes_per_row = (request.layout.dim + 1) * request.lanes * itemsize
    rows = mesh_rows_for(int(steps), capacity, bytes_per_row)
    if rows < capacity + 1:
        out = out._replace(mesh=Mesh(trim_mesh(out.mesh.times, rows), out.mesh.num_steps))
    return out._replace(summary=np.array([unfinished, steps, failed]))


def mesh_rows_for(steps: int, capacity: int, bytes_per_row: int) -> int:
    """Rows of a mesh of so many steps: `2**k + 1` or `3 * 2**(k - 1) + 1`, at least 9.

    Compiled code depends on the number, hence few sizes; and a mesh of little memory keeps all its
    rows, so that a fit of a few trajectories never meets another size.
    """
    if (capacity + 1) * bytes_per_row <= _SMALL_MESH_BYTES:
        return capacity + 1
    size = 8
    while size < steps:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, capacity) + 1
