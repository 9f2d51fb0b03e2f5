"""What every benchmark does before it measures."""

import os
from pathlib import Path

import jax


def configure_jax() -> None:
    """Both precisions, no compilation cache on disk, and memory allocated as it is needed."""
    # JAX reads both before it first touches a device, not when it is imported.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_enable_x64", True)
    # A cache on disk would make the compile times those of reading a file.
    jax.config.update("jax_enable_compilation_cache", False)


def keep_kernels_in(directory: Path | None) -> None:
    """Where gradsolve's compiled kernels are kept, if that was said."""
    if directory is not None:
        # gradsolve reads it when it builds, not when it is imported.
        os.environ["GRADSOLVE_CACHE_DIR"] = str(directory.resolve())
