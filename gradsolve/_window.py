"""The window of a fit, where it follows from the output times."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np

from ._in_axes import InAxes


def window_from_outputs(
    ts: Any, t0: Any, t1: Any, in_axes: InAxes | None
) -> tuple[Any, Any, InAxes | None]:
    """`t0` and `t1`, taken from the first and the last output time where they are None.

    With output times of its own (`in_axes.ts`) each trajectory gets its own window; padding by
    `inf` is not an output time.
    """
    if t0 is not None and t1 is not None:
        return t0, t1, in_axes
    times = np.asarray(ts)
    axis: Any = None if in_axes is None else in_axes.ts
    if callable(axis):
        axis = axis(times)
    rows = times if axis is None else np.moveaxis(times, axis, 0)
    if rows.ndim != 1 + (axis is not None) or rows.shape[-1] == 0:
        return t0, t1, in_axes  # `solve` says what is wrong with `ts`
    last = np.maximum(np.isfinite(rows).sum(axis=-1, keepdims=True) - 1, 0)
    if t0 is None:
        t0 = rows[..., 0]
        in_axes = _with_axis(in_axes, "t0", axis)
    if t1 is None:
        t1 = np.take_along_axis(rows, last, axis=-1)[..., 0]
        in_axes = _with_axis(in_axes, "t1", axis)
    return t0, t1, in_axes


def _with_axis(in_axes: InAxes | None, name: str, axis: int | None) -> InAxes | None:
    if in_axes is None or axis is None:
        return in_axes
    return dataclasses.replace(in_axes, **{name: eqx.if_array(0)})
