"""README.md: one convolution on one machine, beside every other way to compute it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from benchmarks.contenders.cases import CASES
from benchmarks.pages.blocks import NOT_MEASURED, Block
from benchmarks.pages.pictures import BY_NAME
from benchmarks.pages.records import FOLDER, Records, load
from ooc_cudnn.bench.record import markdown
from ooc_cudnn.units import format_seconds

STORY = "fig14-4gb-tf32"
#: (what a row says, which host memory x and y lie in, case, contender)
ROWS = (
    ("copy the same bytes both ways at once, and compute nothing", "pinned", STORY, "copy_limit"),
    ("a double-buffered loop in PyTorch, three streams", "pinned",
     STORY, "double_buffered_torch"),
    ("a double-buffered loop in CuPy, cuDNN called by hand", "pinned",
     STORY, "double_buffered_cupy"),
    ("PyTorch with all images on the card, copies included", "pinned",
     STORY, "torch_in_core"),
    ("CUDA Unified Memory, all of it prefetched", "managed", STORY, "unified_memory_prefetch"),
    ("CUDA Unified Memory as it is", "managed", STORY, "unified_memory"),
    ("a plain loop in PyTorch, four images at a time", "pageable", STORY, "naive_loop"),
)  # fmt: skip


def figures(folder: Path = FOLDER) -> str:
    """Return the README's section, made of the stored records."""
    records = load(folder)
    where = records.found[STORY]["environment"]
    gpu, versions = where["gpu"], where["versions"]
    seconds = records.seconds(STORY)
    assert seconds is not None, records.reason(STORY)
    cores = f"{where['cores']} CPU cores"
    setting = (
        "The work: a 3 x 3 convolution with bias and ReLU on 256 images of 256 x 256 with 64 "
        "channels, from host memory to host memory. That is 4.3 GB in and 4.3 GB out, in float32 "
        f"with TF32. The machine: one {gpu['name']} (PCIe {gpu['pcie.link.gen.current']}, cuDNN "
        f"{versions['nvidia-cudnn-cu13']}) and {cores}. `ooc_cudnn` may hold "
        f"{CASES[STORY].memory_limit.replace('GiB', ' GiB')} of the card's memory, and takes "
        f"**{format_seconds(seconds)}** with pinned memory. Ways took turns, and each time is a "
        "median. Every result was checked."
    )
    picture = BY_NAME["summary"].link("4.3 GB in and 4.3 GB out, by each way", "README.md")
    lines = [picture, "", *textwrap.wrap(CAPTION, 100), "", *textwrap.wrap(setting, 100)]
    head = ("the same work by another way", "host memory", "takes", "time (`ooc_cudnn`: 1.00x)")
    rows = [(label, memory, *_took(records, *way)) for label, memory, *way in ROWS]
    return "\n".join(
        [*lines, "", markdown(head, rows, align="llr"), "", *textwrap.wrap(TERMS, 100)]
    )


CAPTION = (
    "*Seconds, and how many times as long as `ooc_cudnn` each way takes. The dotted line is the "
    "first row of the table: no program can be faster. Our split is Unified Memory that is "
    "prefetched in the pieces that `ooc_cudnn` plans.*"
)

TERMS = (
    "Copies from *pinned* memory, which the system cannot move or swap out, run at the full speed "
    "of the link. *Pageable* memory is ordinary memory, as of NumPy arrays. *Managed* memory is "
    "that of Unified Memory: the driver moves its pages. A *double-buffered* loop copies one "
    "piece while it computes another. A *stream* is a queue of work on the card; several run side "
    "by side. *TF32* computes float32 products on tensor cores, with factors rounded to 10 bits, "
    "as PyTorch does for convolutions. [Performance](docs/performance.md) has all measurements."
)


def _took(records: Records, case: str, contender: str) -> tuple[str, str]:
    seconds, ratio = records.seconds(case, contender), records.ratio(case, contender)
    if seconds is None or ratio is None:
        return NOT_MEASURED, ""
    return format_seconds(seconds), compared(ratio)


def compared(ratio: float) -> str:
    """Show another way's seconds over the library's; with one decimal from 2 on.

    Examples
    --------
    >>> compared(66.6), compared(1.034), compared(0.97)
    ('66.6x', '1.03x', '0.97x')
    """
    return f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


BLOCKS = (Block("README.md", "figures", figures),)
