"""The three jobs of a fused backend: arrays in, one launch, arrays out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._adjoint import DiscreteAdjoint
from .._custom_types import Leaf
from .._ensemble.batching import MadeBefore
from .._ensemble.program import Program
from .._xla.adjoint import AdjointInputs, Cotangents, Wanted
from .._xla.checkpoints import checkpoint_count, checkpoint_spacing
from .._xla.record import Recording, RecordInputs
from .._xla.replay import Replayed, ReplayInputs
from .arguments import ArgumentList
from .generate import AdjointChoices, adjoint_unit, record_unit, replay_unit
from .launch import AbstractKernel, launch
from .unit import Unit

Compile = Callable[[Unit], AbstractKernel]


class SavedStates(NamedTuple):
    """The checkpoints of a kernel, and where they lie: see `csrc/gs/arguments.h`.

    - `states`: `[rows][dim][ensemble]`.
    - `taken`, `num_rejected`: of a recording. If it stored every state, each is in the row of its
        attempt; otherwise `taken` has no rows. That depends on the number of trajectories, which
        grows when `jax.vmap` makes a batch; the structure must not, so this is no `None`.
    - `order`: of a replay whose backend sorts trajectories, `[ensemble]`: how far from each column
        its trajectory lies. It is there for ensembles of any size, for the same reason.
    """

    states: Leaf
    taken: Leaf | None = None
    num_rejected: Leaf | None = None
    order: Leaf | None = None


def _structs(leaves: Sequence[Leaf], is_lane: Sequence[bool]) -> list[jax.ShapeDtypeStruct]:
    """The leaves of one trajectory."""
    return [
        jax.ShapeDtypeStruct(leaf.shape[:-1] if lane else leaf.shape, leaf.dtype)
        for leaf, lane in zip(leaves, is_lane, strict=True)
    ]


def _array(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _checkpoints(
    options: DiscreteAdjoint, store: bool, rows: int, dim: int, lanes: int, dtype: Any
) -> tuple[jax.ShapeDtypeStruct | None, int]:
    """Room for the states along a mesh of `rows` steps, and the steps between two of them."""
    if not store:
        return None, 1
    per_row = dim * lanes * np.dtype(dtype).itemsize
    count, every = checkpoint_count(rows, per_row, options)
    return _array((count, dim, lanes), dtype), every


def record(
    program: Program,
    compile_unit: Compile,
    store_checkpoints: bool,
    is_lane: tuple[bool, ...],
    leaves: list[Leaf],
    inputs: RecordInputs,
) -> tuple[Recording, None, list[Leaf | None]]:
    """Solves adaptively and records the accepted times."""
    dim, lanes = inputs.y0.shape
    dtype, capacity = inputs.y0.dtype, program.capacity
    outputs = 0 if inputs.ts is None else inputs.ts.shape[0]
    unit = record_unit(
        program, _structs(leaves, is_lane), inputs.ts is not None, inputs.dt0 is not None
    )
    checkpoints, every = _checkpoints(
        program.adjoint, store_checkpoints, capacity, dim, lanes, dtype
    )
    counts = _array((lanes,), jnp.int32)
    arguments = ArgumentList()
    for count in (lanes, program.max_steps, capacity, outputs, every):
        arguments.count(count)
    arguments.read(inputs.y0.T)
    for times in (inputs.t0, inputs.t1, inputs.ts, inputs.dt0):
        arguments.times(times, lanes)
    arguments.write(_array((lanes, dim), dtype))
    arguments.write(None if inputs.ts is None else _array((outputs, dim, lanes), dtype))
    arguments.write(_array((capacity + 1, lanes), dtype))
    # States in the rows of attempts, and which of those were accepted: see csrc/gs/attempts.h.
    taken = None
    if checkpoints is not None and every == 1:
        taken = _array((-(-capacity // 32), lanes), jnp.uint32)
    for like in (counts, counts, counts, _array((lanes,), jnp.bool_), checkpoints, taken):
        arguments.write(like)
    arguments.leaves(leaves, is_lane)
    results = iter(launch(compile_unit(unit), arguments, lanes))
    y1 = next(results).T
    ys = None if inputs.ts is None else next(results)
    times, accepted, rejected, status, unfinished = (next(results) for _ in range(5))
    states = None if checkpoints is None else next(results)
    saved = None
    if states is not None:
        taken = jnp.zeros((0, lanes), jnp.uint32) if taken is None else next(results)
        saved = SavedStates(states, taken=taken, num_rejected=rejected)
    recording = Recording(y1, ys, times, accepted, rejected, status, unfinished, saved)
    return recording, None, [None] * len(leaves)


def replay(
    program: Program,
    compile_unit: Compile,
    sorts: bool,
    store_checkpoints: bool,
    ensemble: int,
    is_lane: tuple[bool, ...],
    leaves: list[Leaf],
    inputs: ReplayInputs,
) -> tuple[Replayed, None, list[Leaf | None]]:
    """Takes the recorded steps.

    A backend that `sorts` trajectories says in which order their checkpoints lie.
    """
    dim, lanes = inputs.y0.shape
    dtype = inputs.y0.dtype
    outputs = 0 if inputs.ts is None else inputs.ts.shape[0]
    unit = replay_unit(program, _structs(leaves, is_lane), inputs.ts is not None)
    checkpoints, every = _checkpoints(
        program.adjoint, store_checkpoints, inputs.times.shape[0] - 1, dim, lanes, dtype
    )
    order = _array((lanes,), jnp.int32) if sorts and checkpoints is not None else None
    arguments = ArgumentList()
    for count in (lanes, ensemble, outputs, every):
        arguments.count(count)
    arguments.read(inputs.y0.T)
    for times in (inputs.t0, inputs.t1, inputs.ts):
        arguments.times(times, lanes)
    for array in (inputs.times, inputs.num_steps, inputs.status):
        arguments.read(array)
    arguments.write(_array((lanes, dim), dtype))
    arguments.write(None if inputs.ts is None else _array((outputs, dim, lanes), dtype))
    arguments.write(checkpoints)
    arguments.write(order)
    arguments.leaves(leaves, is_lane)
    results = iter(launch(compile_unit(unit), arguments, lanes))
    y1 = next(results).T
    ys = None if inputs.ts is None else next(results)
    saved = None
    if checkpoints is not None:
        saved = SavedStates(next(results), order=None if order is None else next(results))
    return Replayed(y1, ys, saved), None, [None] * len(leaves)


def adjoint(
    program: Program,
    compile_unit: Compile,
    group_size: Callable[[int], int],
    wanted: Wanted,
    is_lane: tuple[bool, ...],
    leaves: list[Leaf],
    inputs: AdjointInputs,
) -> tuple[Cotangents, None, list[Leaf | None]]:
    """Pulls the cotangents of the outputs back to the inputs."""
    dim, lanes = inputs.y0.shape
    dtype = inputs.y0.dtype
    with_outputs = inputs.ts is not None and inputs.ct_ys is not None
    outputs = inputs.ts.shape[0] if with_outputs and inputs.ts is not None else 0
    saved: SavedStates = inputs.checkpoints.value
    states = MadeBefore(saved.states, inputs.checkpoints.lanes)
    every = checkpoint_spacing(states, inputs.times.shape[0] - 1, program.adjoint)
    choices = AdjointChoices(
        wanted=wanted.leaves,
        with_outputs=with_outputs,
        with_end=inputs.ct_y1 is not None,
        with_times=wanted.t0 or wanted.t1,
        with_output_times=wanted.ts and with_outputs,
        with_segments=every > 1,
    )
    unit = adjoint_unit(program, _structs(leaves, is_lane), choices)
    groups = -(-lanes // group_size(lanes))
    lane_array = _array((lanes,), dtype)
    cotangents = [(lane_array if want else None) for want in (wanted.t0, wanted.t1)]
    ct_ts = _array((outputs, lanes), dtype) if choices.with_output_times else None
    segment = _array((every, dim, lanes), dtype) if every > 1 else None
    ct_leaves = [_array(leaves[index].shape, leaves[index].dtype) for index in wanted.leaves]
    wanted_is_lane = [is_lane[index] for index in wanted.leaves]

    arguments = ArgumentList()
    for count in (lanes, outputs, every):
        arguments.count(count)
    for times in (inputs.t0, inputs.t1, inputs.ts if with_outputs else None):
        arguments.times(times, lanes)
    by_attempts = saved.taken is not None and saved.taken.shape[0] > 0
    saved = saved if by_attempts else saved._replace(taken=None)
    for array in (inputs.times, inputs.num_steps, inputs.status, *saved):
        arguments.read(array)
    arguments.read(None if inputs.ct_y1 is None else inputs.ct_y1.T)
    arguments.read(inputs.ct_ys if with_outputs else None)
    arguments.write(_array((lanes, dim), dtype) if wanted.y0 else None)
    for like in (*cotangents, ct_ts, segment):
        arguments.write(like)
    arguments.write(_array((groups, max(unit.entries, 1)), dtype))
    arguments.leaves(leaves, is_lane)
    arguments.leaf_cotangents(ct_leaves, wanted_is_lane)
    reduce = unit.entries > 0 and not all(wanted_is_lane)
    results = iter(launch(compile_unit(unit), arguments, lanes, reduce=reduce))
    take = lambda present: next(results) if present else None
    ct_y0, ct_t0, ct_t1 = take(wanted.y0), take(wanted.t0), take(wanted.t1)
    ct_output_times = take(ct_ts)
    for scratch in (segment, True):
        take(scratch)
    if wanted.ts and inputs.ts is not None and ct_output_times is None:
        ct_output_times = jnp.zeros((inputs.ts.shape[0], lanes), dtype)
    leaf_cotangents: list[Leaf | None] = [None] * len(leaves)
    for index in wanted.leaves:
        leaf_cotangents[index] = next(results)
    ct_y0 = None if ct_y0 is None else ct_y0.T
    return Cotangents(ct_y0, ct_t0, ct_t1, ct_output_times), None, leaf_cotangents
