"""Kernels for GPUs, compiled where there is none: that they compile, and what they take."""

import functools
from typing import Any

import jax.numpy as jnp
import pytest
from jaxtyping import Array

import gradsolve as gs
from gradsolve._build import build_cubin, cubin_resources
from tests.helpers import EXPLICIT, Decay, LotkaVolterra

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install gradsolve[test]")

_ARCHS = ("sm_80", "sm_89", "sm_90")
_JOBS = ("record", "replay", "adjoint")
_TS = jnp.array([0.5, 1.0])


@pytest.fixture(autouse=True, scope="module")
def directory(tmp_path_factory):
    """An empty cache, so that everything is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADSOLVE_CACHE_DIR", str(tmp_path_factory.mktemp("cubins") / "cache"))
        yield


@functools.cache
def _source_of_method(integrator: Any, job: str) -> str:
    adaptive = integrator.error_order is not None
    return gs.kernel_source(
        Decay(jnp.array(0.5)),
        jnp.array(1.0),
        job=job,
        ts=_TS,
        integrator=integrator,
        controller=gs.PIDController(1e-6, 1e-9) if adaptive else gs.ConstantStep(0.1),
        backend=gs.CUDA(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("integrator", EXPLICIT, ids=repr)
@pytest.mark.parametrize("arch", _ARCHS)
def test_every_method_compiles(integrator, arch):
    for job in _JOBS:
        kernels = cubin_resources(build_cubin(_source_of_method(integrator, job), arch))
        assert set(kernels) == ({"gs_kernel", "gs_reduce"} if job == "adjoint" else {"gs_kernel"})


class Lorenz(gs.ODESystem):
    sigma: Array
    rho: Array
    beta: Array

    def vector_field(self, t, y):
        x, y, z = y
        return jnp.stack([self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z])


class Repressilator(gs.ODESystem):
    """Three genes, each of which represses the next one: messengers and proteins."""

    alpha: Array
    leak: Array
    hill: Array
    beta: Array

    def vector_field(self, t, y):
        messenger, protein = y[:3], y[3:]
        repression = self.alpha / (1 + jnp.roll(protein, 1) ** self.hill)
        return jnp.concatenate(
            [self.leak + repression - messenger, self.beta * (messenger - protein)]
        )


_SYSTEMS = {
    "Lorenz": (Lorenz, (10.0, 28.0, 8 / 3), 3),
    "LotkaVolterra": (LotkaVolterra, (0.55, 0.028, 0.80, 0.024), 2),
    "Repressilator": (Repressilator, (216.0, 0.2, 2.0, 5.0), 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("ts", [None, _TS], ids=["end", "outputs"])
@pytest.mark.parametrize("job", _JOBS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(_SYSTEMS))
def test_small_systems_stay_in_registers(name, dtype, job, ts):
    system, values, dim = _SYSTEMS[name]
    source = gs.kernel_source(
        system(*(jnp.asarray(value, dtype) for value in values)),
        jnp.ones(dim, dtype),
        job=job,
        ts=ts,
        integrator=gs.Tsit5(),
        controller=gs.PIDController(1e-6, 1e-9),
        backend=gs.CUDA(),
    )
    for arch in _ARCHS:
        kernels = cubin_resources(build_cubin(source, arch))
        assert {kernel: taken.local_bytes for kernel, taken in kernels.items()} == dict.fromkeys(
            kernels, 0
        )


class Lorenz96(gs.ODESystem):
    forcing: Array

    def vector_field(self, t, y):
        return (jnp.roll(y, -1) - jnp.roll(y, 2)) * jnp.roll(y, 1) - y + self.forcing


class Interpolated(gs.ODESystem):
    """A chain of integers and flags, the binary search, in a pullback that comes in two ways."""

    rate: Array
    force: Array

    def vector_field(self, t, y):
        return self.force[0] - self.rate * jnp.interp(t + y, jnp.arange(81.0) ** 1.5, self.force)


def test_the_gradient_by_a_table_compiles_in_time():
    """The compiler took minutes to see that none of those integers is a constant."""
    system = Interpolated(jnp.array(0.5), jnp.linspace(1.0, 2.0, 81))
    source = gs.kernel_source(system, jnp.array(1.0), job="adjoint", backend=gs.CUDA())
    assert "pull_by(gs::Quick(), " in source
    assert cubin_resources(build_cubin(source, "sm_90"))


def test_an_assembler_that_gives_up_is_asked_for_less():
    """Of 40 states the replay is left with a few registers otherwise; 255 is all that there are."""
    source = gs.kernel_source(
        Lorenz96(jnp.array(8.0)), jnp.ones(40), job="replay", backend=gs.CUDA()
    )
    for arch in ("sm_80", "sm_90"):
        (taken,) = cubin_resources(build_cubin(source, arch)).values()
        assert taken.registers > 200
        assert taken.local_bytes < 4096


class Robertson(gs.ODESystem):
    rates: Array

    def vector_field(self, t, y):
        a, b, c = self.rates
        slow, fast, back = a * y[0], b * y[1] ** 2, c * y[1] * y[2]
        return jnp.stack([back - slow, slow - back - fast, fast])


@pytest.mark.slow
@pytest.mark.parametrize("job", _JOBS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stiff_system_stays_in_registers(dtype, job):
    source = gs.kernel_source(
        Robertson(jnp.array([0.04, 3e7, 1e4], dtype)),
        jnp.array([1.0, 0.0, 0.0], dtype),
        job=job,
        integrator=gs.Rodas5P(),
        backend=gs.CUDA(),
    )
    for arch in _ARCHS:
        taken = cubin_resources(build_cubin(source, arch))["gs_kernel"]
        # The adjoint in float64 takes all 255 registers; a number or two may not find one.
        assert taken.local_bytes <= (16 if job == "adjoint" and dtype == "float64" else 0), arch
