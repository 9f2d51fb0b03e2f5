"""Memory of the reverse pass: how many steps lie between two checkpoints."""

import math
from typing import Any

import numpy as np


def check_checkpoint_options(checkpoint_every: int | None, memory_limit: int) -> None:
    """Raises `ValueError` unless both numbers are positive integers (or `None` for the first)."""
    if checkpoint_every is not None and not _is_positive_integer(checkpoint_every):
        raise ValueError(
            f"`checkpoint_every` must be a positive number of steps or None, got "
            f"{checkpoint_every!r}."
        )
    if not _is_positive_integer(memory_limit):
        raise ValueError(
            f"`memory_limit` must be a positive number of bytes, got {memory_limit!r}."
        )


def _is_positive_integer(value: Any) -> bool:
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return integer and bool(value >= 1)


def checkpoint_bytes(rows: int, every: int, bytes_per_row: int) -> int:
    """Memory of the checkpoints and of the segment that the backward pass re-integrates."""
    segment = 0 if every == 1 else every
    return (math.ceil(rows / every) + segment) * bytes_per_row


def choose_checkpoint_every(
    rows: int, bytes_per_row: int, checkpoint_every: int | None, memory_limit: int
) -> int:
    """The spacing of the checkpoints of a mesh of `rows` steps.

    **Raises:**

    `ValueError` if the spacing asked for, or every spacing when none is asked for, needs more than
    `memory_limit` bytes.
    """
    if checkpoint_every is not None:
        needed = checkpoint_bytes(rows, checkpoint_every, bytes_per_row)
        if needed > memory_limit:
            raise ValueError(
                f"`DiscreteAdjoint(checkpoint_every={checkpoint_every})` needs {needed} bytes for "
                f"a mesh of {rows} steps, more than `memory_limit={memory_limit}`. Raise "
                "`memory_limit`, choose a `checkpoint_every` nearer to the square root of the "
                "number of steps, or lower `max_steps`."
            )
        return checkpoint_every
    every = 1
    while every < 2 * rows:
        if checkpoint_bytes(rows, every, bytes_per_row) <= memory_limit:
            return every
        every *= 2
    best = min(
        (1 << k for k in range(rows.bit_length() + 1)),
        key=lambda every: checkpoint_bytes(rows, every, bytes_per_row),
    )
    needed = checkpoint_bytes(rows, best, bytes_per_row)
    raise ValueError(
        f"The checkpoints of a mesh of {rows} steps need at least {needed} bytes, more than "
        f"`DiscreteAdjoint(memory_limit={memory_limit})`. Raise `memory_limit`, lower `max_steps`, "
        "or solve the ensemble in parts."
    )
