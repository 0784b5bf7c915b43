"""A volume of large planes: cut along the axis that the planner chooses, and along the first.

n=1, 32 -> 32 channels, 48 x 1024 x 1024, 3x3x3, TF32, 512 MiB: 6.4 GB in and 6.4 GB out of pinned
memory. One plane with its halo does not fit the limit, so pieces along the first axis are cut along
channels, too, and read the volume several times. PyTorch's whole convolution on the card is what
both are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from benchmarks import common
from benchmarks.accuracy_splits import runner
from ooc_cudnn.bench.timing import interleave, paired_ratio
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions.call.explain import plan_request
from ooc_cudnn.pricing.plan import Plan
from ooc_cudnn.pricing.planner import make_plan
from ooc_cudnn.settings import current

NAME = "volume"
#: Errors of TF32 and of sums in another order, as a share of the largest result.
TOLERANCE = 2e-3


def along_first(x: Any, w: Any, y: Any) -> tuple[Plan, Callable[[], None]]:
    """The plan with rows along the first spatial axis, and what runs it."""
    device = get_device(current().device)
    request = plan_request("convolution_forward", x=x, w=w, padding=1, out=y)
    first = replace(request, chain=request.chain.along(2))
    plan = make_plan(first, device.workspace)
    return plan, runner(device, first, plan, {"x": x, "w": w, "y": y})


def body(report: common.Report) -> None:
    import torch

    shape = (1, 4, 6, 40, 48) if report.quick else (1, 32, 48, 1024, 1024)
    limit = "300kB" if report.quick else "512MiB"
    random = np.random.default_rng(0)
    x, y = common.pinned(shape), common.pinned(shape)
    for plane in range(shape[2]):
        x[:, :, plane] = random.standard_normal((1, shape[1], *shape[3:]), np.float32)
    w = random.standard_normal((shape[1], shape[1], 3, 3, 3), np.float32)
    with torch.no_grad():
        place = "cuda" if report.arguments.cuda else "cpu"
        whole = torch.conv3d(
            torch.from_numpy(x).to(place), torch.from_numpy(w).to(place), padding=1
        )
        expected = whole.cpu().numpy()
        del whole
    largest = float(np.abs(expected).max())

    def check(name: str) -> None:
        error = max(float(np.abs(y[:, :, at] - expected[:, :, at]).max()) for at in range(shape[2]))
        report.check(name, {"ok": error <= TOLERANCE * largest, "error": error, "largest": largest})

    with ooc_cudnn.settings(memory_limit=limit):
        chosen = ooc_cudnn.plan("convolution_forward", x=x, w=w, padding=1, out=y)
        first, run_first = along_first(x, w, y)
        runs = {
            "chosen": lambda: ooc_cudnn.convolution_forward(x, w, padding=1, out=y),
            "first": run_first,
        }
        for name, run in runs.items():
            y.fill(np.nan)
            run()
            check(f"{name}: contents")
        synchronize = report.synchronize
        timings = interleave(runs, synchronize, repeats=2 if report.quick else 5)
    for name, plan in (("chosen", chosen), ("first", first)):
        report.measure(f"{name}: split", {"row_axis": plan.row_axis, **plan.split.to_json()})
        report.measure(f"{name}: seconds", timings[name])
        report.claim(f"{name}: predicted / measured", plan.seconds / timings[name].median)
    ratio = paired_ratio(timings["first"], timings["chosen"])["median"]
    report.claim("times faster along the chosen axis", ratio, ">=", 1.5)


main = partial(common.run, NAME, body, __doc__)

if __name__ == "__main__":
    common.main(main)
