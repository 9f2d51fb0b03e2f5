"""Matplotlib, imported when the first picture is drawn."""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:
    Axes: TypeAlias = Any


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure.

    **Raises:**

    `ModuleNotFoundError` if Matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ModuleNotFoundError(
            "`gradsolve.plot` needs Matplotlib. Install it with `pip install 'gradsolve[plot]'`.",
            name=error.name,
        ) from None
    return pyplot.subplots(layout="constrained")[1] if ax is None else ax
