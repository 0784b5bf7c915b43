"""Where a network's step takes longer than predicted: task by task, and kernel by kernel.

A step of a case of `benchmarks.networks` is run under one limit. Each task's seconds on the compute
stream stand beside those of its replay. On a card the kernels of one more step are listed, as
PyTorch's profiler sees them (CUPTI): those of a recorded step, too.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

import ooc_cudnn
from benchmarks import networks
from benchmarks.contenders.torch_setup import load_torch
from ooc_cudnn.bench import script
from ooc_cudnn.bench.timing import time_repeats
from ooc_cudnn.pipeline.program import COMPUTE
from ooc_cudnn.pipeline.simulate import simulate_program
from ooc_cudnn.pipeline.trace import Trace

NAME = "step_costs"
#: Rows that are printed of each table; all are kept.
SHOWN = 16
QUICK, QUICK_LIMIT = "vgg16", "16MiB"


def body(report: script.Report) -> None:
    asked = report.arguments
    case = networks.CASES[QUICK if report.quick else asked.case]
    net, loss = case.small() if report.quick else case.make()
    limit = QUICK_LIMIT if report.quick else asked.limit
    inputs = networks.drawn(net)
    # by a machine that is named, plans would not follow what is measured
    machine = None if asked.cuda else asked.machine
    with ooc_cudnn.settings(allow_tf32=True, memory_limit=limit, machine=machine):
        networks.place_parameters(net)
        step = net.training_step(loss)
        if asked.tune_seconds:
            step.tune(seconds=asked.tune_seconds, **inputs)
        step(**inputs)
        seconds = time_repeats(partial(step, **inputs), report.synchronize)
        _, _, call = networks.one_step(step, inputs)
        report.measure("seconds", seconds, spoken=str(seconds))
        report.claim("predicted / measured", step.plan.seconds / seconds.median)
        tasks = seconds_of_tasks(call.trace, simulate_program(step.program))
        sums = [sum(seconds) for seconds in zip(*tasks.values(), strict=True)]
        rows = [(name, *_milliseconds(*both)) for name, both in [*tasks.items()][:SHOWN]]
        rows.append(("all", *_milliseconds(*sums)))
        table = script.table(("task, ms", "measured", "predicted"), rows)
        report.measure("tasks, seconds measured and predicted", tasks, spoken=f"\n{table}")
        report.check("contents: tasks", {"ok": len(tasks) == len(tuple(step.program.tasks))})
        if asked.cuda:
            kernels = kernels_of(partial(step, **inputs))
            longest = [
                (name[:80], f"{count}", *_milliseconds(seconds))
                for name, (count, seconds) in [*kernels.items()][:SHOWN]
            ]
            table = script.table(("kernel", "launches", "ms"), longest)
            report.measure("kernels, launches and seconds", kernels, spoken=f"\n{table}")


def seconds_of_tasks(measured: Trace, predicted: Trace) -> dict[str, tuple[float, float]]:
    """Seconds of each task on the compute stream, those first that were missed by most.

    Raises
    ------
    ValueError
        If these are traces of different steps.
    """
    rows: dict[str, list[float]] = {}
    for column, trace in enumerate((measured, predicted)):
        for step in trace.steps:
            if step.stream == COMPUTE:
                row = rows.setdefault(step.task, [0.0, 0.0])
                row[column] += step.stop_seconds - step.start_seconds
    if len(measured.steps) != len(predicted.steps):
        raise ValueError("the traces are of different steps")
    missed = sorted(rows.items(), key=lambda each: each[1][1] - each[1][0])
    return {name: (row[0], row[1]) for name, row in missed}


def kernels_of(run: Any) -> dict[str, tuple[int, float]]:
    """Launches and seconds of each kernel that a call runs on the card, the longest first."""
    torch = load_torch(cuda=True)
    torch.cuda.init()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as watch:
        run()
        torch.cuda.synchronize()
    kernels: dict[str, tuple[int, float]] = {}
    for event in watch.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, seconds = kernels.get(event.name, (0, 0.0))
            lasted = (event.time_range.end - event.time_range.start) / 1e6
            kernels[event.name] = count + 1, seconds + lasted
    return dict(sorted(kernels.items(), key=lambda each: -each[1][1]))


def _milliseconds(*seconds: float) -> list[str]:
    return [f"{1e3 * value:.2f}" for value in seconds]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", choices=networks.CASES, default="resnet50")
    parser.add_argument("--limit", default="16GiB", help="device memory")
    parser.add_argument("--tune-seconds", type=float, default=0.0, help="for measuring, at most")


main = partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
