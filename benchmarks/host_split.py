"""The host device, on a machine without a GPU: what splitting costs.

n=8, 64 -> 64 channels, 128x128, 3x3, float32 in NumPy memory: in one piece, and in many under small
limits.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np

import ooc_cudnn
from ooc_cudnn.bench import script
from ooc_cudnn.bench.convolution_contender import Operands
from ooc_cudnn.bench.timing import interleave, paired_ratio

NAME = "host_split"


def body(report: script.Report) -> None:
    if report.arguments.device != "host":
        raise SystemExit("host_split measures the host device: --device host")
    quick = report.quick
    shape = (4, 8, 24, 32) if quick else (8, 64, 128, 128)
    limits = ("128kB", "96kB") if quick else ("64MiB", "16MiB", "4MiB")
    on = Operands.of(np.empty(shape, np.float32), np.empty(shape, np.float32), cuda=False)

    def call(limit: str, overlap: bool) -> None:
        with ooc_cudnn.settings(memory_limit=limit, overlap=overlap):
            ooc_cudnn.convolution_add_activation_forward(
                on.x, on.w, on.b, padding=1, activation="relu", out=on.y
            )

    cases = {"whole": ("2GiB", False)}
    for limit in limits:
        cases |= {f"limit {limit}, overlap {'on' if overlap else 'off'}": (limit, overlap)
                  for overlap in (False, True)}  # fmt: skip
    cases["limit 2GiB, overlap on"] = ("2GiB", True)
    runs = {name: partial(call, *case) for name, case in cases.items()}
    for name, (limit, _) in cases.items():
        report.profile_and_verify(name, runs[name], on, limit)
    pieces = {name: report.measurements[f"{name}: call"]["pieces"] for name in cases}
    if pieces["whole"] != 1:
        raise RuntimeError(f"the unsplit computation was split into {pieces['whole']} pieces")
    times = interleave(runs, lambda: None, repeats=2 if quick else 15)
    for name, timing in times.items():
        report.measure(f"{name}: seconds", timing)
        report.predicted(name, report.measurements[f"{name}: call"], timing.median)
        if name != "whole":
            ratio = paired_ratio(timing, times["whole"])
            report.measure(f"{name}: time / whole", ratio)
            report.claim(
                f"{name} ({pieces[name]} pieces): time / whole", ratio["of_medians"], "<=", 1.15
            )


main = partial(script.run, NAME, body, __doc__, first=("--device", "host"), needs_card=False)

if __name__ == "__main__":
    sys.exit(main())
