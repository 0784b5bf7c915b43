"""Pictures in the project's style: the same bytes of the same values, drawn where they are stale.

A picture carries the digest of what it was drawn from, in a text chunk of the PNG file
(specification, 11.3.4.3), so that a stale one is found out whatever matplotlib drew it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pages.words import PRECISIONS
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.environment import ROOT
from ooc_cudnn.plotting import COLOURS, STREAM_COLOURS
from ooc_cudnn.plotting import legend as legend
from ooc_cudnn.plotting import panels as panels

#: Contender -> colour: the library's is the first, whatever stands beside it.
CONTENDER_COLOURS = dict(
    zip(
        (OURS, "unified_memory_prefetch", "in_core", "torch_in_core", "naive_loop",
         "torch_save_on_cpu", "unified_memory", "unified_memory_prefetch_split"),
        COLOURS[:8], strict=True,
    )
)  # fmt: skip
CONTENDER_COLOURS |= {
    "cudnn": COLOURS[1],
    "double_buffered_torch": "#333333",
    "double_buffered_cupy": "#a0522d",
    "copy_limit": "#999999",
    "torch_checkpoint": COLOURS[7],
    "torch_micro_batches": COLOURS[1],
    "torch_compile": COLOURS[4],
    "torch_compile_0.5": COLOURS[9],
    "torch_compile_0.2": COLOURS[12],
}
PAPER = COLOURS[6]
#: Colours of a saved picture: lines and bars need few, and the file is a third as large.
PALETTE = 160
#: Of the chunk with the digest.
KEYWORD = "drawn from"


def of_stage(stage: str) -> dict[str, str]:
    """Return the colour and the name of a stage's bars."""
    return {"color": STREAM_COLOURS[stage][0], "label": stage.replace("_", " ")}


def precisions(drawn: Mapping[str, Any], *, height: float) -> tuple[Any, dict[str, Any]]:
    """Return a figure with a panel, named, for each precision of which there is anything."""
    shown = [precision for precision in PRECISIONS if precision in drawn]
    figure, axes = panels(1, len(shown), width=4.5 * len(shown), height=height)
    for panel, precision in zip(axes[0], shown, strict=True):
        panel.set_title(PRECISIONS[precision], fontsize=10, loc="left")
    return figure, dict(zip(shown, axes[0], strict=True))


def legend_below(figure: Any, every: Iterable[Any], *, columns: int) -> None:
    """Name what is drawn in any panel once, under all of them."""
    handles: dict[str, Any] = {}
    for axes in every:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns,
                  fontsize=8, frameon=False)  # fmt: skip


def save(figure: Any, path: Path, drawn: Any) -> None:
    """Write a picture of few colours, with the digest of what it shows; nothing tells when."""
    from PIL import Image, PngImagePlugin

    path.parent.mkdir(parents=True, exist_ok=True)
    buffer, digest = BytesIO(), PngImagePlugin.PngInfo()
    figure.savefig(buffer, format="png")
    digest.add_text(KEYWORD, digest_of(drawn))
    whole = Image.open(buffer).convert("RGB")
    # By medians alone a rare colour becomes its neighbours' mean: a navy line grey.
    few = whole.quantize(PALETTE, kmeans=1, dither=Image.Dither.NONE)
    few.save(path, format="PNG", optimize=True, pnginfo=digest)


def digest_of(drawn: Any) -> str:
    """Return the SHA-256 of plain values.

    Examples
    --------
    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def stamped(path: Path) -> str | None:
    """Return the digest that a picture carries; None without a picture, or without one in it."""
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as image:
        return image.info.get(KEYWORD)


def is_current(path: Path, drawn: Any) -> bool:
    """Whether a picture is there and was drawn from these values."""
    return stamped(path) == digest_of(drawn)


class Picture(NamedTuple):
    """A picture: its path in the repository, plain values, and what draws a figure of them.

    Where there is nothing to show, values are empty, and there is no picture.
    """

    path: str
    values: Callable[[], Any]
    draw: Callable[[Any], Any]

    def link(self, about: str, page: str) -> str:
        """Show it on a page, if it is there."""
        path = os.path.relpath(self.path, Path(page).parent)
        return f"![{about}]({path})" if (ROOT / self.path).exists() else ""

    def write(self, *, check: bool, root: Path = ROOT) -> int:
        """Draw it, or look only; return 1 if it was out of date and still is."""
        path, values = root / self.path, self.values()
        if is_current(path, values) if values else not path.exists():
            return 0
        if check:
            print(f"{self.path} is out of date: make figures", file=sys.stderr)
            return 1
        if values:
            save(self.draw(values), path, values)
        else:
            path.unlink()
        return 0
