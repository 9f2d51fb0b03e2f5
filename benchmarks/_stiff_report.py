"""The results of stiff problems: the comparison at equal error, and a table."""

from typing import Any

from _report import ms

Report = dict[str, Any]
Cell = dict[str, Any]

_GRADIENTS = ("replay", "record_adjoint")
# A group of gradsolve, and that of Diffrax that computes the same.
_COUNTERPART = {"forward": "diffrax_forward", **dict.fromkeys(_GRADIENTS, "diffrax")}


def _same(cell: Cell, other: Cell) -> bool:
    return all(cell[key] == other[key] for key in ("problem", "dtype", "n"))


def compare(report: Report) -> None:
    """Adds the ratios of times: to Diffrax, and of gradients to the forward solve.

    `ratios` are at equal tolerance. In `ratios_at_equal_error` Diffrax's time is divided by that of
    the fastest run of gradsolve, at whichever tolerance, whose error is no larger than Diffrax's:
    nothing is interpolated, and the true ratio at equal error is at least this.
    """
    for cell in report["cells"]:
        timings = cell["timings"]
        cell["ratios"], cell["ratios_at_equal_error"], cell["to_forward"] = {}, {}, {}
        for group in _GRADIENTS:
            if group in timings and "forward" in timings:
                seconds = timings[group]["median_s"]
                cell["to_forward"][group] = seconds / timings["forward"]["median_s"]
        for group, theirs in _COUNTERPART.items():
            if theirs not in timings:
                continue
            seconds = timings[theirs]["median_s"]
            if group in timings:
                cell["ratios"][group] = seconds / timings[group]["median_s"]
            error = cell["errors"][theirs]
            able = [
                other
                for other in report["cells"]
                if _same(cell, other)
                and group in other["timings"]
                and other["errors"][group] <= error
            ]
            if able:
                best = min(able, key=lambda other: other["timings"][group]["median_s"])
                own = best["timings"][group]["median_s"]
                cell["ratios_at_equal_error"][group] = {
                    "ratio": seconds / own,
                    "rtol": best["rtol"],
                    "error": best["errors"][group],
                    "median_s": own,
                }


def progress(cell: Cell) -> str:
    """One line for what is known of a cell."""
    parts = [f"{cell['problem']} n {cell['n']} rtol {cell['rtol']:g}:"]
    for group, timing in cell["timings"].items():
        parts.append(f"{group} {ms(timing['median_s'])} ms ({cell['errors'][group]:.1e})")
    parts += [f"[{what}: {why}]" for what, why in cell["skipped"].items()]
    return "  ".join(parts)


_COLUMNS = (
    *("problem", "n", "rtol", "steps", "forward", "replay", "rec+adj"),
    *("replay/fwd", "rec+adj/fwd", "grad_err", "D_steps", "D_forward", "D_grad", "D_grad_err"),
    *("same_rtol:replay", "rec+adj", "equal_err:fwd", "replay", "rec+adj", "at_rtol"),
)


def table(report: Report) -> str:
    """Milliseconds, errors and ratios of all cells as aligned text."""
    rows = [list(_COLUMNS), *(_row(cell) for cell in report["cells"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [
        f"skipped: {cell['problem']} n {cell['n']} rtol {cell['rtol']:g}, {what}: {why}"
        for cell in report["cells"]
        for what, why in cell["skipped"].items()
    ]
    machine, versions = report["machine"], report["versions"]
    where = ", ".join(machine["gpus"]) or f"{machine['cpu']}, {machine['cores']} cores"
    note = (
        f"{report['benchmark']} on {where}; jax {versions['jax']}, diffrax {versions['diffrax']}\n"
        "milliseconds, medians; D: Diffrax's Kvaerno5; steps: most attempts of a trajectory\n"
        "same_rtol: Diffrax's time over gradsolve's; equal_err: over that of gradsolve's fastest\n"
        "run, at the tolerance in the last column (of rec+adj), whose error is no larger"
    )
    return "\n".join(["", note, "", *lines])


def _row(cell: Cell) -> list[str]:
    timings, errors, steps = cell["timings"], cell["errors"], cell["steps"]
    time = lambda group: ms(timings[group]["median_s"]) if group in timings else ""
    error = lambda group: f"{errors[group]:.1e}" if group in errors else ""
    number = lambda values, key: f"{values[key]:.4g}" if key in values else ""
    equal = cell["ratios_at_equal_error"]
    at_equal = lambda group: f"{equal[group]['ratio']:.4g}" if group in equal else ""
    at_rtol = f"{equal['record_adjoint']['rtol']:g}" if "record_adjoint" in equal else ""
    return [
        cell["problem"],
        str(cell["n"]),
        f"{cell['rtol']:g}",
        str(steps.get("gradsolve_max_attempts", "")),
        *map(time, ("forward", "replay", "record_adjoint")),
        *(number(cell["to_forward"], group) for group in _GRADIENTS),
        error("record_adjoint"),
        str(steps.get("diffrax_max_attempts", "")),
        *map(time, ("diffrax_forward", "diffrax")),
        error("diffrax"),
        *(number(cell["ratios"], group) for group in _GRADIENTS),
        *map(at_equal, ("forward", *_GRADIENTS)),
        at_rtol,
    ]
