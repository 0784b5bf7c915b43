"""How a slide scales over cards, predicted: `ooc_cudnn.dask.plan`, from one to hundreds.

No card is needed and nothing is measured. Blocks are priced by an H100's machine model; the network
is 10 gigabit Ethernet. What a store reads was measured by `benchmarks.dask_scale`: here either each
machine has a store as fast as that one, or all of them share one that is four times as fast.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.pages.blocks import Block
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record, markdown
from ooc_cudnn.units import format_seconds
from perfmodel import shipped

NAME, MACHINE = "cluster_scaling", "h100"
CARDS = (1, 2, 8, 32, 128, 512)
OWN, ONE = "a store each", "one store for all"
SIDE, CHUNK, WIDTH = 262144, 8192, 32
MEMORY_LIMIT = 48 * 2**30
#: A store that all share reads so many times as fast as one machine's own.
SHARED = 4


def body(report: script.Report) -> None:
    import dask.array as da

    import ooc_cudnn.dask as ooc
    from benchmarks.dask_scale import labels_of
    from examples.slide_cluster import u_net

    side, chunk, width = (512, 256, 2) if report.quick else (SIDE, CHUNK, WIDTH)
    slide = da.zeros((1, 3, side, side), chunks=(1, 3, chunk, chunk), dtype="uint8")
    net, output = u_net(slide.shape, width)
    labels = partial(labels_of, net, output)
    read = rate()
    report.measure("bytes a second that one machine reads", read)
    for count in CARDS[:2] if report.quick else CARDS:
        on = [ooc.Worker("", "cuda:0", "cuda", MEMORY_LIMIT, shipped(MACHINE), "")] * count
        alone = ooc.plan(labels, slide, on, sides=(), store=read)
        for name, machines in ((OWN, count), (ONE, SHARED)):
            plan = replace(alone, store_seconds=alone.store_seconds / machines)
            figures = {"seconds": plan.seconds, "starting": plan.starting_seconds, **plan.parts}
            report.measure(f"{count}, {name}", figures, spoken=plan.explain().splitlines()[0])
            report.check(f"contents: {count}, {name}", {"ok": plan.blocks == (side // chunk) ** 2})
    report.claim("blocks", (side // chunk) ** 2)


def rate(folder: Path = script.RESULTS) -> float:
    """Bytes of a slide that one machine's worker read a second, by the record."""
    found = load_record("dask_scale", folder)
    return float(3 * 65536**2 / found["measurements"]["1: reading alone"])


# The page ----------------------------------------------------------------------------------------


def section(folder: Path = script.RESULTS) -> str:
    """Return the table: seconds over cards, how much faster than one, and what binds."""
    found = load_record(NAME, folder)["measurements"]
    of_store = ((name, "times as fast", "bound by") for name in (OWN, ONE))
    rows = [_row(found, count) for count in CARDS]
    return markdown(("cards", *chain.from_iterable(of_store)), rows, align="rrrlrrl")


def _row(plans: Any, count: int) -> list[str]:
    row = [f"{count}"]
    for name in (OWN, ONE):
        plan, alone = plans[f"{count}, {name}"], plans[f"1, {name}"]
        parts = {each: seconds for each, seconds in plan.items() if each != "seconds"}
        times = alone["seconds"] / plan["seconds"]
        row += [format_seconds(plan["seconds"]), f"{times:.1f}", max(parts, key=parts.__getitem__)]
    return row


BLOCKS = (Block("docs/scale.md", "scaling", section),)


main = partial(script.run, NAME, body, __doc__, needs_card=False)


if __name__ == "__main__":
    sys.exit(main())
