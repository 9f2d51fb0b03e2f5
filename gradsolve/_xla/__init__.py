"""The plain JAX backend: loops over rows, all trajectories in lockstep, masks for the idle ones."""
