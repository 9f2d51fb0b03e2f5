"""Times that all trajectories share, for code that has one per trajectory."""

from typing import Any

import jax.numpy as jnp


def one_per_lane(inputs: Any) -> Any:
    """The inputs of a job, with an entry for each trajectory in all times."""
    lanes = inputs.y0.shape[-1]
    shared = {
        name: jnp.broadcast_to(times, (*times.shape[:-1], lanes))
        for name in ("t0", "t1", "ts", "dt0")
        if (times := getattr(inputs, name, None)) is not None
    }
    return inputs._replace(**shared)
