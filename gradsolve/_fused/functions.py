"""The functions of a problem, traced and lowered: field, pullback, step control."""

import dataclasses
import functools as ft
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .. import _step_control
from .._controllers import Window
from .._custom_types import Array
from .._ensemble.program import Program
from .._ensemble.promotion import own_promotion
from .._lowering import Function, Leaf, lower


@dataclasses.dataclass(frozen=True)
class StateEntry:
    """One scalar of the controller's state."""

    name: str
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class StepControl:
    """The step size controller, lowered. Outputs are those of `_step_control`, then the state."""

    begin: Function
    judge: Function
    state: tuple[StateEntry, ...]


def leaf_inputs(structs: Sequence[jax.ShapeDtypeStruct]) -> list[Leaf]:
    """The leaves of a program as inputs of lowered functions."""
    return [
        Leaf(index, struct.shape, np.dtype(struct.dtype)) for index, struct in enumerate(structs)
    ]


def lower_field(program: Program, structs: Sequence[jax.ShapeDtypeStruct]) -> Function:
    """`field(leaves, t, y) -> dy`."""
    field, count = program.field_jaxpr, program.num_field_leaves
    leaves = leaf_inputs(structs[:count])
    parameters, constants = leaves[: field.num_parameters], leaves[field.num_parameters :]
    return lower(field.jaxpr, [*constants, *parameters, "t", "y"], structural_zeros=False)


def _with(leaves: Sequence[Array], places: Sequence[int], others: Sequence[Array]) -> list[Array]:
    """The leaves, with others in some places: what the cotangents of those are taken by."""
    every = list(leaves)
    for place, leaf in zip(places, others, strict=True):
        every[place] = leaf
    return every


def lower_pull(
    program: Program,
    structs: Sequence[jax.ShapeDtypeStruct],
    wanted: Sequence[int],
    want_time: bool,
) -> Function:
    """`pull(leaves, t, y, ct) -> (ct_y, ct_t, *ct_wanted)`; without `ct_t` unless asked for."""
    field, count = program.field_jaxpr, program.num_field_leaves
    dtype = np.dtype(program.dtype)

    def pull(leaves: list[Array], t: Array, y: Array, ct: Array) -> list[Array]:
        some = [leaves[index] for index in wanted]
        if want_time:
            _, pullback = jax.vjp(
                lambda y, t, some: field(_with(leaves, wanted, some), t, y), y, t, some
            )
            ct_y, ct_t, ct_some = pullback(ct)
            return [ct_y, ct_t, *ct_some]
        _, pullback = jax.vjp(lambda y, some: field(_with(leaves, wanted, some), t, y), y, some)
        ct_y, ct_some = pullback(ct)
        return [ct_y, *ct_some]

    scalar = jax.ShapeDtypeStruct((), dtype)
    state = jax.ShapeDtypeStruct((field.dim,), dtype)
    with own_promotion():
        closed = jax.make_jaxpr(pull)(list(structs[:count]), scalar, state, state)
    return _lower_closed(closed, [*leaf_inputs(structs[:count]), "t", "y", "ct"])


def _derivatives(field: Any, leaves: Sequence[Any], t: Any, y: Any) -> list[Any]:
    """The field's derivatives by the state and, where time appears in it, by time."""
    out = [jax.jacfwd(lambda y: field(leaves, t, y))(y)]
    if field.has_time:
        out.append(jax.jacfwd(lambda t: field(leaves, t, y))(t))
    return out


def lower_jacobian(program: Program, structs: Sequence[jax.ShapeDtypeStruct]) -> Function:
    """`jacobian(leaves, t, y) -> (df/dy, df/dt)`; without the latter if time does not appear."""
    field, count = program.field_jaxpr, program.num_field_leaves
    dtype = np.dtype(program.dtype)
    scalar = jax.ShapeDtypeStruct((), dtype)
    state = jax.ShapeDtypeStruct((field.dim,), dtype)
    with own_promotion():
        closed = jax.make_jaxpr(ft.partial(_derivatives, field))(
            list(structs[:count]), scalar, state
        )
    return _lower_closed(closed, [*leaf_inputs(structs[:count]), "t", "y"])


def nonzero_entries(jacobian: Function) -> np.ndarray:
    """Which entries of a lowered Jacobian are not zero whatever the state."""
    entries = jacobian.outputs[0]
    flags = [not (value.is_constant and value.data == 0) for value in entries.flat]
    return np.array(flags, dtype=bool).reshape(entries.shape)


def lower_pull_stage(
    program: Program,
    structs: Sequence[jax.ShapeDtypeStruct],
    wanted: Sequence[int],
    want_time: bool,
) -> Function:
    """The pullback of what a stage of a Rosenbrock method adds to a sum over earlier stages.

    That is `f(t, y) + h (df/dy k + df/dt d)` with the derivatives at `(t0, y0)`.
    `pull_stage(leaves, t, y, t0, y0, h, d, k, ct) -> (ct_y, ct_y0, ct_t, ct_t0, ct_h, *ct_wanted)`;
    without cotangents of times unless asked for.
    """
    field, count = program.field_jaxpr, program.num_field_leaves
    dtype = np.dtype(program.dtype)

    def pull(
        leaves: list[Array],
        t: Array,
        y: Array,
        t0: Array,
        y0: Array,
        h: Array,
        d: Array,
        k: Array,
        ct: Array,
    ) -> list[Array]:
        def add(
            states: tuple[Array, Array], times: tuple[Array, Array, Array], some: list[Array]
        ) -> Array:
            (y, y0), (t, t0, h) = states, times
            by = ft.partial(field, _with(leaves, wanted, some))
            # Times h before the derivative is taken: then `ct` alone goes back through both.
            if field.has_time:
                tangent = jax.jvp(by, (t0, y0), (h * d, h * k))[1]
            else:
                tangent = jax.jvp(ft.partial(by, t0), (y0,), (h * k,))[1]
            return by(t, y) + tangent

        states, times, some = (y, y0), (t, t0, h), [leaves[index] for index in wanted]
        if want_time:
            _, pullback = jax.vjp(add, states, times, some)
            ct_states, ct_times, ct_some = pullback(ct)
            return [*ct_states, *ct_times, *ct_some]
        _, pullback = jax.vjp(lambda states, some: add(states, times, some), states, some)
        ct_states, ct_some = pullback(ct)
        return [*ct_states, *ct_some]

    scalar = jax.ShapeDtypeStruct((), dtype)
    state = jax.ShapeDtypeStruct((field.dim,), dtype)
    arguments = (scalar, state, scalar, state, scalar, scalar, state, state)
    with own_promotion():
        closed = jax.make_jaxpr(pull)(list(structs[:count]), *arguments)
    names = ["t", "y", "t0", "y0", "h", "d", "k", "ct"]
    return _lower_closed(closed, [*leaf_inputs(structs[:count]), *names])


def lower_step_control(
    program: Program, structs: Sequence[jax.ShapeDtypeStruct], with_dt0: bool
) -> StepControl:
    """The beginning of a recording and the judgement of a step, for one trajectory."""
    dtype = np.dtype(program.dtype)
    scalar = jax.ShapeDtypeStruct((), dtype)
    state = jax.ShapeDtypeStruct((program.field_jaxpr.dim,), dtype)
    not_lanes = [False] * len(structs)
    error_order = program.integrator.error_order

    # The functions work on all lanes at once; here there is one.
    def begin(
        leaves: list[Array], direction: Array, t0: Array, t1: Array, dt0: Array, y: Array, f0: Array
    ) -> Any:
        def field(t: Array, y: Array) -> Array:
            own = leaves[: program.num_field_leaves]
            return (direction * program.field_jaxpr(own, direction * t[0], y[:, 0]))[:, None]

        return _step_control.begin(
            program.controller(leaves, not_lanes),
            field,
            error_order,
            Window(t0[None], t1[None]),
            dt0[None] if with_dt0 else None,
            y[:, None],
            f0[:, None],
        )

    arguments = (list(structs), scalar, scalar, scalar, scalar, state, state)
    with own_promotion():
        closed, out = jax.make_jaxpr(begin, return_shape=True)(*arguments)
    inputs = leaf_inputs(structs)
    names = ["direction", "t0", "t1", "dt0", "y", "f0"]
    begin_function = _lower_closed(closed, [*inputs, *names], structural_zeros=False)
    controller_leaves, treedef = jtu.tree_flatten(out.controller)
    entries = _state_entries(out.controller)

    def judge(leaves: list[Array], t0: Array, t1: Array, floor: Array, *rest: Any) -> Any:
        t, t_next, y, y1, error, *state = rest
        memory = [
            jnp.asarray(entry).reshape(struct.shape)
            for entry, struct in zip(
                _regroup(state, controller_leaves), controller_leaves, strict=True
            )
        ]
        return _step_control.judge(
            program.controller(leaves, not_lanes),
            error_order,
            Window(t0[None], t1[None]),
            floor[None],
            t[None],
            t_next[None],
            y[:, None],
            y1[:, None],
            error[:, None] if error_order is not None else None,
            None,
            jtu.tree_unflatten(treedef, memory),
        )

    times = [scalar] * 5
    memory = [jax.ShapeDtypeStruct((), entry.dtype) for entry in entries]
    with own_promotion():
        closed = jax.make_jaxpr(judge)(list(structs), *times, state, state, state, *memory)
    names = ["t0", "t1", "floor", "t", "t_next", "y", "y1", "error"]
    names += [f"state.{entry.name}" for entry in entries]
    return StepControl(begin_function, _lower_closed(closed, [*inputs, *names]), entries)


def _state_entries(state: Any) -> tuple[StateEntry, ...]:
    entries = []
    for path, leaf in jtu.tree_leaves_with_path(state):
        name = identifier(jtu.keystr(path)) or "state"
        if leaf.size == 1:
            entries.append(StateEntry(name, np.dtype(leaf.dtype)))
        else:
            entries += [StateEntry(f"{name}_{i}", np.dtype(leaf.dtype)) for i in range(leaf.size)]
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        entries = [StateEntry(f"{e.name}_{i}", e.dtype) for i, e in enumerate(entries)]
    return tuple(entries)


def _regroup(scalars: Sequence[Array], structs: Sequence[Any]) -> list[Array]:
    """Scalars put back together to one array per leaf."""
    out, start = [], 0
    for struct in structs:
        out.append(jnp.stack(list(scalars[start : start + struct.size])))
        start += struct.size
    return out


def _lower_closed(closed: Any, inputs: Sequence[Any], structural_zeros: bool = True) -> Function:
    """Lowers what `jax.make_jaxpr` returns; its constants, if any, are known arrays."""
    constants = [np.asarray(const) for const in closed.consts]
    return lower(closed.jaxpr, [*constants, *inputs], structural_zeros=structural_zeros)


_KEYWORDS = """
    alignas alignof and asm auto bool break case catch char class const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto if inline
    int lanes leaves long mutable namespace new noexcept not operator or private protected public
    register return select short signed sizeof static struct switch template this throw true try
    typedef typename union unsigned using virtual void volatile while xor
"""


def identifier(text: str) -> str:
    """A C++ identifier that resembles the text."""
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in text).strip("_")
    while "__" in name:
        name = name.replace("__", "_")
    if name[:1].isdigit():
        name = f"n{name}"
    return f"{name}_" if name in _KEYWORDS.split() else name
