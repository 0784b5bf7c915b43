"""Plans of training steps beside what no plan can beat: docs/planning-networks.md shows them.

No card is needed and nothing is measured: steps are planned for an H200's machine model, under
shares of the memory that keeping everything takes, and replayed on a virtual clock.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages.blocks import Block
from ooc_cudnn import networks
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown
from ooc_cudnn.engines.target import Target
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.cost.compute_seconds import layout_seconds
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.lowering.lower import LoweredStep
from ooc_cudnn.network.search.pass_pipeline import canonicalize
from ooc_cudnn.network.search.plan_step import plan_step, plan_with_bound
from ooc_cudnn.tensor import ORDERS
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import shipped

NAME, MACHINE, PAGE = "planning_networks", "h200", "docs/planning-networks.md"
PLENTY = 2**40
RATIOS = (0.8, 0.6, 0.4, 0.3, 0.2)


class Case(NamedTuple):
    """A network of `ooc_cudnn.networks`, and its batch."""

    network: str
    batch: int

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}"


CASES = (
    Case("resnet50", 768),
    Case("vgg16", 256),
    Case("unet", 1),
    Case("unet_3d", 2),
    Case("vgg19", 256),
    Case("resnet152", 128),
    Case("densenet121", 128),
    Case("googlenet", 128),
)
SMALL = (Case("alexnet", 8),)


def constraints(limit: int) -> PlanConstraints:
    """The machine that these pages are about, under a limit."""
    return PlanConstraints(Target(shipped(MACHINE), limit, limit, ORDERS, None, overlap=True), {})


def planned(step: Step, limit: int, policy: str = "best", **asked: int) -> LoweredStep:
    """The plan of a step under a limit, and what is lowered by it."""
    return plan_step("training_step", step, constraints(limit), policy=policy, **asked)


def body(report: script.Report) -> None:
    for case in SMALL if report.quick else CASES:
        net, loss = getattr(networks, case.network)(batch=case.batch)
        step = net.training_phases(loss)
        orders = layout_seconds(canonicalize(step, "best"), shipped(MACHINE), ORDERS)
        report.measure(
            f"{case}: computing", {"in one order": dict(orders.throughout), "each": orders.each}
        )
        keep_all = planned(step, PLENTY, "keep", micro_batches=1).plan.device_bytes
        for ratio in (1.5, *(RATIOS[1:2] if report.quick else RATIOS)):
            limit, begin = int(ratio * keep_all), time.process_time()
            try:
                plan = planned(step, limit).plan
            except PlanInfeasibleError as error:
                report.note(f"{case}, {ratio}: {error}")
                continue
            between = time.process_time()
            plan = plan_with_bound(plan, step, constraints(limit))
            figures = {
                "ok": plan.device_bytes <= limit
                and (
                    max(plan.bands, plan.batch_slices) > 1
                    or plan.seconds >= (plan.bound_seconds or 0.0) * (1 - 1e-6)
                ),
                "limit_bytes": limit,
                "device_bytes": plan.device_bytes,
                "seconds": plan.seconds,
                "bound_seconds": plan.bound_seconds,
                "compute_seconds": plan.compute_seconds,
                "taken": plan.taken,
                "micro_batches": plan.micro_batches,
                "bands": plan.bands,
                "slabs": plan.batch_slices,
                "planning_seconds": between - begin,
                "bounding_seconds": time.process_time() - between,
            }
            report.check(f"{case}: {ratio}", figures)
            report.say(f"{case}, {ratio}: {plan.taken}, {format_seconds(plan.seconds)}")
            report.write()


# The page ----------------------------------------------------------------------------------------


def table(folder: Path = script.RESULTS) -> str:
    """Every network under every share of the memory that keeping everything takes."""
    rows, plenty = [], {}
    for name, row in load_record(NAME, folder)["checks"].items():
        case, ratio = name.split(": ")
        if float(ratio) > 1:
            plenty[case] = row
        most = plenty[case]
        over = [row[key] / most[key] - 1 for key in ("seconds", "bound_seconds")]
        above = row["seconds"] / row["bound_seconds"] - 1
        parts = f", {row['micro_batches']} micro-batches" * (row["micro_batches"] > 1)
        parts += f", {row['slabs']} slabs" * (row["slabs"] > 1)
        rows.append(
            (case, "all" if float(ratio) > 1 else ratio, format_bytes(row["limit_bytes"]),
             row["taken"] + parts, format_seconds(row["seconds"]), f"{100 * over[0]:.1f} %",
             format_seconds(row["bound_seconds"]), f"{100 * over[1]:.1f} %", f"{100 * above:.1f} %",
             f"{row['planning_seconds']:.1f} s", f"{row['bounding_seconds']:.1f} s")
        )  # fmt: skip
    head = ("network", "of keep-all", "limit", "plan", "step", "over all memory", "bound",
            "over all memory", "above the bound", "planned in", "bound in")  # fmt: skip
    return markdown(head, rows, align="lrrlrrrrrrr")


BLOCKS = (Block(PAGE, "plans", table),)


main = partial(script.run, NAME, body, __doc__, needs_card=False)


if __name__ == "__main__":
    sys.exit(main())
