"""Steps of training on the H200's machine model, policy by policy: docs/networks.md shows them.

No card is needed and nothing is measured: each step is planned, and its schedule is replayed on a
virtual clock.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import planning_networks
from benchmarks.pages import canvas
from benchmarks.pages.blocks import Block
from ooc_cudnn import networks
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.report.timeline import Course, Span, course_of, figure_of
from ooc_cudnn.network.tradeoff.curve import QUICK
from ooc_cudnn.units import format_bytes, format_seconds, parse_limit

NAME, PAGE = "network_steps", "docs/networks.md"
#: What a tensor may come to, as the table counts it.
MOVED = ("offloaded", "recomputed", "streamed")


class Case(NamedTuple):
    """A network of `ooc_cudnn.networks`, its batch, and a limit below what `keep` takes."""

    network: str
    batch: int
    limit: str

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}, {self.limit}"


RESNET = Case("resnet50", 256, "8GiB")
CASES = (RESNET, Case("vgg16", 256, "8GiB"))
SMALL = Case("resnet50", 8, "1GiB")
#: The policies that pictures show, of the first case.
DRAWN = ("offload", "remake")
#: What the record calls the table of the first case's best plan.
EXPLAINED = "explained"


def planned(case: Case, policy: str) -> LoweredStep:
    """Plan a step of a case for the machine that the page is about."""
    net, loss = getattr(networks, case.network)(batch=case.batch)
    limit = int(parse_limit(case.limit, name="limit") or 0)
    return planning_networks.planned(net.training_phases(loss), limit, policy)


def figures(lowered: LoweredStep, course: Course) -> dict[str, Any]:
    """What the table shows of a plan; `ok` if it keeps its limit and its word."""
    plan = lowered.plan
    held = int(course.held.sum(axis=0).max())
    return {
        "ok": held <= plan.device_bytes <= plan.memory_limit,
        "seconds": plan.seconds,
        "device_bytes": plan.device_bytes,
        "host_bytes": plan.host_bytes,
        "link_bytes": plan.bytes_in + plan.bytes_out,
        "micro_batches": plan.micro_batches,
        **{f: sum(each.nbytes for each in plan.fates if each.fate == f) for f in MOVED},
    }


def plain(course: Course) -> dict[str, Any]:
    """A course as plain values: microseconds, and of what is held MiB."""
    return {
        "title": course.title,
        "spans": [
            [span.stream, span.what, round(span.start * 1e6), round(span.stop * 1e6)]
            for span in course.spans
        ],
        "begins": [round(seconds * 1e6) for seconds in course.begins],
        "held": np.rint(course.held / 2**20).astype(int).tolist(),
        "limit_bytes": course.limit_bytes,
        "peak_bytes": course.peak_bytes,
    }


def course_from(drawn: Mapping[str, Any]) -> Course:
    """The course that `plain` wrote down."""
    spans = [Span(stream, what, a / 1e6, b / 1e6) for stream, what, a, b in drawn["spans"]]
    begins, held = np.array(drawn["begins"]) / 1e6, np.array(drawn["held"]) * 2**20
    return Course(drawn["title"], spans, begins, held, drawn["limit_bytes"], drawn["peak_bytes"])


def body(report: script.Report) -> None:
    for case in (SMALL,) if report.quick else CASES:
        for policy in QUICK:
            lowered = planned(case, policy)
            course = course_of(lowered)
            report.check(f"{case}: {policy}", figures(lowered, course))
            report.say(f"{case}: {policy} {format_seconds(lowered.plan.seconds)}")
            if case == RESNET and policy == "best":
                report.measure(EXPLAINED, lowered.plan.explain().splitlines(), spoken="kept")
            if case == RESNET and policy in DRAWN:
                report.measure(policy, plain(course), spoken="to be drawn")


# The page ----------------------------------------------------------------------------------------


def table(folder: Path = script.RESULTS) -> str:
    """Every policy of both networks, as simulated."""
    rows = []
    for name, row in load_record(NAME, folder)["checks"].items():
        case, policy = name.split(": ")
        moved = [f"{format_bytes(row[fate])} {fate}" for fate in MOVED if row[fate]]
        rows.append(
            (case, f"`{policy}`", ", ".join(moved) or "all kept", str(row["micro_batches"]),
             format_bytes(row["device_bytes"]), format_bytes(row["host_bytes"]),
             format_bytes(row["link_bytes"]), format_seconds(row["seconds"]))
        )  # fmt: skip
    head = ("network, limit", "policy", "maps", "micro-batches", "device", "host", "link", "step")
    return markdown(head, rows, align="lllr")


def explained(folder: Path = script.RESULTS) -> str:
    """What `NetworkPlan.explain` said of the first case."""
    lines = load_record(NAME, folder)["measurements"][EXPLAINED]
    return "\n".join(("```text", *lines, "```"))


BLOCKS = (Block(PAGE, "explain", explained), Block(PAGE, "policies", table))


def drawn(policy: str) -> dict[str, Any]:
    """The course of the first case by a policy."""
    return load_record(NAME)["measurements"][policy]


PICTURES = tuple(
    canvas.Picture(
        f"docs/images/networks/{policy}.png",
        partial(drawn, policy),
        lambda course: figure_of(course_from(course)),
    )
    for policy in DRAWN
)


main = partial(script.run, NAME, body, __doc__, needs_card=False)


if __name__ == "__main__":
    sys.exit(main())
