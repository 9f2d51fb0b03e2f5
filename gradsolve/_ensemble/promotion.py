"""Promotion rules while the library's own arithmetic is traced."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def own_promotion() -> Iterator[None]:
    """A user's strict promotion modes are for the user's code, which has been traced before."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
