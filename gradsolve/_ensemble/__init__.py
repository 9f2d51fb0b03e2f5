"""What the library calls an ensemble: flat states with the trajectories on the last axis."""
