"""Step sizes along a mesh."""

import numpy as np

from .._trajectory import Trajectory
from ._axes import Axes, axes_or_new


def steps(traj: Trajectory, ax: Axes | None = None) -> Axes:
    """Draws the lengths of the accepted steps over time, on a logarithmic scale.

    **Arguments:**

    - `traj`: a trajectory or an ensemble; each trajectory is one line.
    - `ax`: where to draw; default: new axes.

    **Returns:**

    The axes.

    **Raises:**

    `ModuleNotFoundError` without Matplotlib.
    """
    counts = np.atleast_1d(np.asarray(traj.mesh.num_steps))
    times = np.asarray(traj.mesh.times).reshape(-1, counts.size)
    lengths = np.abs(np.diff(times, axis=0))
    # A step of length zero (t0 == t1) has no place on a logarithmic scale.
    lengths = np.where((np.arange(len(lengths))[:, None] < counts) & (lengths > 0), lengths, np.nan)
    # A step reaches from its own time to the next one, so the last length is drawn twice.
    last = lengths[np.maximum(counts - 1, 0), np.arange(counts.size)]
    lengths = np.concatenate([lengths, np.full((1, counts.size), np.nan)])
    lengths[counts, np.arange(counts.size)] = last
    ax = axes_or_new(ax)
    alpha = max(0.05, counts.size**-0.5)
    ax.plot(times, lengths, drawstyle="steps-post", color="C0", alpha=alpha)
    ax.set_yscale("log")
    ax.set_xlabel("t")
    ax.set_ylabel("step size")
    return ax
