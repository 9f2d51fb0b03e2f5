"""Work and precision: lines of text, the fastest integrator for each error, and a plot."""

from pathlib import Path
from typing import Any

Report = dict[str, Any]
Curve = dict[str, Any]

_TARGETS = tuple(10.0**-k for k in range(2, 11))
_WHAT = {"forward": "end state", "gradient": "gradient"}


def fastest(report: Report) -> list[dict[str, Any]]:
    """For each problem, job and error: the fastest run whose error is no larger."""
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(curve["problem"] for curve in report["curves"]):
        runs = [
            (curve["integrator"], point)
            for curve in report["curves"]
            if curve["problem"] == name and not curve["integrator"].startswith("Diffrax")
            for point in curve["points"]
        ]
        for job in _WHAT:
            for target in _TARGETS:
                able = [run for run in runs if run[1]["errors"][job] <= target]
                if able:
                    key = lambda run, job=job: run[1]["timings"][job]["median_s"]
                    integrator, point = min(able, key=key)
                    found.append(
                        {
                            "problem": name,
                            "job": job,
                            "error": target,
                            "integrator": integrator,
                            "rtol": point["rtol"],
                            "median_s": point["timings"][job]["median_s"],
                        }
                    )
    return found


def lines(curve: Curve) -> str:
    """The points of one curve, one a line."""
    text = [f"{curve['problem']}, {curve['integrator']}"]
    for point in curve["points"]:
        words = [f"  rtol {point['rtol']:.0e}: {point['max_attempts']:6d} steps"]
        for job, timing in point["timings"].items():
            error = point["errors"][job]
            words.append(f"{job} {1e3 * timing['median_s']:9.3f} ms, error {error:.1e}")
        text.append("  ".join(words))
    if curve["skipped"]:
        text.append("  rtol {rtol:.0e}: {reason}".format(**curve["skipped"]))
    return "\n".join(text)


def table(report: Report) -> str:
    """The fastest integrators, a row for each problem and job and a column for each error."""
    rows = [["fastest for an error of", *(f"{target:.0e}" for target in _TARGETS)]]
    entries = {(e["problem"], e["job"], e["error"]): e for e in report["fastest"]}
    for problem, job in dict.fromkeys((e["problem"], e["job"]) for e in report["fastest"]):
        row = [f"{problem}, {_WHAT[job]}"]
        for target in _TARGETS:
            entry = entries.get((problem, job, target))
            row.append(entry and f"{entry['integrator']} {1e3 * entry['median_s']:.3g}" or "")
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(["", *text, "milliseconds, medians; nothing is interpolated"])


def plot(report: Report, titles: dict[str, str], path: Path) -> str:
    """Draws time against error: forward solves above, gradients below; says what became of it."""
    try:
        import matplotlib
    except ImportError:
        return "No plot: matplotlib is not installed."
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(curve["integrator"] for curve in report["curves"]))
    colors = plt.get_cmap("tab20")
    figure, panels = plt.subplots(
        2,
        len(titles),
        figsize=(3.2 * len(titles) + 0.5, 6.8),
        squeeze=False,
        layout="constrained",
    )
    for column, (name, title) in enumerate(titles.items()):
        for row, job in enumerate(_WHAT):
            panel = panels[row][column]
            for curve in report["curves"]:
                points = [point for point in curve["points"] if job in point["errors"]]
                if curve["problem"] != name or not points:
                    continue
                panel.loglog(
                    [point["errors"][job] for point in points],
                    [1e3 * point["timings"][job]["median_s"] for point in points],
                    marker="o",
                    markersize=3,
                    color=colors(names.index(curve["integrator"]) % 20),
                    label=curve["integrator"],
                )
            panel.invert_xaxis()
            panel.grid(True, which="major", alpha=0.3)
            panel.set_title(title if row == 0 else "")
            panel.set_xlabel(f"relative error of the {_WHAT[job]}")
    panels[0][0].set_ylabel("forward solve, ms")
    panels[1][0].set_ylabel("record + adjoint, ms")
    handles: dict[str, Any] = {}
    for panel in panels.flat:
        for line, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, line)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=6, fontsize="small"
    )
    figure.savefig(path, dpi=75)
    plt.close(figure)
    return f"Plot: {path.name}"
