"""How a slide scales over cards, predicted: `ooc_cudnn.dask.plan`, from one to hundreds.

No card is needed and nothing is measured. Blocks are priced by an H100's machine model; the network
is 10 gigabit Ethernet. What a store reads was measured by `benchmarks.dask_scale`: here either each
machine has a store as fast as that one, or all of them share one that is four times as fast.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import dask.array as da

import ooc_cudnn.dask as ooc
from benchmarks.dask_scale import labels_of
from benchmarks.pages.scaling import CARDS, NAME, ONE, OWN
from examples.slide_cluster import u_net
from ooc_cudnn.bench import script
from ooc_cudnn.bench.record import load_record
from perfmodel import shipped

MACHINE = "h100"
SIDE, CHUNK, WIDTH = 262144, 8192, 32
MEMORY_LIMIT = 48 * 2**30
#: A store that all share reads so many times as fast as one machine's own.
SHARED = 4


def body(report: script.Report) -> None:
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


main = partial(script.run, NAME, body, __doc__, needs_card=False)


if __name__ == "__main__":
    sys.exit(main())
