"""Norms of the scaled error."""

import jax.numpy as jnp
import jax.tree_util as jtu

from .._custom_types import Array, Float, PyTree


def rms_norm(x: PyTree) -> Float[Array, ""]:
    """Root mean square over all components of a pytree: `sqrt(sum(x**2) / size)`.

    The norm of Hairer, Nørsett & Wanner, *Solving Ordinary Differential Equations I*, eq. II.4.11.
    """
    leaves = [jnp.ravel(leaf) for leaf in jtu.tree_leaves(x)]
    flat = leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)
    return jnp.sqrt(jnp.mean(flat * flat))
