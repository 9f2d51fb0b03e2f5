"""Generated kernels against kernels written by hand, on a GPU. See README.md beside this file.

Lorenz by Tsit5; the kernels alone, without the call from Python. `--compile-only` needs no GPU.
"""

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _gradsolve
import _report
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _kernels import Gpu, Launch, TimedLaunches, compile_cuda, event_seconds
from _problems import ORDERS, PROBLEMS, split

import gradsolve as gs
from gradsolve._build import build_cubin, cubin_resources
from gradsolve._fused.cuda import architecture_of, block_size

_SOURCE = Path(__file__).with_name("lorenz.cu")
_PROBLEM = PROBLEMS["lorenz"]
_JOBS = ("record", "replay", "adjoint")
# How the hand-written step size control raises an error to the power -1/5.
_POWERS = {"pow": 0, "single": 1}
_REALS = {"float64": "double", "float32": "float"}
_BLOCKS = (32, 64, 128)
_MAX_STEPS = 4096
_SPARE_ROWS = 8  # a mesh of other roundings may have a step more
# The largest differences, relative to the largest entry: the hand-written code rounds otherwise.
_TOLERANCES = {
    "float64": {"states": 1e-10, "replayed": 1e-10, "gradient": 1e-9, "counts": 0.01},
    "float32": {"states": 1e-3, "replayed": 1e-4, "gradient": 1e-3, "counts": 0.1},
}
_TARGET_SECONDS = 0.01


def _handwritten(dtype: str, power: str, architecture: str) -> bytes:
    options = [f"-DREAL={_REALS[dtype]}", f"-DPOWER={_POWERS[power]}"]
    return compile_cuda(_SOURCE.read_text(), architecture, options)


def _registers(cubin: bytes) -> dict[str, dict[str, int]]:
    return {
        name: {"registers": each.registers, "local_bytes": each.local_bytes}
        for name, each in cubin_resources(cubin).items()
    }


def resources(dtype: str, architecture: str) -> dict[str, Any]:
    """Registers of all kernels, which need no GPU to be compiled."""
    system, y0 = _PROBLEM.ensemble(2, dtype, ORDERS[0])
    controller = gs.PIDController(rtol=1e-6, atol=1e-9)
    generated = {}
    for job in _JOBS:
        text = gs.kernel_source(
            system,
            y0,
            job=job,
            dt0=_PROBLEM.dt0 if job == "record" else None,
            controller=controller,
            in_axes=gs.InAxes(system=eqx.if_array(0), y0=0),
            backend=gs.CUDA(),
        )
        generated[job] = _registers(build_cubin(text, architecture))
    by_hand = {power: _registers(_handwritten(dtype, power, architecture)) for power in _POWERS}
    return {"generated": generated, "handwritten": by_hand}


class Comparison:
    """One ensemble: both sets of kernels on the same inputs."""

    def __init__(self, gpu: Gpu, n: int, dtype: str, rtol: float, order: str) -> None:
        self._gpu, self.n, self.dtype = gpu, n, dtype
        self.rtol, self.atol = rtol, rtol * 1e-3
        self.system, self.y0 = _PROBLEM.ensemble(n, dtype, order)
        self.options = _gradsolve.options(_PROBLEM, rtol, self.atol, "cuda", 2**35)

    # ---- Generated -------------------------------------------------------------------------------

    def run_generated(self, launches: TimedLaunches) -> dict[str, float]:
        """Seconds of each kernel."""
        seconds = {}
        launches.clear()
        self.trajectory = gs.solve(self.system, self.y0, max_steps=_MAX_STEPS, **self.options)
        jax.block_until_ready(self.trajectory.ys)
        seconds["record"] = launches.seconds["record"]
        launches.clear()
        jax.block_until_ready(self.trajectory.replay())
        seconds["replay"] = launches.seconds["replay"]
        launches.clear()
        self.gradient = jax.block_until_ready(
            _gradsolve.replay_gradient(self.trajectory, self.system, self.y0)
        )
        seconds["adjoint"] = launches.seconds["adjoint"]
        if "replay" in launches.seconds:
            seconds["replay_checkpoints"] = launches.seconds["replay"]
        if not hasattr(self, "_record_and_adjoint"):
            attempts = int(jnp.max(self.trajectory.stats.num_steps))
            self._record_and_adjoint = _gradsolve.record_and_adjoint(
                self.system, self.y0, attempts, self.options
            )
        launches.clear()
        jax.block_until_ready(self._record_and_adjoint())
        seconds["record_checkpoints"] = launches.seconds["record"]
        return seconds

    # ---- Written by hand -------------------------------------------------------------------------

    def prepare(self, architecture: str) -> None:
        """Uploads the inputs and the generated mesh; makes the launches."""
        gpu, n, real = self._gpu, self.n, np.dtype(self.dtype)
        (rho,) = jax.tree.leaves(split(self.system)[0])
        mesh = np.asarray(self.trajectory.mesh.times)
        rows = mesh.shape[0] + _SPARE_ROWS
        room = {"state": 3 * n, "times": rows * n, "checkpoints": 3 * rows * n, "lane": n}
        self._inputs = {
            "rho": gpu.upload(np.asarray(rho)),
            "y0": gpu.upload(np.asarray(self.y0).T),
            "mesh": gpu.upload(mesh),
            "accepted": gpu.upload(np.asarray(self.trajectory.stats.num_accepted_steps, np.int32)),
            "ct_y1": gpu.upload(2 * np.asarray(self.trajectory.ys).T),
        }
        kinds = {
            "y1": "state",
            "times": "times",
            "checkpoints": "checkpoints",
            "y1_replayed": "state",
            "checkpoints_replayed": "checkpoints",
            "ct_y0": "state",
            "ct_rho": "lane",
        }
        self._outputs = {
            name: gpu.allocate(room[kind] * real.itemsize) for name, kind in kinds.items()
        }
        self._outputs |= {
            name: gpu.allocate(n * 4) for name in ("num_accepted", "num_rejected", "status")
        }
        at = {**self._inputs, **self._outputs, "none": 0}
        t1 = real.type(_PROBLEM.t1)
        near_end = float(t1)
        for _ in range(100):
            near_end = float(np.nextafter(real.type(near_end), real.type(0)))
        window = (0.0, float(t1), near_end, _PROBLEM.dt0, self.rtol, self.atol)

        def record(checkpoints: str) -> tuple[str, str, list[Any]]:
            names = ("rho", "y0", "y1", "times", "num_accepted", "num_rejected", "status")
            words = [n, _MAX_STEPS, *window, *[at[name] for name in (*names, checkpoints)]]
            return "record", "2q6d8Q", words

        def replay(checkpoints: str) -> tuple[str, str, list[Any]]:
            names = ("rho", "y0", "mesh", "accepted", "y1_replayed", checkpoints)
            return "replay", "q6Q", [n, *[at[name] for name in names]]

        names = ("rho", "mesh", "accepted", "checkpoints_replayed", "ct_y1", "ct_y0", "ct_rho")
        kernels = {
            "record": record("none"),
            "record_checkpoints": record("checkpoints"),
            "replay": replay("none"),
            "replay_checkpoints": replay("checkpoints_replayed"),
            "adjoint": ("adjoint", "q7Q", [n, *[at[name] for name in names]]),
        }
        self.launches: dict[tuple[str, str, int], Launch] = {}
        for power in _POWERS:
            functions = gpu.functions(_handwritten(self.dtype, power, architecture), _JOBS)
            for kernel, (job, layout, words) in kernels.items():
                if job != "record" and power != "pow":
                    continue  # only the recording has a step size to choose
                for threads in _BLOCKS:
                    key = (kernel, power if job == "record" else "", threads)
                    self.launches[key] = Launch(gpu, functions[job], n, threads, layout, words)

    def run_handwritten(self, repeats: int) -> dict[tuple[str, str, int], float]:
        """Seconds of each kernel, way to raise to a power, and block size."""
        gpu = self._gpu
        return {
            key: event_seconds(gpu.driver, gpu.stream, launch, repeats)
            for key, launch in self.launches.items()
        }

    def free(self) -> None:
        self._gpu.free([*self._inputs.values(), *self._outputs.values()])

    # ---- Results ---------------------------------------------------------------------------------

    def differences(self) -> dict[str, float]:
        """By how much the results differ; for counts the share of trajectories."""
        gpu, n, real = self._gpu, self.n, np.dtype(self.dtype)
        kernels = [("record_checkpoints", "pow"), ("replay_checkpoints", ""), ("adjoint", "")]
        for kernel, power in kernels:
            self.launches[kernel, power, 128]()
        state = lambda name: gpu.download(self._outputs[name], (3, n), real).T
        count = lambda name: gpu.download(self._outputs[name], (n,), np.int32)
        ct_rho = gpu.download(self._outputs["ct_rho"], (n,), real)
        ys, stats = np.asarray(self.trajectory.ys), self.trajectory.stats
        by_rho, by_y0 = (np.asarray(leaf) for leaf in jax.tree.leaves(self.gradient))
        equal = (count("num_accepted") == np.asarray(stats.num_accepted_steps)) & (
            count("num_rejected") == np.asarray(stats.num_rejected_steps)
        )
        return {
            "states": _relative(state("y1"), ys),
            "replayed": _relative(state("y1_replayed"), ys),
            "gradient": max(_relative(ct_rho, by_rho), _relative(state("ct_y0"), by_y0)),
            "counts": float(np.mean(~equal)),
            "failed": float(np.mean(count("status") != 0)),
        }


def _relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want)) / np.max(np.abs(want)))


def cell(
    architecture: str, launches: TimedLaunches, case: Comparison, rounds: int
) -> dict[str, Any]:
    """Times both sets of kernels in turn."""
    launches.repeats = 5
    estimate = case.run_generated(launches)
    case.prepare(architecture)
    repeats = int(np.clip(_TARGET_SECONDS / max(estimate.values()), 10, 200))
    launches.repeats = repeats
    case.run_handwritten(repeats)
    generated: dict[str, list[float]] = {}
    by_hand: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(rounds):
        for kernel, seconds in case.run_generated(launches).items():
            generated.setdefault(kernel, []).append(seconds)
        for key, seconds in case.run_handwritten(repeats).items():
            by_hand.setdefault(key, []).append(seconds)
    differences = case.differences()
    case.free()

    kernels: dict[str, Any] = {}
    for kernel, seconds in generated.items():
        own = statistics.median(seconds)
        others = {
            key[1:]: statistics.median(values)
            for key, values in by_hand.items()
            if key[0] == kernel
        }
        best = min(others, key=lambda key: others[key])
        with_pow = min(value for key, value in others.items() if key[0] != "single")
        kernels[kernel] = {
            "generated_s": own,
            "generated_min_s": min(seconds),
            "generated_max_s": max(seconds),
            "handwritten_s": {
                f"{power} {threads}".strip(): s for (power, threads), s in others.items()
            },
            "best": f"{best[0]} {best[1]}".strip(),
            "ratio": own / others[best],
            "ratio_with_pow": own / with_pow,
        }
    tolerances = _TOLERANCES[case.dtype]
    wrong = [name for name, limit in tolerances.items() if not differences[name] <= limit]
    return {
        "dtype": case.dtype,
        "rtol": case.rtol,
        "n": case.n,
        "repeats": repeats,
        "rounds": rounds,
        "mean_accepted": float(jnp.mean(case.trajectory.stats.num_accepted_steps)),
        "block_of_generated": block_size(case.n),
        "kernels": kernels,
        "differences": differences,
        "beyond_tolerance": wrong,
    }


def _table(each: dict[str, Any]) -> str:
    lines = [
        f"\n{each['dtype']} rtol {each['rtol']:g} n {each['n']} {each['order']}, "
        f"{each['mean_accepted']:.1f} steps; times in us, per block size",
    ]
    for kernel, row in each["kernels"].items():
        hand = "  ".join(f"{key}: {1e6 * value:.1f}" for key, value in row["handwritten_s"].items())
        lines.append(
            f"  {kernel:18s} generated {1e6 * row['generated_s']:9.1f}  ratio {row['ratio']:.3f} "
            f"(with pow {row['ratio_with_pow']:.3f})  by hand {hand}"
        )
    lines.append(
        f"  differences {each['differences']}  beyond: {each['beyond_tolerance'] or 'none'}"
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--n", nargs="+", type=int, default=[2048, 32768, 524288])
    add("--dtype", nargs="+", choices=list(_REALS), default=["float64"])
    add("--rtol", nargs="+", type=float, default=[1e-6])
    add("--order", nargs="+", choices=ORDERS, default=[ORDERS[0]])
    add("--rounds", type=int, default=5)
    add("--compile-only", metavar="ARCHITECTURE", default=None, help="such as sm_90")
    add("--out", type=Path, default=None)
    add("--commit", default=None, help="of gradsolve, where git cannot be asked")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_enable_x64", True)
    architecture = arguments.compile_only
    if architecture is None:
        if jax.default_backend() != "gpu":
            parser.error("this needs a GPU; without one, --compile-only sm_90 shows the registers")
        architecture = architecture_of(jax.devices()[0])
    report = _report.header("handwritten", argv, arguments.commit)
    report["architecture"] = architecture
    report["resources"] = {dtype: resources(dtype, architecture) for dtype in arguments.dtype}
    report["cells"] = []
    for dtype, found in report["resources"].items():
        print(dtype, "generated", found["generated"], "\n  by hand", found["handwritten"])
    if arguments.out is not None:
        _report.write(report, arguments.out)
    if arguments.compile_only is not None:
        return 0
    gpu = Gpu()
    chosen = (arguments.dtype, arguments.rtol, arguments.n, arguments.order)
    with TimedLaunches() as launches:
        for dtype, rtol, n, order in itertools.product(*chosen):
            case = Comparison(gpu, n, dtype, rtol, order)
            each = {"order": order, **cell(architecture, launches, case, arguments.rounds)}
            report["cells"].append(each)
            print(_table(each), flush=True)
            if arguments.out is not None:
                _report.write(report, arguments.out)
    return 1 if any(each["beyond_tolerance"] for each in report["cells"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
