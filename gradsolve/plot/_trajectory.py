"""States over time, with data."""

from collections.abc import Sequence

import jax.tree_util as jtu
import numpy as np

from .._custom_types import ArrayLike, Float, PyTree
from .._trajectory import Trajectory
from ._axes import Axes, axes_or_new
from ._components import component_names, components, lines


def trajectory(
    traj: Trajectory,
    data_times: Float[ArrayLike, "*lanes times"] | None = None,
    data: PyTree = None,
    ax: Axes | None = None,
    labels: Sequence[str] | None = None,
    *,
    points: int | None = 300,
) -> Axes:
    """Draws the components of the state over time, and measurements as dots in the same colours.

    The trajectories of an ensemble are drawn one over the other. A failed trajectory ends where it
    failed.

    **Arguments:**

    - `traj`: what `solve` returned, or the `trajectory` of a fit.
    - `data_times`: times of the measurements; default: the output times of `traj`.
    - `data`: measurements in the form of `Trajectory.ys`, or an array with the components of the
        state on its last axis. nan means not measured, and so does None in place of an array.
    - `ax`: where to draw; default: new axes.
    - `labels`: a name for each number of the state; default: from its structure.
    - `points`: how many times of the dense output are drawn; None draws the states at the output
        times.

    **Returns:**

    The axes.

    **Raises:**

    `ValueError` if labels or data do not fit the state; `ModuleNotFoundError` without Matplotlib.
    """
    names = component_names(traj, labels)
    times, states = lines(traj, points)
    measured = None
    if data is not None:
        measured = _measurements(traj, data_times, data, len(names))
    ax = axes_or_new(ax)
    alpha = max(0.05, traj._lanes**-0.5)
    for i, name in enumerate(names):
        drawn = ax.plot(times.T, states[:, :, i].T, color=f"C{i}", alpha=alpha)
        drawn[0].set_label(name)
        if measured is not None:
            at, values = measured
            ax.plot(at.T, values[:, :, i].T, "o", color=f"C{i}", markersize=4)
    ax.set_xlabel("t")
    opaque_legend(ax)
    return ax


def opaque_legend(ax: Axes) -> None:
    """A legend whose lines are not as faint as those of a large ensemble."""
    for handle in ax.legend().legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)


def _measurements(
    traj: Trajectory, data_times: Float[ArrayLike, "*lanes times"] | None, data: PyTree, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Times and values as `lines` returns them."""
    if data_times is None:
        data_times = traj.ts
        if data_times is None:
            raise ValueError("`data` needs `data_times`: this trajectory has no output times.")
    times = np.asarray(data_times, float)
    length = times.shape[-1] if times.ndim else 0
    lanes = (traj._lanes,) if traj._axes.ensemble else ()
    layout = traj._layout
    wrong = ValueError(
        f"`data` must have the form of `Trajectory.ys` at {length} times, or be an array of shape "
        f"{(*lanes, length, count)}, and `data_times` must be of shape {(*lanes, length)} or "
        f"{(length,)}; got data of shape {jtu.tree_map(np.shape, data)} and times of shape "
        f"{times.shape}."
    )
    if times.shape not in ((length,), (*lanes, length)):
        raise wrong
    times = np.broadcast_to(np.where(np.isinf(times), np.nan, times), (traj._lanes, length))
    if np.shape(data) == (*lanes, length, count) and not isinstance(data, list | tuple):
        return times, np.asarray(data, float).reshape(traj._lanes, length, count)
    if jtu.tree_structure(data, is_leaf=lambda leaf: leaf is None) != layout.treedef:
        raise wrong
    leaves = layout.treedef.flatten_up_to(data)
    for leaf, shape in zip(leaves, layout.shapes, strict=True):
        if leaf is not None and np.shape(leaf) != (*lanes, length, *shape):
            raise wrong
    if all(leaf is None for leaf in leaves):
        raise wrong
    return times, components(traj, data)
