"""Figures that sentences quote: each is made of a stored result, or has a source outside of them.

`check_pages` looks through README.md and docs, without code and generated sections, for numbers
with a unit of speed, time or share. Every one of them must stand in the words of a `QUOTES` entry,
which are filled in from the results, or in those of a `STATED` entry, which says where it is from.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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


@cache
def simulated() -> dict[str, float | str]:
    rows = record.load_record("paper_model")["measurements"]
    return {name: row["simulated"] for name, row in rows.items()}


def fact(name: str) -> float:
    return float(shipped("h200").facts[name])


def more(limit: str, pieces: int, overlap: str) -> float:
    """Return by how many percent a call of `host_split` takes longer than the whole one."""
    name = f"limit {limit}, overlap {overlap} ({pieces} pieces): time / whole"
    return 100 * claims("host_split")[name] - 100


def _staged() -> tuple[float]:
    return (100 * claims("convolution_link")["pageable: fraction of the duplex link"],)


def _overhead() -> tuple[float, ...]:
    found = claims("convolution_in_core")
    names = ("convolution_forward", "fused")
    return tuple(found[f"1x64x32x32 {name}: host overhead"] for name in names)


def _few_channels() -> tuple[float, float]:
    share = 100 * float(simulated()["fused / three functions: n=1, 64 channels, 1024x1024"])
    return share, 100 * (1 - share / 42)


def _worst_local_search() -> tuple[float]:
    found = [str(value) for name, value in simulated().items() if name.startswith("local search")]
    return (max(float(span.split()[2]) for span in found),)


def _googlenet() -> tuple[float, ...]:
    found = record.load_record("vdnn")["checks"]
    ways = ("conv (p)", "all (p)")
    return tuple(100 * found[f"googlenet, batch 128: {way}"]["simulated"]["loss"] for way in ways)


def _orders() -> tuple[float]:
    """By how many percent the order of memory of each phase alone could make computing faster."""
    found = record.load_record("planning_networks")["measurements"]
    rows = [row for name, row in found.items() if name.endswith(": computing")]
    return (max(100 * (min(row["in one order"].values()) / row["each"] - 1) for row in rows),)


def _two_cards() -> tuple[float]:
    return (claims("ddp_scale")["two cards, times one"],)


def _exact_on_two() -> tuple[float]:
    found = claims("ddp_scale")
    return (found["2, exact statistics: images a second"] / found["1: images a second"],)


def _slide() -> tuple[float, ...]:
    return (record.load_record("dask_scale")["measurements"]["1: seconds"]["median"],)


def _slide_predicted() -> tuple[float]:
    return (100 * claims("dask_scale")["1: predicted / measured"],)


def _slide_on_two() -> tuple[float, float]:
    found = claims("dask_scale")
    return found["two cards, times one"], 100 * found["2: predicted / measured"]


def _waiting_for_tasks() -> tuple[float, float]:
    """Milliseconds a task in which two workers were in no block, and how many tasks there were."""
    found = record.load_record("dask_scale")["measurements"]
    names = [each for each in found if each[0] == "2" and "transfer" not in each]
    tasks = sum(found[each]["count"] for each in names if "count" in str(found[each]))
    idle = 1 - claims("dask_scale")["2: workers' time in blocks, of all"]
    return 1e3 * idle * found["2: seconds"]["samples"][0] / tasks, tasks


def _beside_a_block() -> tuple[float, ...]:
    """Milliseconds for each block in which a worker was in none, of one card's and of two."""
    found, said = record.load_record("dask_scale")["measurements"], claims("dask_scale")
    shares = ((count, said[f"{count}: workers' time in blocks, of all"]) for count in "12")
    return tuple(1e3 * found[f"{n}: seconds of a block"] * (1 / share - 1) for n, share in shares)


def _door() -> tuple[float]:
    return (claims("torch_door_resnet50")["resnet50: times the library's own step"],)


def _door_and_pytorch() -> tuple[float]:
    return (claims("torch_door_resnet50")["resnet50: times PyTorch in core"],)


def _small_step() -> tuple[float, ...]:
    found = record.load_record("torch_door_overhead")["measurements"]
    ways = ("door", "own", "PyTorch")
    return tuple(1e3 * found[f"overhead: {way}, seconds"]["median"] for way in ways)


def _known_call() -> tuple[float, ...]:
    found = record.load_record("door_cost")["measurements"]
    dispatch = (1e3 * found[each]["median"] for each in ("dispatch", "dispatch, torch.compile"))
    return (*dispatch, found["capture"]["median"], found["capture, torch.compile"]["median"])


def _of_pytorch() -> tuple[float]:
    return (claims("torch_door_overhead")["overhead: what PyTorch takes"],)


def _volume() -> tuple[float]:
    return (claims("torch_door_dynunet-256")["dynunet-256: times PyTorch in core"],)


def _volume_of_pytorch() -> tuple[float]:
    found = record.load_record("torch_door_dynunet-256")["measurements"]
    return (found["dynunet-256: PyTorch, memory"]["total"] / 2**30,)


def _large_volume() -> tuple[float, float]:
    found = record.load_record("torch_door_dynunet-512")["measurements"]
    host = found["dynunet-512: plan"]["host_bytes"] / 2**30
    return found["dynunet-512: seconds"]["median"], host


def _few_channels_volume() -> tuple[float, float, float]:
    name = "segresnet-384"
    found, said = (
        record.load_record(f"torch_door_{name}")["measurements"],
        claims(f"torch_door_{name}"),
    )
    whole = found[f"{name}: PyTorch, memory"]["total"]
    predicted = said[f"{name}: predicted / measured"]
    return said[f"{name}: times PyTorch in core"], whole / 2**30, predicted


def _large_image() -> tuple[float, float, float]:
    """Seconds of a step, the share of them in which the card computed, and GiB on the host."""
    found = record.load_record("torch_door_unet-8192")["measurements"]
    halves = found["unet-8192: halves, profiled"]
    share = sum(half["compute"] for half in halves) / sum(half["seconds"] for half in halves)
    host = found["unet-8192: plan"]["host_bytes"] / 2**30
    return found["unet-8192: seconds"]["median"], 100 * share, host


def _labels() -> tuple[float, float]:
    seconds = record.load_record("torch_door_infer")["measurements"][
        "infer: seconds, planned anew each time"
    ]
    share = claims("torch_door_infer")["infer: busiest stream / whole call"]
    return seconds["median"], 100 * share


def _in_core() -> list[in_core.Problem]:
    return list(in_core.problems(record.load_record(in_core.NAME)))


def _worst_door() -> tuple[float]:
    """How far the predictions of the door's other large cases are off."""
    cases = ("resnet50", "dynunet-256", "dynunet-512", "unet-8192", "infer")
    ratios = (claims(f"torch_door_{each}")[f"{each}: predicted / measured"] for each in cases)
    return (max(100 * abs(ratio - 1) for ratio in ratios),)


LIMITS, PAPER, VDNN = "docs/limitations.md", "docs/paper.md", "docs/vdnn.md"
QUOTES = (
    Quote(
        "docs/planning-networks.md",
        "these networks would compute at most {:.1f} % faster",
        _orders,
    ),
    Quote("README.md", "at {:.0f} % of the link's speed", _staged),
    Quote(LIMITS, "at {:.0f} % of the link's speed", _staged),
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
    Quote(LIMITS, "takes the host {:.0f} us beside cuDNN's own call, fused {:.0f} us", _overhead),
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
        lambda: (fact("calibration_seconds"),),
    ),
    Quote(
        PAPER,
        "256 channels run at {:.0f} GFLOPS in core",
        lambda: (float(simulated()["figure 9: 256 channels, on the device"]),),
    ),
    Quote(PAPER, "the simulation gives {:.0f} %, {:.0f} % below the figure", _few_channels),
    Quote(PAPER, "ends at most {} % off the best", _worst_local_search),
    Quote("docs/scale.md", "train on {:.2f} times as many images a second as one", _two_cards),
    Quote("docs/scale.md", "from Zarr to Zarr in {:.1f} s on one H100", _slide),
    Quote("docs/scale.md", "(predicted: {:.0f} % of that)", _slide_predicted),
    Quote(
        "docs/scale.md", "on two of them {:.2f} times as fast (predicted: {:.0f} %", _slide_on_two
    ),
    Quote(
        "docs/scale.md", "a worker spent {:.1f} ms (one card) or {:.1f} ms (two)", _beside_a_block
    ),
    Quote("docs/scale.md", "{:.1f} ms for each of its {:.0f} tasks", _waiting_for_tasks),
    Quote("docs/scale.md", "over all ranks it is {:.2f} times", _exact_on_two),
    Quote("docs/pytorch.md", "takes {:.2f} times as long as\n  the step of the library's", _door),
    Quote("docs/pytorch.md", "and {:.2f} times as long as PyTorch's with", _door_and_pytorch),
    Quote(
        "docs/pytorch.md",
        "{:.1f} ms by the one line, {:.1f} ms by the\n  library's own step, {:.1f} ms by PyTorch",
        _small_step,
    ),
    Quote(
        "docs/pytorch.md",
        "A known call takes {:.2f} ms of the host,\n  {:.2f} ms by `torch.compile`; "
        "the first one {:.1f} s until it is planned, {:.1f} s there",
        _known_call,
    ),
    Quote("docs/pytorch.md", "around a model, which takes {:.1f} ms", _of_pytorch),
    Quote("docs/pytorch.md", "{:.2f} times as\n  long as PyTorch with all", _volume),
    Quote("docs/pytorch.md", "which takes {:.0f} GiB", _volume_of_pytorch),
    Quote(
        "docs/pytorch.md", "a step takes {:.1f} s,\n  and keeps {:.0f} GiB in pinned", _large_volume
    ),
    Quote(
        "docs/pytorch.md",
        "torch_door_segresnet-384.json)): {:.2f} times as long as PyTorch with all of it on the "
        "card, which\n  takes {:.0f} GiB. cuDNN's heuristics choose worst where channels are few: "
        "tune such a model. The plan had predicted {:.1f} times that",
        _few_channels_volume,
    ),
    Quote(
        "docs/pytorch.md", "in the other cases here predictions are within {:.0f} %", _worst_door
    ),
    Quote(
        "docs/pytorch.md",
        "a step of training\n  takes {:.0f} s. Each of its largest maps alone is as large as the "
        "limit, so copies set the time: the card computes for {:.0f} % of it.\n  It keeps "
        "{:.0f} GiB",
        _large_image,
    ),
    Quote(
        "docs/pytorch.md",
        "torch_door_infer.json)): {:.0f} s, and the card computes for {:.0f} % of that",
        _labels,
    ),
    Quote(VDNN, "loses {:.0f} and {:.0f} % under", _googlenet),
)


#: Figures on the pages that are of no measurement: page -> words -> where they are from.
STATED: Mapping[str, Mapping[str, str]] = json.loads(
    Path(__file__).with_name("stated.json").read_text(encoding="utf-8")
)


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if "_build" not in path.parts:
            yield path


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
    found, rest = [], prose(text)
    known = [quote.text() for quote in QUOTES if quote.page == page]
    for words in (*known, *STATED.get(page, {})):
        bare = prose(words)
        if bare not in prose(text):
            found.append(f"{page}: the results say {words!r}, and the page does not")
        rest = rest.replace(bare, " ")
    for match in FIGURE.finditer(rest):
        near = rest[max(match.start() - 40, 0) : match.end() + 20]
        found.append(f"{page}: {match.group()!r} in '...{near}...' is of no stored result")
    return found


def check_pages(*, check: bool = True) -> int:
    """Look through all pages; 1 if a figure has no source or is another one's."""
    found = []
    for path in pages():
        found += problems(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    for problem in found:
        print(problem, file=sys.stderr)
    return int(bool(found))
