"""Fused kernels: one kernel per job, generated from the user's vector field."""
