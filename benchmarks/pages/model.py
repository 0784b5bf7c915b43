"""docs/model-method.md has the model's figures; docs/performance-model.md what a user needs.

They are of the shipped profile of the H200, and of what `planning` and `model_accuracy` stored.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import accuracy_summary, model_accuracy, planning
from benchmarks.pages.blocks import Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import join_paragraphs, markdown
from ooc_cudnn.bench.record import load_record as record
from perfmodel import Line, MachineModel, shipped
from perfmodel.data_sheets import SHEETS

#: Said of a call where the figures of `accuracy_summary` are grouped.
GROUPS = {
    "by_placement": "slowest operand in {} memory",
    "by_binding_stage": "bound by {}",
    "by_stage_of_replay": "{} alone, busy seconds of the replay",
}
#: Columns of a table of claims: left, right, right, left.
CLAIM = "lrrl"
VERDICTS = {True: "held", False: "**missed**", None: ""}
PLACES = {"disk": "slowest operand in a file", "device": "all operands on the device"}


# The link and the host ---------------------------------------------------------------------------


def machine_section(model: MachineModel) -> str:
    """Return the constants of a machine, and how well its lines fit where that is known."""
    host = f"The host: {', '.join(_host(model))}{_latency(model)}.{_calibrated(model)}"
    parts = [_copies(model), _both_ways(model), _computing(model)]
    if (lost := model.losses.get("copies")) is not None:
        parts.append(f"Computing loses {lost:.3g} s for each second of a copy beside it.")
    return join_paragraphs((*parts, "\n".join(textwrap.wrap(host, 100))))


def _copies(model: MachineModel) -> str:
    head = "copies", "rate", "beta", "a row that lies apart", "residual", "held out"
    rows = []
    for direction, words in (("copy_in", "in from"), ("copy_out", "out to")):
        copies: Mapping[str, Line] = getattr(model.transfer, direction)
        for placement, line in copies.items():
            of_row = line.terms.get("rows")
            rows.append(
                (
                    f"{words} {_files(placement)}",
                    f"{1e-9 / line.alpha:.1f} GB/s",
                    f"{line.beta * 1e6:.0f} us",
                    f"{of_row * 1e9:.3g} ns" if of_row else "",
                    *_shares(model, [f"{direction}/{placement}"]),
                )
            )
    return markdown(head, rows)


def _both_ways(model: MachineModel) -> str:
    rows = []
    for pair, slower in model.transfer.slowdowns.items():
        source, target = map(_files, pair.split("/"))
        times = (f"{each:.2f}x" for each in (slower.copy_in, slower.copy_out))
        rows.append((f"in from {source}, out to {target}", *times))
    return markdown(("both ways at once", "in takes", "out takes"), rows)


def _computing(model: MachineModel) -> str:
    if not any(key in model.quality for key in model.compute.lines):
        return ""
    kinds: dict[str, list[str]] = {"convolutions": [], "passes over device memory": []}
    for key in model.compute.lines:
        is_convolution = key.startswith("convolution")
        kinds["convolutions" if is_convolution else "passes over device memory"].append(key)
    rows = [(name, *_shares(model, keys)) for name, keys in kinds.items()]
    return markdown(("computing, the median line", "residual", "held out"), rows)


def _host(model: MachineModel) -> Iterator[str]:
    """What the host takes, of what is known."""
    parts = {
        "a call": model.call_seconds,
        "each operand beyond two": model.operand_seconds,
        "a step": model.step_seconds,
        "one that threads stage": model.staged_step_seconds,
        "a launch": model.launch_seconds,
    }
    return (f"{name} {seconds * 1e6:.0f} us" for name, seconds in parts.items() if seconds)


def _latency(model: MachineModel) -> str:
    said = []
    for name, line in model.transfer.latency.items():
        direction, placement = name.split("/")
        said.append(
            f"{direction.replace('copy_', '')} {_files(placement)} {line.beta * 1e3:.2g} ms and "
            f"{line.alpha * 2**20 * 1e3:.2g} ms a MiB, "
            f"{line.terms.get('others', 0.0) * 1e3:.2g} ms for each other in flight"
        )
    return f"; staging's latency: {', '.join(said)}" if said else ""


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


def _shares(model: MachineModel, keys: list[str]) -> list[str]:
    """Medians of the two errors over lines, as cells; empty where they are unknown.

    The residual is that of the line on the samples that are kept, where there are any.
    """
    residuals, held_out = [], []
    for key in keys:
        quality = model.quality.get(key, {})
        if key in model.samples:
            errors = model.samples[key].residuals(model.lines[key])
            residuals.append(statistics.median(abs(errors).tolist()))
        elif "residual" in quality:
            residuals.append(quality["residual"])
        held_out += [quality["held_out_error"]] if "held_out_error" in quality else []
    return [_percent(statistics.median(known)) if known else "" for known in (residuals, held_out)]


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


# The search --------------------------------------------------------------------------------------


def search_section(result: Mapping[str, Any]) -> str:
    """Return how near the best the splits are that are found, and how long planning takes."""
    judged = result["measurements"]["problems judged"]
    about = f"Over {judged} calls, and of planning on one core:"
    rows = [
        _claim_row(claim, claim["name"], shown.format, "{:g}".format)
        for claim in result["claims"]
        for shown in ("{:.1f} ms" if claim["unit"] == "ms" else "{:.3f}",)
    ]
    return join_paragraphs((about, markdown(("", "", "bound", ""), rows, align=CLAIM)))


def _claim_row(
    claim: Mapping[str, Any],
    name: str,
    value: Callable[[float], str],
    bound: Callable[[float], str],
) -> tuple[str, ...]:
    """A claim's name, what was measured, its bound and whether that is kept, as cells."""
    limit = "" if claim["bound"] is None else f"{claim['relation']} {bound(claim['bound'])}"
    return name, value(claim["value"]), limit, VERDICTS[claim["holds"]]


# Accuracy ----------------------------------------------------------------------------------------


def stored(folder: Path = script.RESULTS) -> list[Mapping[str, Any]]:
    """Return what `model_accuracy` stored, on cards first; quick runs tell nothing."""
    paths = sorted(folder.glob(f"{model_accuracy.NAME}_*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted(
        (result for result in results if not result["quick"]),
        key=lambda result: result["environment"]["device"] == "host",
    )


def calls_stored(folder: Path = script.RESULTS) -> list[Mapping[str, Any]]:
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
    rows = []
    for claim in result["claims"]:
        form = partial(shown, claim["name"])
        rows.append(_claim_row(claim, claim["name"].replace("_", " "), form, form))
    parts = [said, markdown(("", "measured", "bound", ""), rows, align=CLAIM)]
    if "summary" in result["measurements"]:
        parts.append(_grouped(result["measurements"]["summary"]))
    return parts


def _grouped(summary: Mapping[str, Any]) -> str:
    rows = []
    for group, words in GROUPS.items():
        for name, count, median, tail, _, ratio in accuracy_summary.rows(summary.get(group, {})):
            label = words.format(name.replace("_", " "))
            if group == "by_placement":
                label = PLACES.get(name, label)
            rows.append((label, count, median.replace("%", " %"), tail.replace("%", " %"), ratio))
    head = ("errors", "calls", "median", "90th percentile", "predicted / measured")
    return markdown(head, rows)


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

    def cell(known: Mapping[str, Mapping[str, Any]], name: str) -> str:
        return shown(name, known[name]["value"]).replace(" %", "%") if name in known else ""

    rows = [(who, *(cell(known, name) for name in columns)) for who, known in claims.items()]
    return markdown(("machine", *columns.values()), rows)


# Cards that nobody measured ----------------------------------------------------------------------


def cards_section() -> str:
    """Return the figures of data sheets from which profiles are scaled, a row for each."""
    head = (
        "`machine=`", "memory", "its bandwidth", "half types", "TF32", "float32", "float64",
        "link each way", "from memory, not looked up",
    )  # fmt: skip
    rows = [
        (
            f"`{sheet.name}`",
            f"{sheet.memory_gib:g} GiB",
            f"{sheet.memory_gb_s:g} GB/s",
            f"{sheet.half:g}" + ", float16 alone" * (not sheet.has_bfloat16),
            f"{sheet.tf32:g}" if sheet.tf32 else "as float32",
            f"{sheet.float32:g}",
            f"{sheet.float64:g}",
            f"{sheet.link_gb_s:g} GB/s",
            ", ".join(FIGURES[name] for name in sheet.unverified),
        )
        for sheet in SHEETS.values()
    ]
    return markdown(head, rows)


#: What a page calls the figures of a sheet.
FIGURES = {
    "memory_gib": "memory", "half": "half types", "tf32": "TF32", "float32": "float32",
    "float64": "float64", "link_gb_s": "link", "l2_mb": "L2", "host_gb_s": "host memory",
}  # fmt: skip

METHOD = "docs/model-method.md"
BLOCKS = (
    Block(METHOD, "machine", lambda: machine_section(shipped("h200"))),
    Block(METHOD, "searches", lambda: search_section(record(planning.NAME))),
    Block(METHOD, "accuracy", lambda: accuracy_section(stored())),
    Block("docs/performance-model.md", "promise", lambda: promise_section(stored())),
    Block("docs/performance-model.md", "cards", cards_section),
)
