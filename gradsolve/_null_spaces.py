"""The null spaces of a mass matrix: where a system has algebraic equations."""

from typing import NamedTuple

import numpy as np


class Algebraic(NamedTuple):
    """What is algebraic: `left.T @ f(t, y) = 0`, to be solved along `right`.

    The columns are orthonormal and span the left and the right null space of the mass matrix.
    """

    left: np.ndarray
    right: np.ndarray


def algebraic_equations(mass: np.ndarray) -> Algebraic | None:
    """The algebraic equations; `None` if the mass matrix is regular."""
    # Rows and columns may be in any units, so that the rank is that of the scaled matrix.
    exact = np.asarray(mass, np.float64)
    rows = _scales(exact, axis=1)
    columns = _scales(exact / rows[:, None], axis=0)
    u, sizes, vt = np.linalg.svd(exact / rows[:, None] / columns)
    rank = int(np.sum(sizes > sizes[0] * len(mass) * np.finfo(mass.dtype).eps))
    if rank == len(mass):
        return None
    left = _orthonormal(u[:, rank:] / rows[:, None])
    right = _orthonormal(vt[rank:].T / columns[:, None])
    return Algebraic(left.astype(mass.dtype), right.astype(mass.dtype))


def regularised(mass: np.ndarray) -> np.ndarray:
    """A regular matrix that agrees with a mass matrix but on its null space.

    It is the mass matrix itself if that is regular, and the identity for a diagonal of ones and
    zeros.
    """
    algebraic = algebraic_equations(mass)
    return mass if algebraic is None else mass + algebraic.left @ algebraic.right.T


def _scales(matrix: np.ndarray, axis: int) -> np.ndarray:
    largest = np.max(np.abs(matrix), axis=axis)
    return np.where(largest > 0, largest, 1.0)


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """The same space, spanned by unit vectors of single components if it is."""
    basis = np.linalg.qr(columns)[0]
    projector = basis @ basis.T
    diagonal = np.round(np.diag(projector))
    if np.allclose(projector, np.diag(diagonal), atol=1e-12):
        return np.eye(len(basis))[:, diagonal == 1]
    return basis
