"""Figures that sentences quote: each is made of a stored result, or has a source outside of them.

`check_pages` looks through README.md, docs and notebooks, without code and generated sections, for
numbers with a unit of speed, time or share. Every one of them must stand in the words of a `QUOTES`
entry (quoted.json, and below what is worked out), which are filled in from the results, or in those
of a `STATED` entry (stated.json), which says where it is from.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.pages import in_core
from ooc_cudnn.bench import record
from ooc_cudnn.bench.attempt import PATIENCE_SECONDS
from ooc_cudnn.bench.environment import ROOT
from perfmodel import shipped

FIGURE = re.compile(
    r"(?<![\w.])\d[\d.,]*(?:e[-+]?\d+)?\s?"
    r"(?:%|per cent\b|times\b|x\b(?! \d)|ms\b|us\b|ns\b|s\b|seconds?\b|minutes?\b|"
    r"[KMGT]i?B/s|[GT]FLOPS)|(?<![\w.-])\d[\d.]*e-\d+"
)
SECTIONS = re.compile(r"<!-- ([\w ]+): begin.*?<!-- \1: end -->", re.DOTALL)
LIMITS, SCALE = "docs/limitations.md", "docs/scale.md"
DOOR = "docs/pytorch.md"
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Quote:
    """Words of a page, with a replacement field for each figure, and what reads the figures."""

    page: str
    words: str
    values: Callable[[], Sequence[float]]

    def text(self) -> str:
        """Return the words as they have to stand on the page."""
        return self.words.format(*self.values())


claims = cache(record.claims)
stored = cache(record.load_record)
#: What a figure of a record is multiplied by, by the last word of its path.
UNITS = {"in %": 100.0, "in ms": 1e3, "in GiB": 2.0**-30}


def figure(path: Sequence[str]) -> float:
    """Return a figure by its path: a record, "claims" or a section of it, its keys, and a unit."""
    name, section, *keys = path
    factor = UNITS[keys.pop()] if keys[-1] in UNITS else 1.0
    value = claims(name) if section == "claims" else stored(name)[section]
    for key in keys:
        value = value[key]
    return factor * float(value)


def figures(paths: Sequence[Sequence[str]]) -> tuple[float, ...]:
    return tuple(map(figure, paths))


def more(limit: str, pieces: int, overlap: str) -> float:
    """Return by how many percent a call of `host_split` takes longer than the whole one."""
    name = f"limit {limit}, overlap {overlap} ({pieces} pieces): time / whole"
    return 100 * claims("host_split")[name] - 100


def _orders() -> tuple[float]:
    """By how many percent the order of memory of each phase alone could make computing faster."""
    measurements = stored("planning_networks")["measurements"]
    rows = [row for name, row in measurements.items() if name.endswith(": computing")]
    return (max(100 * (min(row["in one order"].values()) / row["each"] - 1) for row in rows),)


def _exact_on_two() -> tuple[float]:
    said = claims("ddp_scale")
    return (said["2, exact statistics: images a second"] / said["1: images a second"],)


def _waiting_for_tasks() -> tuple[float, float]:
    """Milliseconds a task in which two workers were in no block, and how many tasks there were."""
    measurements = stored("dask_scale")["measurements"]
    names = [name for name in measurements if name[0] == "2" and "transfer" not in name]
    tasks = sum(measurements[name]["count"] for name in names if "count" in str(measurements[name]))
    idle = 1 - claims("dask_scale")["2: workers' time in blocks, of all"]
    return 1e3 * idle * measurements["2: seconds"]["samples"][0] / tasks, tasks


def _beside_a_block() -> tuple[float, ...]:
    """Milliseconds for each block in which a worker was in none, of one card's and of two."""
    measurements, said = stored("dask_scale")["measurements"], claims("dask_scale")
    shares = ((count, said[f"{count}: workers' time in blocks, of all"]) for count in "12")
    return tuple(
        1e3 * measurements[f"{n}: seconds of a block"] * (1 / share - 1) for n, share in shares
    )


def _large_image() -> tuple[float, float, float, float]:
    """Seconds of a step, the share of them in which it computes, GiB on the host, and a first."""
    row = stored("amp_unet-8192_tf32")["measurements"]["rows"]["ours, 16GiB"]
    plan, seconds = row["plan"], row["seconds"]["median"]
    share = 100 * plan["compute_seconds"] / seconds
    return seconds, share, plan["host_bytes"] / 2**30, row["first_seconds"]


def _in_core() -> list[in_core.Problem]:
    return list(in_core.problems(stored(in_core.NAME)))


def _worst_door() -> tuple[float]:
    """How far the predictions of the door's other large cases are off."""
    cases = ("resnet50", "dynunet-256", "dynunet-512", "infer")
    ratios = [claims(f"torch_door_{name}")[f"{name}: predicted / measured"] for name in cases]
    ratios += [claims("amp_unet-8192_tf32")["ours, 16GiB: predicted / measured"]]
    return (max(100 * abs(ratio - 1) for ratio in ratios),)


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


#: Figures that stand in a record as they are quoted, and those that are worked out of some.
QUOTES = (
    *(
        Quote(page, words, partial(figures, paths))
        for page, quotes in _read("quoted.json").items()
        for words, paths in quotes.items()
    ),
    Quote(
        "docs/planning-networks.md", "these networks would compute at most {:.1f} % faster", _orders
    ),
    Quote(
        LIMITS,
        "splitting costs at most {:.0f} % down to",
        lambda: (max(more("64MiB", 8, "on"), more("16MiB", 16, "on"), more("16MiB", 8, "off")),),
    ),
    Quote(
        LIMITS,
        "and {:.0f} to {:.0f} % at",
        lambda: (more("4MiB", 48, "off"), more("4MiB", 64, "on")),
    ),
    Quote(
        in_core.PAGE,
        "ours takes {:.2f} of PyTorch's time in the geometric mean",
        lambda: (in_core.mean(in_core.unbound(_in_core())),),
    ),
    Quote(
        in_core.PAGE,
        "over all problems ours takes {:.2f} of PyTorch's time",
        lambda: (in_core.mean(_in_core()),),
    ),
    Quote(
        "docs/benchmarks.md",
        "What takes more than {:.0f} seconds once it is warm has one sample",
        lambda: (PATIENCE_SECONDS,),
    ),
    Quote(
        "docs/model-method.md",
        "the shipped profile took {:.0f} s",
        lambda: (float(shipped("h200").facts["calibration_seconds"]),),
    ),
    Quote(SCALE, "a worker spent {:.1f} ms (one card) or {:.1f} ms (two)", _beside_a_block),
    Quote(SCALE, "{:.1f} ms for each of its {:.0f} tasks", _waiting_for_tasks),
    Quote(SCALE, "over all ranks it is {:.2f} times", _exact_on_two),
    Quote(DOOR, "in the other cases here predictions are within {:.0f} %", _worst_door),
    Quote(
        DOOR,
        "a step of training\n  takes {:.1f} s, and its plan computes for {:.0f} % of that. Each of "
        "its largest maps alone is as large as the limit: they are made again, band\n  by band, "
        "wherever they are read. It keeps {:.0f} GiB in pinned memory of the host. The first step "
        "takes {:.0f} s",
        _large_image,
    ),
)
#: Figures on the pages that are of no measurement: page -> words -> where they are from.
STATED: Mapping[str, Mapping[str, str]] = _read("stated.json")


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if "_build" not in path.parts:
            yield path
    yield from sorted((ROOT / "notebooks").glob("*.ipynb"))


def written(path: Path) -> str:
    """Return the text of a page; of a notebook what stands between its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return text


def prose(text: str) -> str:
    """Return what a person wrote of a page, on one line: no code, no generated sections.

    Examples
    --------
    >>> prose("It takes\\n`2 s`, or 3 s. <!-- a: begin -->4 s<!-- a: end -->")
    'It takes , or 3 s.'
    """
    return " ".join(CODE.sub(" ", SECTIONS.sub(" ", text)).split())


def problems(page: str, text: str) -> list[str]:
    """Say what is wrong with the figures of a page: words that differ, figures of no source."""
    wrong, rest = [], prose(text)
    known = [quote.text() for quote in QUOTES if quote.page == page]
    for words in (*known, *STATED.get(page, {})):
        bare = prose(words)
        if bare not in prose(text):
            wrong.append(f"{page}: the results say {words!r}, and the page does not")
        rest = rest.replace(bare, " ")
    for match in FIGURE.finditer(rest):
        near = rest[max(match.start() - 40, 0) : match.end() + 20]
        wrong.append(f"{page}: {match.group()!r} in '...{near}...' is of no stored result")
    return wrong


def check_pages(*, check: bool = True) -> int:
    """Look through all pages; 1 if a figure has no source or is another one's."""
    wrong = []
    for path in pages():
        wrong += problems(str(path.relative_to(ROOT)), written(path))
    for problem in wrong:
        print(problem, file=sys.stderr)
    return int(bool(wrong))
