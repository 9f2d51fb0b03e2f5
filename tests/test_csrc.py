"""The C++ headers by themselves, with fields and methods written by hand (`tests/csrc`)."""

import re
import subprocess
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import pytest

import gradsolve as gs
from gradsolve import _results
from gradsolve._build import CompilerNotFoundError, HostCompiler, host_compiler, nvrtc
from gradsolve._fused import jobs
from gradsolve._fused.arguments import ArgumentList
from tests.helpers import LotkaVolterra

_PROGRAMS = Path(__file__).parent / "csrc"
_CSRC = Path(gs.__file__).parent / "csrc"
_HEADERS = sorted(path.relative_to(_CSRC).as_posix() for path in _CSRC.rglob("*.h"))

_FLAGS = (
    "-std=c++17",
    "-ffp-contract=off",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",  # packs are passed between inlined functions only
    f"-I{_CSRC}",
    f"-I{_PROGRAMS}",
)
# In programs: what is set and used under the same run-time flag looks unset to GCC.
_PROGRAM_FLAGS = ("-Wno-maybe-uninitialized",)


@pytest.fixture(scope="module")
def compiler() -> HostCompiler:
    try:
        return host_compiler()
    except CompilerNotFoundError as error:
        pytest.skip(str(error))


def _compile(compiler: HostCompiler, *arguments: str) -> None:
    native = [flag for flag in compiler.flags if flag.startswith(("-march=", "-mcpu="))]
    command = [*compiler.command, *_FLAGS, *native, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def _run(
    compiler: HostCompiler, directory: Path, program: str, *options: str, argument: str = ""
) -> str:
    """Compiles a program of `tests/csrc`, runs it and returns what it prints."""
    binary = directory / program
    source = _PROGRAMS / f"{program}.cpp"
    _compile(compiler, *_PROGRAM_FLAGS, *options, str(source), "-o", str(binary))
    command = [str(binary), *([argument] if argument else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[:4000]
    return done.stdout


@pytest.mark.parametrize("lanes", [(), ("-DGS_LANES=1",)], ids=["packs", "scalars"])
@pytest.mark.parametrize("header", [name for name in _HEADERS if name != "gs/cuda.h"])
def test_header_compiles_alone(header, lanes, compiler, tmp_path):
    source = tmp_path / "alone.cpp"
    source.write_text(f'#include "{header}"\n')
    _compile(compiler, *lanes, "-fsyntax-only", str(source))


@pytest.mark.parametrize("header", [name for name in _HEADERS if name != "gs/host.h"])
def test_header_compiles_alone_for_a_gpu(header):
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install gradsolve[test]")
    source = f'#include "{header}"\n'
    options = (*nvrtc._FLAGS, "--gpu-architecture=sm_80")
    result = nvrtc._compile(nvrtc._compiler().nvrtc, source, options)
    assert result.problem is None, result.log
    assert result.log == ""  # no warnings either


_WIDEST = ()


@pytest.mark.parametrize(
    "options",
    [
        _WIDEST,
        ("-DGS_REAL_BITS=32",),
        ("-DGS_LANES=1",),
    ],
    ids=["packs", "packs of floats", "scalars"],
)
def test_lanes(options, compiler, tmp_path):
    _run(compiler, tmp_path, "lanes", "-O1", *options)


@pytest.mark.parametrize(
    "options",
    [
        _WIDEST,
        ("-DGS_LANES=1",),
    ],
    ids=["packs", "scalars"],
)
def test_flags_in_memory(options, compiler, tmp_path):
    _run(compiler, tmp_path, "lanes", "-O0", *options, argument="flags")


@pytest.mark.parametrize(
    "options",
    [_WIDEST, ("-DGS_REAL_BITS=32",), ("-DGS_LANES=1",)],
    ids=["packs", "packs of floats", "scalars"],
)
def test_power_of_step_control(options, compiler, tmp_path):
    _run(compiler, tmp_path, "power", "-O1", *options)


@pytest.mark.parametrize(
    "options",
    [_WIDEST, ("-DGS_REAL_BITS=32",), ("-DGS_LANES=1",)],
    ids=["packs", "packs of floats", "scalars"],
)
def test_linear_systems(options, compiler, tmp_path):
    _run(compiler, tmp_path, "linear", "-O0", *options)


def test_arguments_that_go_on_from_each_other(compiler, tmp_path):
    _run(compiler, tmp_path, "chains", "-O0")


# Whether the adjoint keeps the arguments of the stages or sums them up again, as on a GPU.
@pytest.mark.parametrize(
    "flag", ["-DGS_REAL_BITS=64", "-DGS_REAL_BITS=32", "-DGS_KEEP_BOTH_BELOW=0"]
)
def test_explicit_rk(flag, compiler, tmp_path):
    _run(compiler, tmp_path, "explicit_rk", "-O0", flag)


@pytest.mark.slow
def test_loops(compiler, tmp_path):
    printed = {
        lanes: _run(compiler, tmp_path, "loops", "-O0", f"-DGS_LANES={lanes}").splitlines()
        for lanes in (1, 2, 4, 8)
    }
    # Where the arguments of the stages are summed up again, as on a GPU, they have the same bits.
    again = _run(compiler, tmp_path, "loops", "-O0", "-DGS_LANES=1", "-DGS_KEEP_BOTH_BELOW=0")
    assert again.splitlines() == printed[1]
    # Packs add up a step's contributions to a parameter first, single lanes add each at once.
    of_scalars = [line for line in printed[1] if not line.startswith(("sum ", "ct_sigma "))]
    assert len(of_scalars) == 15
    for lanes in (2, 4, 8):
        lines = dict.fromkeys(printed[lanes])
        assert all(line in printed[2] for line in lines if not line.startswith("sum "))
        assert all(line in lines for line in of_scalars[-5:])
    assert all(line in printed[2] for line in of_scalars)
    sums = {
        lanes: [float(line.split()[-1]) for line in lines if line.startswith("sum ")]
        for lanes, lines in printed.items()
    }
    assert len(sums[1]) == 3
    for lanes in (2, 4, 8):
        # Some 500 trajectories of 50 steps: rounding adds up to far less than this.
        assert sums[lanes] == pytest.approx(sums[1], rel=1e-11)


# ---- What the host and the headers must agree about ---------------------------------------------


@pytest.fixture(scope="module")
def layout(compiler, tmp_path_factory) -> dict[str, int]:
    """Sizes in bytes, places in words and codes, by what the program calls them."""
    text = _run(compiler, tmp_path_factory.mktemp("csrc"), "arguments", "-O0")
    return {name: int(number) for name, number in re.findall(r"^(.*) (\d+)$", text, re.MULTILINE)}


def test_status_codes(layout):
    codes = {
        "successful": _results.SUCCESSFUL,
        "max_steps_reached": _results.MAX_STEPS_REACHED,
        "step_size_underflow": _results.STEP_SIZE_UNDERFLOW,
        "nonfinite": _results.NONFINITE,
        "event": _results.EVENT,
    }
    assert {name: layout[f"status {name}"] for name in codes} == codes


class Free(gs.ODESystem):
    """No parameters at all."""

    def vector_field(self, t, y):
        return -y


@pytest.fixture
def launched(monkeypatch):
    """The arguments of the kernels that would be launched."""
    collected: list[ArgumentList] = []

    def launch(kernel, arguments, lanes, **_):
        del kernel, lanes
        collected.append(arguments)
        return [jnp.zeros(like.shape, like.dtype) for like in arguments.outputs]

    monkeypatch.setattr(jobs, "launch", launch)
    monkeypatch.setattr(gs.HostCPU, "compile_unit", lambda self, unit: None)
    monkeypatch.setattr(gs.HostCPU, "unavailable", lambda self, question: None)
    return collected


@pytest.mark.parametrize(
    ("system", "leaves", "wanted"),
    [(Free(), 0, 0), (LotkaVolterra(0.55, 0.028, 0.80, 0.024), 4, 4)],
    ids=["without leaves", "with leaves"],
)
def test_structures_are_packed_as_they_are_declared(system, leaves, wanted, launched, layout):
    def run(y0):
        trajectory = gs.solve(
            system,
            y0,
            t0=0.0,
            t1=1.0,
            ts=jnp.array([0.5, 1.0]),
            integrator=gs.Tsit5(),
            controller=gs.PIDController(1e-6, 1e-9),
            backend=gs.HostCPU(),
        )
        trajectory.replay()
        trajectory.loss_grad(jnp.sum, wrt=("system", "y0", "t0", "ts"))

    eqx.filter_eval_shape(run, jnp.ones(2))
    record, replay, *_, adjoint = launched

    def words(job: str, *counts: int) -> int:
        # What the structures are without leaves, and two words for each.
        bare = layout[f"{job} {' '.join('0' for _ in counts)}"] // 8 - 2 * len(counts)
        return bare + 2 * sum(max(count, 1) for count in counts)

    controller_leaves = 2  # the tolerances
    assert len(record.words) == words("record", leaves + controller_leaves)
    assert len(replay.words) == words("replay", leaves)
    assert len(adjoint.words) == words("adjoint", leaves, wanted)

    inputs, outputs = record.input_slots, record.output_slots
    assert inputs[0] == layout["word Record.y0"]
    assert outputs[0] == layout["word Record.y1"]
    assert layout["word Record.status"] in outputs
    assert inputs[-leaves - controller_leaves] == layout["word Record.leaves"]

    assert replay.input_slots[0] == layout["word Replay.y0"]
    assert layout["word Replay.status"] in replay.input_slots

    assert adjoint.input_slots[0] == layout["word Adjoint.t0"]
    assert adjoint.output_slots[0] == layout["word Adjoint.ct_y0"]
    assert layout["word Adjoint.partial"] in adjoint.output_slots
    if leaves:
        assert replay.input_slots[-leaves] == layout["word Replay.leaves"]
        assert adjoint.input_slots[-leaves] == layout["word Adjoint.leaves"]
        more = 2 * (leaves - 1)  # the program has one leaf
        assert adjoint.output_slots[-wanted] == layout["word Adjoint.ct_leaves"] + more
