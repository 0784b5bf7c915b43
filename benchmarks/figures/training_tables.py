"""Tables of VGG-16's training step: figures 12 and 13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.contenders.cases import VGG16_BATCHES
from benchmarks.figures.records import STAGES, Records, names
from benchmarks.figures.words import (
    NOTHING,
    PRECISIONS,
    markdown,
    seconds,
    section,
    times,
)
from ooc_cudnn.bench.case import OURS

OTHERS = ("in_core", "torch_in_core", "torch_save_on_cpu", "torch_checkpoint",
          "torch_micro_batches")  # fmt: skip


def case_of(batch: int, precision: str) -> str:
    """Name a training step.

    Examples
    --------
    >>> case_of(32, "tf32")
    'vgg16-n32-tf32'
    """
    return f"vgg16-n{batch}-{precision}"


def figure_12(records: Records) -> str:
    """Seconds of a step by batch, and the other ways over them."""
    rows = []
    for precision, words in PRECISIONS.items():
        for batch in VGG16_BATCHES:
            case = case_of(batch, precision)
            compared = [times(records, case, contender) for contender in OTHERS]
            rows.append((f"{batch}, {words}", seconds(records, case), *compared))
    cases = names("vgg16-")
    head = ("batch", "`ooc_cudnn`", *(f"`{contender}`" for contender in OTHERS))
    return section(records, cases, (OURS, *OTHERS), (markdown(head, rows),))


def figure_13(records: Records) -> str:
    """What the streams of a step were busy with, which binds, and what was predicted."""
    rows = []
    for precision, words in PRECISIONS.items():
        for batch in VGG16_BATCHES:
            details = records.details(case_of(batch, precision))
            rows.append((f"{batch}, {words}", *_step(details)))
    head = ("batch", "moved in", "moved out", "copy in", "compute", "copy out", "binds: in",
            "compute", "out", "predicted / measured")  # fmt: skip
    about = (
        "What a step moves over the link: maps that do not fit are copied out once and back for "
        "every function that reads them. Seconds for which each stream was at work, summed over "
        "the calls of one recorded step; the share of the calls' time in calls that each stage "
        "binds; and the predicted seconds of the step over the measured ones."
    )
    return section(records, names("vgg16-"), (), (about, markdown(head, rows)))


def _step(details: Mapping[str, Any]) -> list[str]:
    if not details:
        return [NOTHING] * 9
    busy, share = details["stage_seconds"], details["binding_share"]
    ratio = details.get("predicted_over_measured")
    return [
        *(f"{details[way] / 1e9:.1f} GB" for way in ("bytes_in", "bytes_out")),
        *(f"{busy[stage]:.3f} s" for stage in STAGES),
        *(f"{share[stage]:.0%}" for stage in STAGES),
        NOTHING if ratio is None else f"{ratio:.3f}",
    ]
