"""The progress bar of a fit."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from tqdm import tqdm


class Progress(Protocol):
    """Shows how far a fit has come."""

    def __call__(self, update: int, loss: float) -> None:
        """Shows that `update` updates are done, and the loss after them."""


@contextlib.contextmanager
def progress_bar(steps: int, show: bool) -> Iterator[Progress]:
    """A bar over `steps` updates with the loss and the rate, or nothing."""
    # Until the first loss is there, time goes into compilation: the bar says so, and its rate
    # counts from then on.
    with tqdm(total=steps, desc="compiling", unit="update", disable=not show) as bar:

        def advance(update: int, loss: float) -> None:
            if update == 0:
                bar.set_description("fit", refresh=False)
                bar.reset(total=steps)
            bar.set_postfix(loss=f"{loss:.6g}", refresh=update == 0)
            bar.update(update - bar.n)

        yield advance
