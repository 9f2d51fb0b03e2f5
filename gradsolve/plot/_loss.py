"""The loss over the updates of a fit."""

from collections.abc import Sequence

import numpy as np

from .._custom_types import ArrayLike, Float
from .._fit import FitResult
from ._axes import Axes, axes_or_new


def loss(
    result_or_losses: FitResult | Float[ArrayLike, " updates"] | Sequence[float],
    ax: Axes | None = None,
) -> Axes:
    """Draws the loss after each update, and a dot at the lowest.

    The scale is logarithmic if all losses are positive.

    **Arguments:**

    - `result_or_losses`: what `fit` returned, or the losses.
    - `ax`: where to draw; default: new axes.

    **Returns:**

    The axes.

    **Raises:**

    `ValueError` if there is no finite loss; `ModuleNotFoundError` without Matplotlib.
    """
    losses = result_or_losses
    if isinstance(losses, FitResult):
        losses = losses.losses
    losses = np.asarray(losses)
    if losses.ndim != 1 or not np.isfinite(losses).any():
        raise ValueError(
            f"`plot.loss` needs a `FitResult` or an array of losses, at least one of them finite; "
            f"got {result_or_losses!r}."
        )
    finite = np.where(np.isfinite(losses), losses, np.nan)
    best = int(np.nanargmin(finite))
    ax = axes_or_new(ax)
    ax.plot(finite, color="C0")
    ax.plot([best], [finite[best]], "o", color="C1", label=f"{finite[best]:.4g} after {best}")
    if np.nanmin(finite) > 0:
        ax.set_yscale("log")
    ax.set_xlabel("updates")
    ax.set_ylabel("loss")
    ax.legend()
    return ax
