"""How an ensemble spreads."""

from collections.abc import Sequence

import numpy as np

from .._trajectory import Trajectory
from ._axes import Axes, axes_or_new
from ._components import component_names, components, evaluate


def ensemble(
    traj: Trajectory,
    ax: Axes | None = None,
    labels: Sequence[str] | None = None,
    *,
    quantiles: Sequence[float] = (0.05, 0.25),
    points: int = 300,
) -> Axes:
    """Draws a fan: the median over the trajectories of an ensemble, and bands around it.

    Each time counts the trajectories that exist there: those that have started, not ended and not
    failed.

    **Arguments:**

    - `traj`: a solved ensemble.
    - `ax`: where to draw; default: new axes.
    - `labels`: a name for each number of the state; default: from its structure.
    - `quantiles`: the lower edges of the bands, between 0 and 0.5; 0.05 draws the band from the
        quantile 0.05 to the quantile 0.95.
    - `points`: how many times of the dense output are drawn.

    **Returns:**

    The axes.

    **Raises:**

    `ValueError` for a single trajectory or wrong quantiles; `ModuleNotFoundError` without
    Matplotlib.
    """
    if not traj._axes.ensemble:
        raise ValueError(
            "`plot.ensemble` draws the spread of an ensemble, and this is a single trajectory; use "
            "`plot.trajectory`."
        )
    if not all(0 <= quantile < 0.5 for quantile in quantiles):
        raise ValueError(f"`quantiles` must be at least 0 and below 0.5, got {quantiles}.")
    names = component_names(traj, labels)
    times, states = _on_common_times(traj, points)
    levels = sorted(quantiles)
    wanted = [*levels, 0.5, *[1 - level for level in reversed(levels)]]
    edges = _quantiles(states, wanted)
    ax = axes_or_new(ax)
    for i, name in enumerate(names):
        for band in range(len(levels)):
            ax.fill_between(
                times,
                edges[band, :, i],
                edges[-1 - band, :, i],
                color=f"C{i}",
                alpha=0.6 / (len(levels) + 1),
                linewidth=0,
            )
        ax.plot(times, edges[len(levels), :, i], color=f"C{i}", label=name)
    ax.set_xlabel("t")
    ax.legend()
    return ax


def _on_common_times(traj: Trajectory, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Times from the first start to the last end, and states; nan outside a window."""
    ends = np.broadcast_arrays(np.asarray(traj.t0), np.asarray(traj.t1), np.empty(traj._lanes))
    low, high = np.minimum(ends[0], ends[1]), np.maximum(ends[0], ends[1])
    times = np.linspace(low.min(), high.max(), points, dtype=low.dtype)
    inside = (times >= low[:, None]) & (times <= high[:, None])
    states = components(traj, evaluate(traj, np.clip(times, low[:, None], high[:, None])))
    return times, np.where(inside[:, :, None], states, np.nan)


def _quantiles(states: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """`(levels, times, components)`; nan where there is no trajectory."""
    edges = np.full((len(levels), *states.shape[1:]), np.nan)
    somewhere = np.isfinite(states).any(axis=(0, 2))
    states = np.where(np.isfinite(states), states, np.nan)
    edges[:, somewhere] = np.nanquantile(states[:, somewhere], levels, axis=0)
    return edges
