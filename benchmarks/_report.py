"""Results: JSON with machine and versions, a table, and a log-log plot."""

import argparse
import datetime
import json
import math
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from _problems import PROBLEMS

import gradsolve as gs
from gradsolve._fused.host import available_threads

Report = dict[str, Any]
Cell = dict[str, Any]

_LABELS = {
    "eager": "gradsolve solve, from Python",
    "jit": "gradsolve solve, in jit",
    "replay_eager": "gradsolve replay gradient, from Python",
    "replay_jit": "gradsolve replay gradient, in jit",
    "record_adjoint_jit": "gradsolve record + adjoint, in jit",
    "xla": "gradsolve on plain JAX, in jit",
    "xla_record_adjoint": "gradsolve record + adjoint on plain JAX, in jit",
    "diffrax": "Diffrax",
}

# Errors that differ by less than this factor count as equal.
_EQUAL_ERRORS = 1.2


def header(name: str, argv: Sequence[str], commit: str | None) -> Report:
    """What every result says about the run."""
    return {
        "benchmark": name,
        "command": _command(name, argv),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": _versions(commit),
        "environment": {
            name: os.environ[name]
            for name in ("XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "JAX_PLATFORMS")
            if name in os.environ
        },
    }


def start(name: str, argv: Sequence[str], arguments: argparse.Namespace) -> Report:
    """A report without cells."""
    return {
        **header(name, argv, arguments.commit),
        "backend": arguments.backend,
        "order": arguments.order,
        "kernel_cache": _kernel_cache(arguments.cache_dir),
        "memory_limit": arguments.memory_limit,
        "load_average": {"start": load()},
        "cells": [],
    }


def finish(report: Report) -> None:
    """Adds what is known only at the end."""
    report["load_average"]["end"] = load()
    _compare_at_equal_error(report)


def write(report: Report, path: Path) -> None:
    """Writes the report so far; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    draft.replace(path)


def _kernel_cache(path: Path | None) -> str:
    if path is None:
        return "the user's"
    return "filled" if path.is_dir() and any(path.iterdir()) else "empty"


def _command(name: str, argv: Sequence[str]) -> str:
    # Where a result was written says nothing about it; the name of the file does.
    shown = [os.path.basename(word) if os.path.isabs(word) else word for word in argv]
    return shlex.join(["python", f"benchmarks/{name}.py", *shown])


def load() -> list[float] | None:
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    devices = [device.device_kind for device in jax.devices()]
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "host_threads": available_threads(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "jax_platform": jax.default_backend(),
        "gpus": [] if jax.default_backend() == "cpu" else devices,
    }


def _versions(commit: str | None) -> dict[str, str | None]:
    packages = ("jax", "jaxlib", "diffrax", "equinox", "numpy")
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "gradsolve": gs.__version__,
        "gradsolve_commit": commit or _git_commit(),
    }


def _git_commit() -> str | None:
    def git(*words: str) -> str:
        root = Path(__file__).parent
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "../gradsolve")
        return git("rev-parse", "HEAD") + (" with uncommitted changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _compare_at_equal_error(report: Report) -> None:
    """Adds to every cell by what factor Diffrax is slower when it reaches gradsolve's error.

    The time that Diffrax needs for that error is read off the line through its (error, time)
    points of all tolerances in logarithms; outside the points nothing is claimed, unless the
    errors at equal tolerance are equal anyhow.
    """
    measured = [cell for cell in report["cells"] if "diffrax" in cell["errors"]]
    for cell in measured:
        same = [
            other
            for other in measured
            if all(other[key] == cell[key] for key in ("problem", "dtype", "n"))
        ]
        points = sorted(
            (
                math.log(other["errors"]["diffrax"]),
                math.log(other["timings"]["diffrax"]["median_s"]),
            )
            for other in same
            if other["errors"]["diffrax"] > 0
        )
        cell["ratios_at_equal_error"] = {}
        for group, error in cell["errors"].items():
            if group == "diffrax" or error <= 0:
                continue
            ratio = _equal_error_ratio(cell, group, error, points)
            if ratio is not None:
                cell["ratios_at_equal_error"][group] = ratio


def _equal_error_ratio(
    cell: Cell, group: str, error: float, points: list[tuple[float, float]]
) -> float | None:
    seconds = cell["timings"][group]["median_s"]
    own = cell["errors"]["diffrax"]
    if own > 0 and max(error / own, own / error) < _EQUAL_ERRORS:
        return cell["timings"]["diffrax"]["median_s"] / seconds
    target = math.log(error)
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if x0 <= target <= x1 and x1 > x0:
            return math.exp(y0 + (y1 - y0) * (target - x0) / (x1 - x0)) / seconds
    return None


def progress(cell: Cell) -> str:
    """One line for a finished cell."""
    parts = [f"{cell['problem']} {cell['dtype']} rtol {cell['rtol']:g} n {cell['n']}:"]
    parts += [f"{group} {ms(t['median_s'])} ms" for group, t in cell["timings"].items()]
    parts += [f"[{what}: {reason}]" for what, reason in cell["skipped"].items()]
    return "  ".join(parts)


def ms(seconds: float) -> str:
    """Milliseconds to three digits."""
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


# Column of the table, and whether it is aligned to the left.
_COLUMNS = {
    "problem": True,
    "dtype": True,
    "rtol": False,
    "n": False,
    "order": True,
    "backend": True,
    "steps": False,
    "what": True,
    "median_ms": False,
    "min_ms": False,
    "max_ms": False,
    "ratio": False,
    "quartiles": False,
    "equal_error": False,
    "vs_xla": False,
    "rel_error": False,
    "compile_s": False,
}


def table(report: Report) -> str:
    """Times, ratios, errors and compile times of all cells as aligned text."""
    rows: list[list[str]] = [list(_COLUMNS)]
    for cell in report["cells"]:
        where = [cell["problem"], cell["dtype"], f"{cell['rtol']:g}", str(cell["n"])]
        where += [cell["order"], cell.get("backend", {}).get("ran", "")]
        where.append(str(cell["steps"].get("gradsolve_max_attempts", "")))
        for group, timing in cell["timings"].items():
            setting = cell["settings"].get(group)
            row = [*where, f"{group} ({setting})" if setting else group]
            row += [ms(timing[key]) for key in ("median_s", "min_s", "max_s")]
            ratio = cell["ratios"].get(group)
            row.append("" if ratio is None else f"{ratio['of_medians']:.2f}")
            spread = ratio and f"{ratio['quartile_1']:.2f}..{ratio['quartile_3']:.2f}"
            row.append(spread or "")
            equal = cell.get("ratios_at_equal_error", {}).get(group)
            row.append("" if equal is None else f"{equal:.2f}")
            xla = cell["ratios_to_xla"].get(group)
            row.append("" if xla is None else f"{xla['of_medians']:.2f}")
            error = cell["errors"].get(group)
            row.append("" if error is None else f"{error:.1e}")
            row.append(f"{timing['compile_s']:.1f}")
            rows.append(row)
            where = [""] * len(where)
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    skipped = [
        f"skipped: {cell['problem']} {cell['dtype']} rtol {cell['rtol']:g} n {cell['n']}, {what}: "
        f"{reason}"
        for cell in report["cells"]
        for what, reason in cell["skipped"].items()
    ]
    machine, versions = report["machine"], report["versions"]
    where_run = ", ".join(machine["gpus"]) or f"{machine['cpu']}, {machine['cores']} cores"
    note = (
        f"{report['benchmark']} on {where_run}; jax {versions['jax']}, diffrax "
        f"{versions['diffrax']}\n"
        "ratio: Diffrax's median time over gradsolve's; quartiles: of that ratio, pair by pair\n"
        "equal_error: the same with Diffrax at gradsolve's error; steps: most attempts\n"
        "vs_xla: the time of the same call on gradsolve's plain JAX over that of the fused kernels"
    )
    return "\n".join(["", note, "", *lines, *skipped])


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    return [
        word.ljust(width) if left else word.rjust(width)
        for left, word, width in zip(_COLUMNS.values(), row, widths, strict=True)
    ]


def plot(report: Report, path: Path) -> str:
    """Draws time against ensemble size, one panel per problem; says what became of it."""
    try:
        import matplotlib
    except ImportError:
        return "No plot: matplotlib is not installed."
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells = [cell for cell in report["cells"] if cell["timings"]]
    names = [name for name in PROBLEMS if any(cell["problem"] == name for cell in cells)]
    if not names:
        return "No plot: nothing was measured."
    groups = [group for group in _LABELS if any(group in cell["timings"] for cell in cells)]
    series = sorted({(cell["dtype"], cell["rtol"]) for cell in cells}, reverse=True)
    styles = ("-", "--", ":", "-.")
    figure, panels = plt.subplots(
        1, len(names), figsize=(4 * len(names) + 1, 4.2), squeeze=False, layout="constrained"
    )
    for panel, name in zip(panels[0], names, strict=True):
        for color, group in enumerate(groups):
            for style, (dtype, rtol) in enumerate(series):
                points = sorted(
                    (cell["n"], cell["timings"][group]["median_s"])
                    for cell in cells
                    if (cell["problem"], cell["dtype"], cell["rtol"]) == (name, dtype, rtol)
                    and group in cell["timings"]
                )
                if points:
                    panel.loglog(
                        *zip(*points, strict=True),
                        styles[style % len(styles)],
                        marker="o",
                        markersize=3,
                        color=f"C{color}",
                        label=f"{_LABELS[group]}, {dtype} {rtol:g}",
                    )
        panel.set_title(PROBLEMS[name].title)
        panel.set_xlabel("trajectories")
        panel.grid(True, which="major", alpha=0.3)
    panels[0][0].set_ylabel("seconds, median")
    handles: dict[str, Any] = {}
    for panel in panels[0]:
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, line)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=2, fontsize="small"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return f"Plot: {path.name}"
