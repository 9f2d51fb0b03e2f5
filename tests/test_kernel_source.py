"""`kernel_source` shows exactly what solves, replays and gradients compile."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

import gradsolve as gs
from gradsolve._build import CompilerNotFoundError, host_compiler
from gradsolve._fused import cuda, host
from tests.helpers import LotkaVolterra

_Y0 = jnp.array([34.0, 5.9])
_TS = jnp.array([0.5, 1.0])


def _lotka_volterra():
    return LotkaVolterra(0.55, 0.028, 0.80, 0.024)


class Tank(gs.ODESystem):
    """Leaves of all kinds: nested, an integer, an array of several entries."""

    rates: dict[str, Array]
    count: Array
    table: Array

    def vector_field(self, t, y):
        level = self.table[self.count] * jnp.sin(self.rates["in"] * t)
        return {"a": level - self.rates["out"] * y["a"], "b": y["a"] * jnp.ones_like(y["b"])}


def _tank(dtype):
    rates = {"in": jnp.asarray(1.5, dtype), "out": jnp.asarray(0.5, dtype)}
    return Tank(rates, jnp.array(2), jnp.arange(4, dtype=dtype))


class Table(gs.ODESystem):
    """A field that closes over arrays: leaves without a cotangent."""

    scale: Array

    def vector_field(self, t, y):
        xs = jnp.linspace(0.0, 1.0, 50)
        return self.scale * jnp.interp(t, xs, _MEASURED) * y


_MEASURED = jnp.cos(jnp.arange(50.0))


def _batched(system, n):
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * n), system)


# What reaches the text: each row changes something of the first one.
_SOLVES = {
    "defaults": {"system": _lotka_volterra(), "y0": _Y0},
    "outputs": {"system": _lotka_volterra(), "y0": _Y0, "ts": _TS},
    "first step": {"system": _lotka_volterra(), "y0": _Y0, "dt0": 0.01},
    "single precision": {
        "system": _tank(jnp.float32),
        "y0": {"a": jnp.ones((), jnp.float32), "b": jnp.ones(2, jnp.float32)},
        "ts": _TS,
    },
    "state as a dictionary": {
        "system": _tank(jnp.float64),
        "y0": {"a": jnp.ones(()), "b": jnp.ones(2)},
    },
    "tolerances per component": {
        "system": _lotka_volterra(),
        "y0": _Y0,
        "controller": gs.PIDController(1e-6, jnp.array([1e-6, 1e-9]), pcoeff=0.3, icoeff=0.4),
        "integrator": gs.Vern7(),
        "ts": _TS,
    },
    "fixed steps": {
        "system": _lotka_volterra(),
        "y0": _Y0,
        "controller": gs.ConstantStep(0.1),
        "integrator": gs.RK4(),
    },
    "captured table": {"system": Table(2.0), "y0": _Y0},
    "states now and then": {
        "system": _lotka_volterra(),
        "y0": _Y0,
        "adjoint": gs.DiscreteAdjoint(checkpoint_every=4),
    },
    "ensemble": {
        "system": _batched(_lotka_volterra(), 3),
        "y0": _Y0,
        "ts": _TS * jnp.ones((3, 1)),
        "t1": jnp.ones(3),
        "in_axes": gs.InAxes(system=eqx.if_array(0), ts=0, t1=0),
    },
    "ensemble of windows": {
        "system": _lotka_volterra(),
        "y0": _Y0,
        "t1": jnp.ones(3),
        "in_axes": gs.InAxes(t1=0),
    },
}
_WRT = (("system", "y0"), ("y0",), ("t0", "system"))


class _NotLoaded(host.HostKernel):
    def __init__(self, *_):
        pass

    def handler(self, lanes, reduce) -> Any:
        return None


@pytest.fixture
def compiled(monkeypatch):
    """The sources that would be compiled; nothing is, so nothing may be run."""
    sources = []

    def keep(source, *_, **options):
        del options
        sources.append(source)
        return b""

    monkeypatch.setattr(host, "build_host_library", keep)
    monkeypatch.setattr(host, "HostKernel", _NotLoaded)
    monkeypatch.setattr(host, "host_compiler", lambda: None)
    monkeypatch.setattr(host, "launcher", lambda compiler: None)
    monkeypatch.setattr(cuda, "launcher_for_gpu", lambda: "Nothing is launched.")
    monkeypatch.setattr(gs.HostCPU, "unavailable", lambda self, question: None)
    monkeypatch.setattr(cuda, "build_cubin", keep)
    monkeypatch.setattr(gs.CUDA, "unavailable", lambda self, question: None)
    monkeypatch.setattr(gs.CUDA, "compile_unit", lambda self, unit: cuda.cuda_kernel(unit, "sm_90"))
    _forget_kernels()
    yield sources
    _forget_kernels()


def _forget_kernels():
    host.host_kernel.cache_clear()
    cuda.cuda_kernel.cache_clear()
    jax.clear_caches()  # what was traced before would not ask for a kernel again


def _new(sources):
    new = list(dict.fromkeys(sources))
    sources.clear()
    return new


@pytest.mark.parametrize(
    ("backend", "case"),
    # The backends differ in the last lines of the text only.
    [*[(gs.HostCPU(), case) for case in _SOLVES], (gs.CUDA(), "outputs"), (gs.CUDA(), "ensemble")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_text_is_what_is_compiled(backend, case, compiled):
    arguments = dict(_SOLVES[case])
    system, y0 = arguments.pop("system"), arguments.pop("y0")
    times = {"t0": 0.0, "t1": arguments.pop("t1", 1.0)}
    with_outputs = arguments.get("ts") is not None

    def shown(job, **other):
        return gs.kernel_source(system, y0, job=job, backend=backend, **arguments, **other)

    def run(system, y0):
        trajectory = gs.solve(system, y0, **times, **arguments, backend=backend)
        assert _new(compiled) == [shown("record")]
        trajectory.replay()
        assert _new(compiled) == [shown("replay")]
        for wrt in (*_WRT, *((("ts",),) if with_outputs else ())):
            trajectory.loss_grad(lambda ys: sum(map(jnp.sum, jax.tree.leaves(ys))), wrt=wrt)
            # The replay was compiled before.
            assert _new(compiled) == [shown("adjoint", wrt=wrt)]

    eqx.filter_eval_shape(run, system, y0)


@pytest.mark.slow
def test_text_is_what_runs(monkeypatch, tmp_path):
    try:
        host_compiler()
    except CompilerNotFoundError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("GRADSOLVE_CACHE_DIR", str(tmp_path / "cache"))
    _forget_kernels()
    sources, build = [], host.build_host_library

    def keep(source, *others, **options):
        sources.append(source)
        return build(source, *others, **options)

    monkeypatch.setattr(host, "build_host_library", keep)
    system, backend = _lotka_volterra(), gs.HostCPU()
    trajectory = gs.solve(system, _Y0, t0=0.0, t1=1.0, ts=_TS, backend=backend)
    trajectory.replay()
    trajectory.loss_grad(jnp.sum, wrt=("system", "y0"))
    jobs = ("record", "replay", "adjoint")
    assert _new(sources) == [gs.kernel_source(system, _Y0, ts=_TS, job=job) for job in jobs]


def test_text_does_not_depend_on_values():
    ensemble = gs.kernel_source(
        _batched(_lotka_volterra(), 7),
        _Y0,
        in_axes=gs.InAxes(system=eqx.if_array(0)),
        controller=gs.PIDController(1e-3, 1e-4),
    )
    assert ensemble == gs.kernel_source(LotkaVolterra(1.0, 2.0, 3.0, 4.0), 2 * _Y0)
    assert ensemble != gs.kernel_source(_lotka_volterra(), _Y0, ts=_TS)


def test_text_names_the_parameters():
    text = gs.kernel_source(_lotka_volterra(), _Y0)
    assert text.startswith("// The record kernel of a system with 2 components. Generated.\n")
    assert "const F64 v0 = p.alpha * y[0];" in text
    assert "\t" not in text
    assert text.endswith("}\n")


class ManyTanh(gs.ODESystem):
    def vector_field(self, t: Array, y: Array) -> Array:
        return jnp.tanh(y)


@pytest.mark.parametrize("job", ["replay", "adjoint"])
def test_functions_side_by_side_may_take_all_registers(job):
    def bounds(system, y0):
        source = gs.kernel_source(system, y0, job=job, backend=gs.CUDA())
        return source.partition("\ngs_kernel")[0].rpartition("__launch_bounds__")[2]

    assert bounds(ManyTanh(), jnp.ones(9)) == "(gs::kMaxBlock, 1)"
    assert bounds(ManyTanh(), jnp.ones(9, "float32")) == "(gs::kMaxBlock)"
    assert bounds(ManyTanh(), jnp.ones(8)) == "(gs::kMaxBlock)"


def test_needs_neither_compiler_nor_gpu(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("GRADSOLVE_CXX", raising=False)
    assert "record_on_host" in gs.kernel_source(_lotka_volterra(), _Y0)
    assert "record_on_gpu" in gs.kernel_source(_lotka_volterra(), _Y0, backend=gs.CUDA())


class Singular(gs.ODESystem):
    def vector_field(self, t, y):
        return jnp.linalg.solve(jnp.eye(2) + jnp.outer(y, y), y)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"job": "solve"}, "`job` must be one of 'record', 'replay', 'adjoint', got 'solve'."),
        ({"backend": gs.Auto()}, r"`backend` must be `gradsolve.HostCPU\(\)` or .*got Auto\(\)"),
        ({"backend": gs.XLA()}, r"`backend` must be .*, got XLA\(\)"),
        ({"wrt": ("system", "p")}, r"`wrt` may name .*, got \('system', 'p'\)"),
        ({"wrt": ()}, "`wrt` may name"),
        ({"job": "adjoint", "wrt": "ts"}, "`wrt` names 'ts', but there are no output times"),
        ({"system": 3.0}, "`system` must be an instance"),
        ({"y0": jnp.array([1, 2])}, "`y0` has dtype int"),
        ({"ts": jnp.ones((3, 2))}, r"`ts` must be \(times,\)"),
        ({"integrator": "Tsit5"}, "`integrator` must be an object"),
        ({"integrator": gs.Euler()}, "`Euler` has no error estimate"),
        ({"in_axes": 0}, "`in_axes` must be a `gradsolve.InAxes`"),
        ({"in_axes": gs.InAxes()}, "selects no array"),
        ({"system": Singular()}, r"primitive `\w+`.*test_kernel_source.py.*gradsolve.XLA\(\)"),
    ],
    ids=str,
)
def test_wrong_input(arguments, sentence):
    given = {"system": _lotka_volterra(), "y0": _Y0, **arguments}
    with pytest.raises(ValueError, match=sentence):
        gs.kernel_source(given.pop("system"), given.pop("y0"), **given)


def test_integrators_of_diffrax_have_no_kernels():
    import diffrax

    with pytest.raises(ValueError, match="`FromDiffrax` is none of them"):
        gs.kernel_source(_lotka_volterra(), _Y0, integrator=gs.FromDiffrax(diffrax.Tsit5()))
