"""Wrong input gives one sentence that names the value and the remedy, before any computation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ._custom_types import Array, ArrayLike, PyTree
from ._ensemble.layout import StateLayout
from ._mesh import Mesh
from ._system import ODESystem, is_parameter


def is_concrete(tree: PyTree) -> bool:
    """Whether no leaf is a traced value."""
    return not any(isinstance(leaf, Tracer) for leaf in jtu.tree_leaves(tree))


def _name(path: Any, root: str) -> str:
    return f"`{root}{jtu.keystr(path)}`"


def state_layout(y0: PyTree, axes: tuple[int | None, ...]) -> StateLayout:
    """The layout of one trajectory's state.

    **Raises:**

    `ValueError` if the state is empty, not of floating-point type, or of mixed dtypes.
    """
    with_paths, treedef = jtu.tree_flatten_with_path(y0)
    if not with_paths:
        raise ValueError(f"`y0` has no arrays (got {y0!r}); a state needs at least one number.")
    dtypes = {}
    shapes = []
    for (path, leaf), axis in zip(with_paths, axes, strict=True):
        name = _name(path, "y0")
        if not eqx.is_array_like(leaf):
            raise ValueError(f"{name} must be a floating-point array, got {leaf!r}.")
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"{name} has dtype {dtype}; a state must be float32 or float64. Write for example "
                "`jnp.array([1.0, 2.0])`, with decimal points."
            )
        if dtype not in (jnp.float32, jnp.float64):
            raise ValueError(
                f"{name} has dtype {dtype}; convert it with `.astype(jnp.float32)` or float64."
            )
        dtypes[name] = dtype
        shape = jnp.shape(leaf)
        shapes.append(shape if axis is None else (*shape[:axis], *shape[axis + 1 :]))
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items())
        raise ValueError(f"The state mixes dtypes: {listed}. Convert all of `y0` to one of them.")
    layout = StateLayout(treedef, tuple(shapes), next(iter(dtypes.values())))
    if layout.dim == 0:
        raise ValueError(f"`y0` has no components (shapes {shapes}).")
    return layout


def check_system(system: Any, layout: StateLayout) -> None:
    """Raises unless `system` is an `ODESystem` whose parameters have the dtype of the state."""
    if not isinstance(system, ODESystem):
        raise ValueError(
            f"`system` must be an instance of a subclass of `gradsolve.ODESystem`, got {system!r}."
        )
    for path, leaf in jtu.tree_flatten_with_path(system)[0]:
        if is_parameter(leaf) and jnp.result_type(leaf) != layout.dtype:
            raise ValueError(
                f"{_name(path, 'system')} is {jnp.result_type(leaf)} but the state is "
                f"{jnp.dtype(layout.dtype)}: mixed dtypes are not promoted. Convert one of them "
                "with `.astype`."
            )


def check_field_output(layout: StateLayout, dy: PyTree) -> None:
    """Raises unless `vector_field` returned the structure, shapes and dtype of the state."""
    treedef = jtu.tree_structure(dy)
    if treedef != layout.treedef:
        raise ValueError(
            f"`vector_field` must return the structure of the state: expected {layout.treedef}, "
            f"got {treedef}."
        )
    shapes = tuple(jnp.shape(leaf) for leaf in jtu.tree_leaves(dy))
    if shapes != layout.shapes:
        raise ValueError(
            f"`vector_field` must return the shapes of the state: expected "
            f"{list(layout.shapes)}, got {list(shapes)}. For several components use `jnp.stack`."
        )
    for leaf in jtu.tree_leaves(dy):
        dtype = jnp.result_type(leaf)
        if dtype != layout.dtype and not getattr(leaf, "weak_type", isinstance(leaf, int | float)):
            raise ValueError(
                f"`vector_field` must return the dtype of the state: expected "
                f"{jnp.dtype(layout.dtype)}, got {dtype}. An array of another dtype (a constant, a "
                "table) takes part in the computation; convert it with `.astype(y.dtype)`."
            )


@jax.jit
def _facts(t0: Array, t1: Array, ts: Array | None, states: list[ArrayLike]) -> Array:
    """Flags for everything that is checked by value, in one array: a device is asked once."""
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in states]
    times = jnp.all(jnp.isfinite(t0)) & jnp.all(jnp.isfinite(t1))
    if ts is None:
        return jnp.stack([times, *3 * [jnp.array(True)], *finite])
    ts = ts[:, None] if ts.ndim == 1 else ts.T
    direction = jnp.where(t1 < t0, -1, 1)
    padded = jnp.isinf(ts)
    forward = jnp.where(padded, jnp.inf, direction * ts)
    steps = forward[1:] < forward[:-1]
    outside = ~padded & ((forward < direction * t0) | (forward > direction * t1))
    in_range = ~jnp.any(outside)
    return jnp.stack([times, ~jnp.any(jnp.isnan(ts)), ~jnp.any(steps), in_range, *finite])


def check_values(
    t0: ArrayLike,
    t1: ArrayLike,
    ts: ArrayLike | None,
    system: PyTree,
    y0: PyTree,
    *,
    check_states: bool,
) -> None:
    """Raises for times out of order or range and, if asked, for non-finite states or parameters.

    `t0`, `t1` are scalars or one per trajectory; `ts` is `(times,)` or `(n, times)`.
    Traced values are not checked.
    """
    named = []
    if check_states:
        for root, tree in (("y0", y0), ("system", system)):
            for path, leaf in jtu.tree_flatten_with_path(tree)[0]:
                if eqx.is_array_like(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                    named.append((_name(path, root), leaf))
        named = [(name, leaf) for name, leaf in named if is_concrete(leaf)]
    if not is_concrete((t0, t1, ts)):
        ts = None
        t0 = t1 = np.zeros((), np.float32)
    with jax.ensure_compile_time_eval():
        facts = jax.device_get(_facts(t0, t1, ts, [leaf for _, leaf in named]))
    times, no_nan, in_order, in_range, *finite = facts
    if not times:
        raise ValueError(f"`t0` and `t1` must be finite, got t0={t0} and t1={t1}.")
    if not no_nan:
        raise ValueError(f"`ts` contains nan: {ts}. Pad ragged output times with inf.")
    if not in_order:
        raise ValueError(
            f"`ts` must be sorted from `t0` to `t1`, with any `inf` padding at the end, got "
            f"{_excerpt(ts)}. Sort it with `jnp.sort`."
        )
    if not in_range:
        raise ValueError(
            f"`ts` must lie within [t0, t1]: got {_excerpt(ts)} for t0={_excerpt(t0)} and "
            f"t1={_excerpt(t1)}. Extend the interval, or drop those times."
        )
    for (name, leaf), flag in zip(named, finite, strict=True):
        if not flag:
            bad = np.argwhere(~np.isfinite(np.asarray(leaf)))
            index = tuple(int(i) for i in bad[0])
            raise ValueError(
                f"{name} is not finite: {np.asarray(leaf)[index]} at index {index}. Remove it, or "
                "pass `throw=False` to give its trajectory the status `nonfinite`."
            )


@jax.jit
def _ends_fit(
    times: Array, num_steps: Array, t0: Array, t1: Array, new0: Array, new1: Array
) -> Array:
    """Whether the first and last step keep their direction when the ends of the window move."""
    times = times if times.ndim == 2 else times[:, None]
    count = jnp.atleast_1d(num_steps)
    direction = jnp.where(t1 < t0, -1, 1)
    pick = lambda row: jnp.take_along_axis(times, jnp.maximum(row, 0)[None], axis=0)[0]
    second = jnp.where(count >= 2, pick(jnp.minimum(count, 1)), new1)
    before_last = jnp.where(count >= 2, pick(count - 1), new0)
    forward = (direction * (second - new0) >= 0) & (direction * (new1 - before_last) >= 0)
    return jnp.all(forward)


def check_window(mesh: Mesh, t0: Any, t1: Any, new0: Any, new1: Any) -> None:
    """Raises if a replay is to start or end beyond the interior times of its mesh."""
    if not is_concrete((mesh, t0, t1, new0, new1)):
        return
    with jax.ensure_compile_time_eval():
        fits = bool(_ends_fit(mesh.times, mesh.num_steps, t0, t1, new0, new1))
    if not fits:
        raise ValueError(
            f"A replay can move `t0` and `t1` within the first and the last step of its mesh only: "
            f"recorded t0={_excerpt(t0)}, t1={_excerpt(t1)}, now t0={_excerpt(new0)}, "
            f"t1={_excerpt(new1)}. Solve again for another window."
        )


def _excerpt(values: Any) -> str:
    array = np.asarray(values)
    return np.array2string(array, threshold=8, edgeitems=2, precision=6)


def check_same_structure(name: str, expected: PyTree, got: PyTree) -> None:
    """Raises unless two pytrees have the same structure, shapes and dtypes."""

    def describe(leaf: Any) -> tuple[Any, ...] | None:
        if not eqx.is_array_like(leaf):
            return None
        return jnp.shape(leaf), str(jnp.result_type(leaf))

    want_def, got_def = jtu.tree_structure(expected), jtu.tree_structure(got)
    if want_def != got_def:
        raise ValueError(
            f"A replay needs a `{name}` of the recorded structure: expected {want_def}, got "
            f"{got_def}. Solve again to record a mesh for the new one."
        )
    pairs = zip(
        jtu.tree_flatten_with_path(expected)[0], jtu.tree_flatten_with_path(got)[0], strict=True
    )
    for (path, want), (_, have) in pairs:
        if describe(want) != describe(have):
            raise ValueError(
                f"A replay needs a `{name}` of the recorded structure: {_name(path, name)} was "
                f"{describe(want)}, now it is {describe(have)}. Solve again, or convert it."
            )
