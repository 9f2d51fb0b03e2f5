"""What has no fused kernel says why, and runs as plain JAX if that is allowed."""

import inspect
import pathlib
import subprocess
import sys

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs

from .helpers import Decay, same_bits

_ROOT = pathlib.Path(__file__).parent.parent


class Spectral(gs.ODESystem):
    """Nobody lowers a Fourier transform."""

    k: Array

    def vector_field(self, t, y):
        waves = jnp.fft.rfft(y)
        return -self.k * y + 0.01 * jnp.abs(waves[0])


def solve(system, y0, **kwargs):
    return gs.solve(system, y0, t0=0.0, t1=1.0, **kwargs)


def place_of_the_transform():
    lines, first = inspect.getsourcelines(Spectral)
    return first + next(i for i, line in enumerate(lines) if "jnp.fft" in line)


def test_an_unsupported_primitive(fused):
    y0 = jnp.array([1.0, 0.5, 0.2, 0.1])
    with pytest.raises(ValueError, match="fft") as error:
        solve(Spectral(0.5), y0, backend=fused)
    where = f"{pathlib.Path(__file__).name}:{place_of_the_transform()}"
    assert where in str(error.value)

    trajectory = solve(Spectral(0.5), y0)
    assert (trajectory.backend.requested, trajectory.backend.actual) == ("Auto", "XLA")
    assert "`fft`" in trajectory.backend.reason
    assert where in trajectory.backend.reason
    assert same_bits(trajectory.ys, solve(Spectral(0.5), y0, backend=gs.XLA()).ys)
    _, gradient = trajectory.loss_grad(jnp.sum)
    assert np.isfinite(gradient.k)


class Waves(gs.ODESystem):
    """Two operations for each frequency."""

    k: Array

    def vector_field(self, t, y):
        return -self.k * jnp.sum(jnp.sin(jnp.arange(1.0, 801.0) * y)) / 800


def test_auto_leaves_large_fields_to_plain_jax(fused):
    trajectory = solve(Waves(0.5), jnp.asarray(1.0))
    assert trajectory.backend.actual == "XLA"
    assert "scalar operations, more than 1500" in trajectory.backend.reason
    wanted = solve(Waves(0.5), jnp.asarray(1.0), backend=fused)
    assert wanted.backend.actual == type(fused).__name__
    assert np.abs(trajectory.ys - wanted.ys) < 1e-12


def test_a_solver_of_diffrax(fused):
    integrator = gs.FromDiffrax(diffrax.Kvaerno3())
    with pytest.raises(ValueError, match="Rosenbrock methods, and `FromDiffrax`"):
        solve(Decay(0.5), jnp.asarray(1.0), integrator=integrator, backend=fused)
    trajectory = solve(Decay(0.5), jnp.asarray(1.0), integrator=integrator)
    assert trajectory.backend.actual == "XLA"
    assert "FromDiffrax" in trajectory.backend.reason


def test_auto_takes_the_fused_backend(fused):
    trajectory = solve(Decay(0.5), jnp.asarray(1.0))
    name = type(fused).__name__
    assert (trajectory.backend.requested, trajectory.backend.actual) == ("Auto", name)
    assert trajectory.backend.reason
    assert same_bits(trajectory.ys, solve(Decay(0.5), jnp.asarray(1.0), backend=fused).ys)
    trajectory = solve(Decay(0.5), jnp.asarray(1.0), backend=fused)
    assert (trajectory.backend.requested, trajectory.backend.actual) == (name, name)


def test_arrays_in_the_wrong_place():
    with pytest.raises(ValueError, match=r"`CUDA\(\)` works on arrays on an NVIDIA GPU.*'cpu'"):
        solve(Decay(0.5), jnp.asarray(1.0), backend=gs.CUDA())


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_wrong_numbers_of_threads(threads):
    with pytest.raises(Exception, match="threads"):
        gs.HostCPU(threads=threads)


_WITHOUT_COMPILER = """
import jax
jax.config.update("jax_platforms", "cpu")
import jax.numpy as jnp
import gradsolve as gs
from tests.helpers import Decay

solve = lambda **kwargs: gs.solve(Decay(0.5), jnp.asarray(1.0), t0=0.0, t1=1.0, **kwargs)
trajectory = solve()
assert trajectory.backend.actual == "XLA", trajectory.backend
print(trajectory.backend.reason)
assert abs(float(trajectory.ys) - 0.60653) < 1e-4
try:
    solve(backend=gs.HostCPU())
except ValueError as error:
    assert str(error) == trajectory.backend.reason, error
else:
    raise AssertionError("HostCPU() ran without a compiler")
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PATH": "/nowhere"}, "No C++ compiler was found"),
        ({"GRADSOLVE_CXX": "/nowhere/c++"}, "'/nowhere/c++', asked for by GRADSOLVE_CXX, was not"),
    ],
    ids=["none in PATH", "wrong name"],
)
def test_without_a_compiler_plain_jax_runs_and_says_so(environment, expected):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_COMPILER],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
