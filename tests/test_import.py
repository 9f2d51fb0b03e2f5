"""Importing gradsolve does no work and changes no setting."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import gradsolve as gs

_ROOT = Path(__file__).parent.parent

_IMPORT = """
import logging, os, sys, warnings

import jax

settings = dict(jax.config.values)
environment = dict(os.environ)
filters = list(warnings.filters)
handlers = list(logging.getLogger().handlers)

import gradsolve

assert dict(jax.config.values) == settings, "a JAX setting changed"
assert dict(os.environ) == environment, "an environment variable changed"
assert list(warnings.filters) == filters, "a warning filter changed"
assert list(logging.getLogger().handlers) == handlers, "a logging handler was added"
# Not "cuda" itself: the package cuda-bindings 12.9 puts that name there whenever Python starts.
for module in ("matplotlib", "scipy.optimize", "cuda.bindings", "cuda.core", "pytest", "beartype"):
    assert module not in sys.modules, f"{module} was imported"
"""


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_import_changes_nothing():
    # No PATH: no compiler and no GPU tool can be found. A platform that does not exist: the first
    # array, if importing made one, would start a backend and fail.
    done = _python(_IMPORT, JAX_PLATFORMS="none_such")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_version_is_that_of_the_installed_package():
    # pyproject.toml reads it from gradsolve/__init__.py.
    assert importlib.metadata.version("gradsolve") == gs.__version__
