"""Write the figures of the model's two pages: ``python -m benchmarks.model_page``.

docs/model-method.md has all of them; docs/performance-model.md what a user needs to know.

Its tables are made of the shipped profile of the H200 and of what `planning` and `model_accuracy`
stored in benchmarks/results. `--check` says whether the page is up to date, and changes nothing; a
test runs it.
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import accuracy_summary, common, model_accuracy, planning
from benchmarks.figures.words import markdown
from benchmarks.readme import checks, fill
from ooc_cudnn.bench.environment import ROOT
from perfmodel import Line, MachineModel, shipped

PAGE = ROOT / "docs" / "model-method.md"
USERS_PAGE = ROOT / "docs" / "performance-model.md"
#: Said of a call where the figures of `accuracy_summary` are grouped.
GROUPS = {
    "by_placement": "slowest operand in {} memory",
    "by_binding_stage": "bound by {}",
    "by_stage_of_replay": "{} alone, busy seconds of the replay",
}
VERDICTS = {True: "held", False: "**missed**", None: ""}
PLACES = {"disk": "slowest operand in a file", "device": "all operands on the device"}


def markers(name: str) -> tuple[str, str]:
    """Return the lines between which a section stands."""
    begin = f"<!-- {name}: begin (python -m benchmarks.model_page) -->"
    return begin, f"<!-- {name}: end -->"


# The link and the host ---------------------------------------------------------------------------


def machine_section(model: MachineModel) -> str:
    """Return the constants of a machine, and how well its lines fit where that is known."""
    lines = [
        "| copies | rate | beta | a row that lies apart | a narrow one | residual | held out |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for direction, words in (("copy_in", "in from"), ("copy_out", "out to")):
        copies: Mapping[str, Line] = getattr(model.transfer, direction)
        for placement, line in copies.items():
            rows, near = (line.terms.get(name) for name in ("rows", "near"))
            shares = _shares(model, [f"{direction}/{placement}"])
            lines.append(
                f"| {words} {_files(placement)} | {1e-9 / line.alpha:.1f} GB/s "
                f"| {line.beta * 1e6:.0f} us "
                f"| {f'{rows * 1e9:.3g} ns' if rows else ''} "
                f"| {f'{near * 1e9:.3g} ns' if near else ''} | {shares} |"
            )
    lines += ["", "| both ways at once | in takes | out takes |", "|---|---:|---:|"]
    for pair, slower in model.transfer.slowdowns.items():
        source, target = map(_files, pair.split("/"))
        lines.append(
            f"| in from {source}, out to {target} "
            f"| {slower.copy_in:.2f} times as long | {slower.copy_out:.2f} times as long |"
        )
    kinds = {
        "convolutions": [key for key in model.compute.lines if key.startswith("convolution")],
        "passes over device memory": [
            key for key in model.compute.lines if not key.startswith("convolution")
        ],
    }
    if any(key in model.quality for key in model.compute.lines):
        lines += ["", "| computing, the median line | residual | held out |", "|---|---:|---:|"]
        lines += [f"| {name} | {_shares(model, keys)} |" for name, keys in kinds.items()]
    if "copies" in model.losses:
        lost = model.losses["copies"]
        lines += ["", f"Computing loses {lost:.3g} s for each second of a copy beside it."]
    said = [
        f"{direction.replace('copy_', '')} {_files(placement)} {line.beta * 1e3:.2g} ms and "
        f"{line.alpha * 2**20 * 1e3:.2g} ms a MiB, "
        f"{line.terms.get('others', 0.0) * 1e3:.2g} ms for each other in flight"
        for name, line in model.transfer.latency.items()
        for direction, placement in [name.split("/")]
    ]
    latency = f"; staging's latency: {', '.join(said)}" if said else ""
    parts = {
        "a call": model.call_seconds,
        "each operand beyond two": model.operand_seconds,
        "a step": model.step_seconds,
        "one that threads stage": model.staged_step_seconds,
        "a launch": model.launch_seconds,
    }
    measured = (f"{name} {seconds * 1e6:.0f} us" for name, seconds in parts.items() if seconds)
    host = f"The host: {', '.join(measured)}{latency}."
    return "\n".join([*lines, "", *textwrap.wrap(f"{host}{_calibrated(model)}", 100)])


def _calibrated(model: MachineModel) -> str:
    """How a model was made, where it says so: from how many samples, how long, how steady."""
    if "calibration_seconds" not in model.facts:
        return ""
    drifts = [
        f"{name.removeprefix('drift_of_').removesuffix('_share').replace('_', ' ')} "
        f"{value * 100:+.1f} %"
        for name, value in model.facts.items()
        if name.startswith("drift_of_")
    ]
    drift = f", drift from first to last: {', '.join(drifts)}" if drifts else ""
    count = sum(len(held.work) for held in model.samples.values())
    seconds = model.facts["calibration_seconds"]
    return f" Calibrated in {seconds:.0f} s{drift}; {count} samples are kept."


def _files(placement: str) -> str:
    return "files" if placement == "disk" else placement


def _shares(model: MachineModel, keys: list[str]) -> str:
    """Medians of the two errors over lines, as cells; empty where they are unknown.

    The residual is that of the line on the samples that are kept, where there are any.
    """
    residuals, held_out = [], []
    for key in keys:
        quality = model.quality.get(key, {})
        if key in model.samples:
            errors = model.samples[key].residuals(_line(model, key))
            residuals.append(statistics.median(abs(errors).tolist()))
        elif "residual" in quality:
            residuals.append(quality["residual"])
        held_out += [quality["held_out_error"]] if "held_out_error" in quality else []
    cells = [_percent(statistics.median(known)) if known else "" for known in (residuals, held_out)]
    return " | ".join(cells)


def _line(model: MachineModel, key: str) -> Line:
    if not key.startswith("copy_"):
        return model.compute.lines[key]
    direction, placement = key.split("/")
    copies: Mapping[str, Line] = getattr(model.transfer, direction)
    return copies[placement]


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


# The searches ------------------------------------------------------------------------------------


def search_section(result: Mapping[str, Any]) -> str:
    """Return how near the best the searches come, and how long planning takes."""
    found = result["measurements"]
    lines = ["| found, over the best of all splits | median | nine of ten | worst |"]
    lines.append("|---|---:|---:|---:|")
    for name in ("ordered", "local", "guided"):
        spread = found[f"{name}: found over best"]
        cells = " | ".join(f"{spread[at]:.3f}" for at in ("0.5", "0.9", "1.0"))
        lines.append(f"| {name} search | {cells} |")
    searches = [
        held["median"] for name, held in found.items() if name.endswith(": seconds of a search")
    ]
    problems = found["guided: found over best"]["problems"]
    lines += [
        "",
        f"Over {problems} calls. A search takes {min(searches) * 1e3:.1f} to "
        f"{max(searches) * 1e3:.1f} ms, the median of each of the {len(searches)} functions in "
        "the quietest of three rounds, on one core:",
        "",
        "| | ms | bound | |",
        "|---|---:|---:|---|",
    ]
    for claim in result["claims"]:
        if claim["unit"] == "ms":
            limit = "" if claim["bound"] is None else f"{claim['relation']} {claim['bound']:.0f}"
            verdict = VERDICTS[claim["holds"]]
            lines.append(f"| {claim['name']} | {claim['value']:.1f} | {limit} | {verdict} |")
    return "\n".join(lines)


# Accuracy ----------------------------------------------------------------------------------------


def stored(folder: Path = common.RESULTS) -> list[Mapping[str, Any]]:
    """Return what `model_accuracy` stored, on cards first; quick runs tell nothing."""
    paths = sorted(folder.glob(f"{model_accuracy.NAME}_*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(
        (result for result in results if not result["quick"]),
        key=lambda result: result["environment"]["device"] == "host",
    )


def calls_stored(folder: Path = common.RESULTS) -> list[Mapping[str, Any]]:
    """Return those with calls."""
    return [result for result in stored(folder) if result["measurements"].get("calls")]


def machine_of(result: Mapping[str, Any]) -> str:
    """Return what a result was measured on."""
    where = result["environment"]
    if where["gpu"]:
        return str(where["gpu"]["name"])
    return f"host device, {where['cores']} cores"


def accuracy_section(results: list[Mapping[str, Any]]) -> str:
    """Return the claims of every result, and the errors by placement, bound and stage."""
    return "\n\n".join(part for result in results for part in _accuracy(result))


def _accuracy(result: Mapping[str, Any]) -> list[str]:
    where, drawn = result["environment"], result["measurements"]["drawn with"]
    said = (
        f"**{machine_of(result)}**, on {where['date'][:10]} at `{where['commit'][:7]}`, "
        f"seed {drawn['seed']}:"
    )
    lines = ["| | measured | bound | |", "|---|---:|---:|---|"]
    for claim in result["claims"]:
        name, value, bound = claim["name"], claim["value"], claim["bound"]
        limit = "" if bound is None else f"{claim['relation']} {shown(name, bound)}"
        verdict = VERDICTS[claim["holds"]]
        lines.append(f"| {name.replace('_', ' ')} | {shown(name, value)} | {limit} | {verdict} |")
    parts = [said, "\n".join(lines)]
    if "summary" in result["measurements"]:
        parts.append(_grouped(result["measurements"]["summary"]))
    return parts


def _grouped(summary: Mapping[str, Any]) -> str:
    lines = ["| errors | calls | median | 90th percentile | predicted / measured |"]
    lines.append("|---|---:|---:|---:|---:|")
    for group, words in GROUPS.items():
        for name, count, median, tail, _, ratio in accuracy_summary.rows(summary.get(group, {})):
            label = words.format(name.replace("_", " "))
            if group == "by_placement":
                label = PLACES.get(name, label)
            cells = (label, count, median.replace("%", " %"), tail.replace("%", " %"), ratio)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(name: str, value: float) -> str:
    """Return the figure of a claim: an error in percent, a ratio, or a count.

    Examples
    --------
    >>> shown("error of the replay, median", 0.0512), shown("calls measured", 60.0)
    ('5.1 %', '60')
    >>> shown("chosen split over best, median", 1.0042)
    '1.004'
    """
    if name.startswith("error"):
        return _percent(value)
    return f"{value:.3f}" if " over " in name else f"{value:.0f}"


def promise_section(results: list[Mapping[str, Any]]) -> str:
    """Return how far off predictions and choices were, a row for each kind of machine."""
    claims: dict[str, dict[str, Mapping[str, Any]]] = {}
    for result in results:
        known = claims.setdefault(machine_of(result), {})
        known |= {claim["name"]: claim for claim in result["claims"]}
    columns = {
        "error of the closed_form, median": "half of the calls are predicted within",
        "error of the closed_form, 90th percentile": "nine of ten within",
        "chosen split over best, worst": "the chosen cut took, at worst, times the best cut",
    }
    rows = [
        (
            machine,
            *(
                shown(name, known[name]["value"]).replace(" %", "%") if name in known else ""
                for name in columns
            ),
        )
        for machine, known in claims.items()
    ]
    return markdown(("machine", *columns.values()), rows)


def sections(folder: Path = common.RESULTS) -> dict[str, str]:
    """Return the sections by the names in their markers."""
    planned = json.loads((folder / f"{planning.NAME}.json").read_text(encoding="utf-8"))
    return {
        "machine": machine_section(shipped("h200")),
        "searches": search_section(planned),
        "accuracy": accuracy_section(stored(folder)),
    }


def main(argv: list[str] | None = None) -> int:
    """Write or check the sections; return the exit status."""
    check = checks(__doc__, argv)
    found = [fill(PAGE, *markers(name), text, check=check) for name, text in sections().items()]
    promise = promise_section(stored())
    found.append(fill(USERS_PAGE, *markers("promise"), promise, check=check))
    return max(found)


if __name__ == "__main__":
    sys.exit(main())
