"""States of any structure as arrays of named components, one trajectory after the other."""

from collections.abc import Sequence
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._custom_types import PyTree
from .._trajectory import Trajectory


def component_names(traj: Trajectory, labels: Sequence[str] | None) -> list[str]:
    """One name per number of the state: the labels given, or paths such as `prey` and `y[0]`.

    **Raises:**

    `ValueError` if there are more or fewer labels than numbers.
    """
    layout = traj._layout
    template = jtu.tree_unflatten(layout.treedef, list(range(len(layout.shapes))))
    names = []
    for path, leaf in jtu.tree_flatten_with_path(template)[0]:
        name = _name(path)
        for index in np.ndindex(*layout.shapes[leaf]):
            names.append(name + "".join(f"[{i}]" for i in index))
    if labels is None:
        return names
    if isinstance(labels, str) or len(labels) != len(names):
        raise ValueError(
            f"`labels` must be {len(names)} names, one for each of {', '.join(names)}; got "
            f"{labels!r}."
        )
    return list(labels)


def _name(path: Sequence[Any]) -> str:
    name = ""
    for key in path:
        if isinstance(key, jtu.SequenceKey):
            name += f"[{key.idx}]"
        else:
            name += f".{key.name if isinstance(key, jtu.GetAttrKey) else key.key}"
    return name[1:] if name.startswith(".") else f"y{name}"


def components(traj: Trajectory, ys: PyTree) -> np.ndarray:
    """States in the form of `Trajectory.ys` as an array `(trajectories, times, components)`.

    Leaves that are `None` are nan.
    """
    lanes = traj._lanes
    columns = []
    leaves = traj._layout.treedef.flatten_up_to(ys)
    for leaf, shape in zip(leaves, traj._layout.shapes, strict=True):
        size = int(np.prod(shape))
        columns.append(None if leaf is None else np.asarray(leaf).reshape(lanes, -1, size))
    times = next(column.shape[1] for column in columns if column is not None)
    for i, shape in enumerate(traj._layout.shapes):
        if columns[i] is None:
            columns[i] = np.full((lanes, times, int(np.prod(shape))), np.nan)
    return np.concatenate(columns, axis=2)


def lines(traj: Trajectory, points: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Times `(trajectories, times)` and states `(trajectories, times, components)` to draw.

    Dense output at `points` times of the window of each trajectory, or the output times. Padding
    becomes nan.

    **Raises:**

    `ValueError` if there are no output times and no dense output is asked for.
    """
    lanes = traj._lanes
    if points is None:
        if traj.ts is None:
            raise ValueError(
                "This trajectory has no output times (`ts=None`), so `points` must be a number of "
                "times at which to draw it."
            )
        times = np.broadcast_to(np.asarray(traj.ts), (lanes, np.shape(traj.ts)[-1]))
        return np.where(np.isinf(times), np.nan, times), components(traj, traj.ys)
    t0, t1 = (np.broadcast_to(np.asarray(t), lanes) for t in (traj.t0, traj.t1))
    times = np.linspace(t0, t1, points, axis=1, dtype=t0.dtype)
    return times, components(traj, evaluate(traj, times))


def evaluate(traj: Trajectory, times: np.ndarray) -> PyTree:
    """Dense output at `(trajectories, times)`."""
    return traj.evaluate(times if traj._axes.ensemble else times[0])
