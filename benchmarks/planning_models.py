"""Seconds of planning models of today at real size: docs/planning-networks.md shows them.

No card is needed and no data: each model is captured under bfloat16
autocast, and planned for an H200's machine model under shares of the memory that keeping
everything takes. Each model has a process of its own, and its rows join those that are stored.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.models_of_today import MODELS, Model, make_undrawn
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.environment import environment
from ooc_cudnn.bench.record import load_record, markdown
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.call_cache import forget_calls
from ooc_cudnn.torch.calls import calls_of
from ooc_cudnn.torch.capture.stand_ins import fakes_for
from ooc_cudnn.torch.limit import record_call
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.planning import specs_of
from ooc_cudnn.torch.runtime.ready_model import ReadyModel
from ooc_cudnn.units import format_bytes, format_seconds

NAME, MACHINE, PAGE = "planning_models", "h200", "docs/planning-networks.md"
PLENTY, ALL = 2**42, "all"
SHARES = ("1/2", "1/4", "1/8")
#: What `--quick` plans, as tiny twins.
SMALL = ("wavenet", "resenc_l")


def captured(
    module: torch.nn.Module, shapes: tuple[tuple[int, ...], ...], limit: int
) -> ReadyModel:
    """Capture a training step of a model under a limit."""
    with torch.autocast("cpu", torch.bfloat16):
        fakes = tuple(fakes_for(module, shapes))
        kind, call = record_call(module, module.forward, fakes, {}, Options(limit))
        ready, _ = calls_of(module).of(("plan", kind), call).find(call)
    assert isinstance(ready, ReadyModel)
    return ready


def figures(
    module: torch.nn.Module, model: Model, limit: int, *, is_tiny: bool
) -> dict[str, object]:
    """Capture and plan a step under a limit: seconds of CPU, and what the plan says.

    A limit that has no plan says which is the least that has one.
    """
    begin = time.process_time()
    ready = captured(module, model.tiny_shapes if is_tiny else model.shapes, limit)
    between = time.process_time()
    specs = specs_of(ready, "pinned", "device")
    found = {"limit_bytes": limit, "capture_seconds": between - begin}
    forget_calls()  # as in a process that plans nothing else
    try:
        plan = ready.step.planned_for(specs, MACHINE)
    except PlanInfeasibleError as error:
        said = {"ok": True, "smallest_bytes": error.smallest_bytes}
    else:
        said = {
            "ok": plan.device_bytes <= limit,
            "device_bytes": plan.device_bytes,
            "seconds": plan.seconds,
            "compute_seconds": plan.compute_seconds,
            "taken": plan.taken,
            "micro_batches": plan.micro_batches,
            "bands": plan.bands,
            "slabs": plan.batch_slices,
        }
    return {**said, **found, "planning_seconds": time.process_time() - between}


def body(report: script.Report) -> None:
    asked = report.arguments
    (name,) = asked.model
    report.checks |= stored(Path(asked.output))
    model, is_tiny = MODELS[name], report.quick
    module = (model.tiny() if is_tiny else make_undrawn(model)).train()
    captured(torch.nn.Conv2d(3, 3, 3), ((1, 3, 8, 8),), PLENTY)  # imports, once
    commit, keep_all = environment("host")["commit"], 0
    for share in (ALL, *asked.share):
        top, _, below = share.partition("/")
        limit = PLENTY if share == ALL else keep_all * int(top) // int(below or 1)
        row = figures(module, model, limit, is_tiny=is_tiny)
        if share == ALL:
            keep_all, best = row["device_bytes"], row["seconds"]
        if "seconds" in row:
            row["over_all"] = row["seconds"] / best
        report.check(f"{name}: {share}", {**row, "commit": commit})
        said = f"{row['over_all']:.3f} of all kept" if "seconds" in row else "no plan"
        report.say(
            f"{name}, {share}: {format_bytes(row.get('device_bytes', limit))}, {said}, captured in "
            f"{row['capture_seconds']:.1f} s, planned in {row['planning_seconds']:.1f} s of CPU"
        )
        others = {key: old for key, old in stored(Path(asked.output)).items()
                  if key.rpartition(": ")[0] != name}  # fmt: skip
        report.checks |= others  # processes beside this one have written
        report.checks = dict(sorted(report.checks.items(), key=place))
        report.write()


def place(check: tuple[str, object]) -> tuple[int, int]:
    """The place of a row: by models, and from all memory to the least."""
    name, _, share = check[0].rpartition(": ")
    return [*MODELS].index(name), (ALL, *SHARES).index(share) if share in SHARES else 0


def stored(folder: Path) -> dict[str, dict[str, object]]:
    """The rows that are stored, of models that there still are."""
    if not (folder / f"{NAME}.json").exists():
        return {}
    checks = load_record(NAME, folder)["checks"]
    return {name: row for name, row in checks.items() if name.rpartition(": ")[0] in MODELS}


# The page ----------------------------------------------------------------------------------------


def table(folder: Path = script.RESULTS) -> str:
    """Every model: seconds of its capture and of planning it, and how much longer steps take."""
    found, rows = stored(folder), []
    for name in MODELS:
        of = {share: found.get(f"{name}: {share}") for share in (ALL, *SHARES)}
        if of[ALL] is None:
            continue
        plenty, shapes = of[ALL], ["x".join(map(str, shape)) for shape in MODELS[name].shapes]
        planned = [f"{row['planning_seconds']:.1f}" if row else NOTHING for row in of.values()]
        over = [
            NOTHING if row is None else f"{row['over_all']:.2f}" if "over_all" in row
            else f"needs {format_bytes(row['smallest_bytes'])}"
            for row in list(of.values())[1:]
        ]  # fmt: skip
        rows.append(
            (f"{name}: {', '.join(shapes)}", format_bytes(plenty["device_bytes"]),
             format_seconds(plenty["seconds"]), f"{plenty['capture_seconds']:.1f}", *planned, *over)
        )  # fmt: skip
    head = ("model", "all kept", "step", "capture, s", "planning, s: all", *SHARES,
            *(f"times all kept: {share}" for share in SHARES))  # fmt: skip
    return markdown(head, rows) if rows else NOT_MEASURED


BLOCKS = (Block(PAGE, "models", table),)


# The command line ---------------------------------------------------------------------------------


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--share", nargs="*", choices=SHARES, default=list(SHARES))
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each model")


def main(argv: list[str] | None = None) -> int:
    """Run a model here, or several in a process each; 1 if one failed or did not end in time."""
    words = sys.argv[1:] if argv is None else argv
    asked = script.parse(__doc__, words, needs_card=False, more=options)
    if asked.quick:
        asked.model = [name for name in SMALL if name in asked.model]
    if len(asked.model) == 1:
        return script.run(NAME, body, __doc__, words, needs_card=False, more=options)
    failed = []
    for name in asked.model:
        if not MODELS[name].is_here:
            print(f"{name}: {', '.join(MODELS[name].libraries)} is not installed", flush=True)
            continue
        command = [sys.executable, "-m", "benchmarks.planning_models", *words, "--model", name]
        if script.run_apart(command, asked.timeout):
            failed.append(name)
    print(f"failed, or not in time: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
