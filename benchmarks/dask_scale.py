"""A slide through a U-Net from Zarr to Zarr, on one card and on two: `ooc_cudnn.dask`.

The slide is written first, chunk by chunk, without compression; then it is labelled by one worker a
card, once for each number of cards. Labels around chunks' corners are compared with those of one
call on a part of the slide. On the host (`--quick`) two workers share it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import key_split
from distributed import Client, get_task_stream

import ooc_cudnn.dask as ooc
from examples.slide_cluster import tissue, u_net
from ooc_cudnn.bench import script
from ooc_cudnn.bench.timing import Timing
from ooc_cudnn.dask.workers import THREADS

NAME = "dask_scale"
#: Sites around a corner of chunks: what one call is made of, and what of it is compared. The
#: network's reach is 22 sites.
AROUND, COMPARED = 128, 48
#: Labels that may differ: of scores that are equal but for rounding.
TIES = 1e-3
#: What dask may take of a block of one second.
BESIDE = 0.03


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--side", type=int, default=65536, help="rows and columns of the slide")
    parser.add_argument("--chunk", type=int, default=4096, help="of a chunk")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--limit", default="16GiB", help="device memory of a worker")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each number of cards")
    parser.add_argument("--threads", type=int, default=THREADS, help="of a worker")


def body(report: script.Report) -> None:
    asked = report.arguments
    side, chunk, width = asked.side, asked.chunk, asked.width
    counts = asked.cards
    if report.quick:
        side, chunk, width, counts = 512, 256, 2, [2]
    folder = Path(script.folder_of(asked)) / "dask_scale.zarr"
    samples: dict[int, list[float]] = {}
    for count in counts:
        options = {"device": asked.device, "machine": asked.machine, "memory_limit": asked.limit}
        if not asked.cuda:
            options |= {"memory_limit": "256MiB"}
        with (
            ooc.cluster(
                count, threads_per_worker=asked.threads, **options, dashboard_address=":0"
            ) as local,
            Client(local) as client,
        ):
            if not samples:
                _write_slide(report, folder, side, chunk)
            slide = da.from_zarr(str(folder), component="slide")
            net, output = u_net(slide.shape, width)
            labels = labels_of(net, output, slide)
            begin = time.perf_counter()
            for worker in client.scheduler_info()["workers"]:
                client.compute(_corners(labels), workers=[worker], sync=True)
            report.measure(f"{count}: first blocks, with their plans", time.perf_counter() - begin)
            begin = time.perf_counter()
            client.compute(slide.map_blocks(_corner, chunks=(1, 3, 1, 1)), sync=True)
            reading = time.perf_counter() - begin
            report.measure(f"{count}: reading alone", reading)
            for repeat in range(1 if report.quick else asked.repeats):
                shutil.rmtree(folder / "labels", ignore_errors=True)
                begin = time.perf_counter()
                with get_task_stream(client) as stream:
                    ooc.to_zarr(labels, folder, component="labels", compressors=None)
                samples.setdefault(count, []).append(time.perf_counter() - begin)
                if repeat == 0:
                    tell_tasks(report, count, samples[count][0], stream.data, labels.npartitions)
            timing = Timing(tuple(samples[count]))
            report.measure(f"{count}: seconds", timing, spoken=str(timing))
            report.claim(f"{count}: megapixels a second", side * side / timing.median / 1e6)
            if asked.cuda:
                cards = ooc.workers(client)
                rate = slide.nbytes / reading
                plan = ooc.plan(partial(labels_of, net, output), slide, cards, sides=(), store=rate)
                report.measure(f"{count}: plan", plan.parts, spoken=plan.explain())
                report.claim(f"{count}: predicted / measured", plan.seconds / timing.median)
        report.check(f"{count}: contents", _compared(folder, net, output, chunk))
        report.write()
    if 1 in samples and 2 in samples:
        one, two = (median(samples[count]) for count in (1, 2))
        report.claim("two cards, times one", one / two, ">=", 1.8)
    shutil.rmtree(folder)


def labels_of(net: Any, output: Any, slide: da.Array) -> Any:
    return ooc.forward(net, output, slide=slide)


def _write_slide(report: script.Report, folder: Path, side: int, chunk: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    grid = da.core.normalize_chunks((1, 3, chunk, chunk), (1, 3, side, side), dtype="uint8")
    slide = da.map_blocks(tissue, chunks=grid, dtype="uint8", meta=np.empty((0,) * 4, "uint8"))
    begin = time.perf_counter()
    ooc.to_zarr(slide, folder, component="slide", compressors=None)
    report.measure("writing the slide", time.perf_counter() - begin)


def _corner(chunk: Any) -> Any:
    return chunk[:, :, :1, :1].copy()


def _corners(array: da.Array) -> list[da.Array]:
    """A block of each kind: what each worker plans, and cuDNN builds, before it is timed."""
    last = [count - 1 for count in array.numblocks]
    rows, columns = ({0, min(1, end), end} for end in last[2:])
    return [array.blocks[0, 0, row, column] for row in rows for column in columns]


def tell_tasks(report: script.Report, count: int, seconds: float, stream: Any, blocks: int) -> None:
    """What tasks of each kind took in one run, as dask recorded it."""
    spans: dict[str, list[tuple[float, float]]] = {}
    kinds: dict[str, list[float]] = {}
    beside = "work", "halo_slide", "transfer"
    for task in stream:
        kind = key_split(task["key"])
        for span in task["startstops"]:
            said = kind if span["action"] == "compute" else f"{kind}, {span['action']}"
            kinds.setdefault(said, []).append(span["stop"] - span["start"])
            if said.startswith("forward") and not said.endswith(beside):
                spans.setdefault(task["worker"], []).append((span["start"], span["stop"]))
    for kind, samples in kinds.items():
        took = {"count": len(samples), "seconds": sum(samples)}
        spoken = f"{len(samples)} of {np.median(samples) * 1e3:.1f} ms, {sum(samples):.2f} s"
        report.measure(f"{count}: {kind}", took, spoken=spoken)
    busy = sum(map(_covered, spans.values()))
    report.measure(f"{count}: seconds of a block", busy / blocks)
    report.claim(f"{count}: workers' time in blocks, of all", busy / count / seconds)
    beside = (count * seconds - busy) / blocks
    report.claim(f"{count}: beside a block, of a second", beside, "<=", BESIDE, "s")


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in which at least one task of a worker ran."""
    total, end = 0.0, -np.inf
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _compared(folder: Path, net: Any, labelled: Any, chunk: int) -> dict[str, Any]:
    """Labels around the first corners of chunks, and those of one call."""
    slide, labels = (da.from_zarr(str(folder), component=name) for name in ("slide", "labels"))
    small = net.resized(slide=(1, 3, 2 * AROUND, 2 * AROUND))
    output = small.graph.tensors[labelled.name]
    wrong = sites = 0
    for row in range(chunk, min(slide.shape[2], 3 * chunk), chunk):
        part = slice(row - AROUND, row + AROUND)
        expected = small.forward(output, slide=np.asarray(slide[:, :, part, part]))
        inner = slice(AROUND - COMPARED, AROUND + COMPARED)
        stored = np.asarray(labels[..., part, part])[..., inner, inner]
        wrong += int((stored != expected[..., inner, inner]).sum())
        sites += stored.size
    return {"ok": sites > 0 and wrong <= TIES * sites, "wrong": wrong, "compared": sites}


main = partial(script.run, NAME, body, __doc__, more=more)


if __name__ == "__main__":
    sys.exit(main())
