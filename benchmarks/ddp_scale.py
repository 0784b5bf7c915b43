"""ResNet-50 under a memory limit on one card, and on two by DistributedDataParallel.

Each rank is a process that torchrun starts, and has its own images. The step of the optimizer is
part of what is timed. The first loss is compared with PyTorch's. In the end the weights of all
ranks must be equal to the last bit. On the host (`--quick`) two tiny ranks train by gloo.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ooc_cudnn.bench import script
from ooc_cudnn.bench.timing import Timing

NAME = "ddp_scale"
#: Of the loss in TF32, whose rounding is averaged.
LOSS_TOLERANCE = 1e-2
#: What a rank is told, where nothing else is asked for.
OPTIONS = {"image": 224, "width": 64, "blocks": (3, 4, 6, 3), "statistics": "rank"}
QUICK = {"batch": 4, "image": 32, "limit": "4MiB", "repeats": 2, "width": 8, "blocks": (1, 1)}
#: A rank that hangs is ended.
PATIENCE_SECONDS = 240


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=768, help="images of a rank")
    parser.add_argument("--limit", default="16GiB", help="device memory of a rank")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=10)


def body(report: script.Report) -> None:
    asked = report.arguments
    options = {"batch": asked.batch, "limit": asked.limit, "repeats": asked.repeats}
    options = OPTIONS | (QUICK if report.quick else options)
    counts = [2] if report.quick else asked.cards
    rates: dict[int, float] = {}
    for count in counts:
        rates[count] = _measured(report, str(count), count, options)
    if not report.quick:
        _measured(report, f"{counts[-1]}, exact statistics", counts[-1],
                  options | {"statistics": "global"})  # fmt: skip
    if 1 in rates and 2 in rates:
        report.claim("two cards, times one", rates[2] / rates[1], ">=", 1.9)


def _measured(report: script.Report, name: str, count: int, options: dict[str, Any]) -> float:
    """Images a second of so many ranks."""
    path = Path(script.folder_of(report.arguments)) / "ddp_rank.json"
    path.unlink(missing_ok=True)
    device = "cuda" if report.arguments.cuda else "host"
    told = json.dumps(options | {"output": str(path), "device": device})
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(count), "-m", "benchmarks.ddp_rank", told],
        check=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    figures = json.loads(path.read_text())
    path.unlink()
    seconds = Timing(tuple(figures.pop("seconds")))
    rate = count * options["batch"] / seconds.median
    report.measure(f"{name}: seconds", seconds, spoken=str(seconds))
    report.measure(f"{name}: rank 0", figures)
    report.claim(f"{name}: images a second", rate)
    report.claim(f"{name}: predicted / measured", figures["predicted"] / seconds.median)
    error = abs(figures["loss"] / figures["expected_loss"] - 1)
    is_ok = error <= LOSS_TOLERANCE and figures["ranks_are_equal"]
    report.check(f"{name}: contents", {"ok": is_ok, "loss_error": error})
    return rate


main = partial(script.run, NAME, body, __doc__, more=more)


if __name__ == "__main__":
    sys.exit(main())
