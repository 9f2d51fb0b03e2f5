"""Checks shared by the controllers."""

from typing import Any

import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer


def check_positive(name: str, value: Any, *, zero_allowed: bool = False) -> None:
    """Raises `ValueError` unless every concrete number in `value` is positive and finite."""
    for leaf in jtu.tree_leaves(value):
        if isinstance(leaf, Tracer):
            continue
        array = np.asarray(leaf)
        if array.dtype == object or not np.issubdtype(array.dtype, np.number):
            continue  # a placeholder put there while a pytree is being rebuilt
        bad = ~(array >= 0) if zero_allowed else ~(array > 0)
        if (bad | np.isinf(array)).any():
            wanted = "finite and not negative" if zero_allowed else "positive and finite"
            raise ValueError(f"`{name}` must be {wanted}, got {value}.")
