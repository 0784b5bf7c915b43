"""Training steps of whole networks, of the records of ``python -m benchmarks.networks``.

README.md has the short table and the picture of it, docs/performance.md the long table. A network
of which there is no record is left out of the short one, and named in the long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders.torch_ways import WAYS
from benchmarks.networks import CASES, MICRO_BATCH, NAME
from benchmarks.pages import canvas
from benchmarks.pages.blocks import NOT_MEASURED, NOTHING, Block, machine_of
from ooc_cudnn.bench import script
from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.record import join_paragraphs, load_record, markdown
from ooc_cudnn.units import format_bytes, format_seconds

#: What each case of `benchmarks.networks` trains.
TRAINED = {
    "vgg16": "VGG-16, 1024 images",
    "resnet50": "ResNet-50, 768 images",
    "features": "VGG-16's feature layers, one image of 16384 x 16384",
    "unet_3d": "3-D U-Net, one volume of 512 x 512 x 512",
    "googlenet": "GoogLeNet, 128 images",
    "densenet121": "DenseNet-121, 128 images",
    "unet": "U-Net, 8 images of 572 x 572",
    "unet_3d-128": "3-D U-Net, 2 volumes of 128 x 128 x 128",
}
#: Networks that README shows: those that PyTorch trains in core, too. ResNet-50 has a curve.
SHORT = ("vgg16", "googlenet", "densenet121", "unet", "unet_3d-128")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to a training step, and what it took.

    `contender` is its name in the suite, which has a colour; `ratio` its seconds over those of
    PyTorch with all of the same network on the card. The rest is known of our own steps.
    """

    contender: str
    label: str
    seconds: float
    device_bytes: int | None = None
    ratio: float | None = None
    predicted_seconds: float | None = None
    link_bytes: int | None = None
    first_seconds: float | None = None
    tuning_seconds: float | None = None


def records(folder: Path = script.RESULTS) -> dict[str, Record]:
    """Return the latest record of each case that was measured at full size in TF32, and was right.

    Limits that it leaves out are those of the record before, if that is of the same card.
    """
    files = (path.stem for path in folder.glob(f"{NAME}*.json"))
    stored = [load_record(name, folder) for name in files if not name.endswith("_strict")]
    fit = [each for each in stored if each["verified"] and not each["quick"]]
    latest: dict[str, Record] = {}
    for record in sorted(fit, key=lambda each: str(each["environment"]["date"])):
        for case in CASES:
            if any(name.startswith((f"{case}, ", f"{case}: ")) for name in record["measurements"]):
                before = latest.get(case)
                is_same = before is not None and machine_of(before) == machine_of(record)
                latest[case] = _beside(before, record) if before and is_same else record
    return latest


def _beside(old: Record, new: Record) -> Record:
    """A record, with what only an older one has."""
    again = {claim["name"] for claim in new["claims"]}
    claims = [claim for claim in old["claims"] if claim["name"] not in again]
    both = {key: {**old[key], **new[key]} for key in ("measurements", "checks")}
    return {**new, **both, "claims": [*claims, *new["claims"]]}


def ways(case: str, record: Record) -> Iterator[Way]:
    """Yield the ways to a step that were measured: ours under each limit, then PyTorch's."""
    measured, part = record["measurements"], CASES[case].beside is not None
    core = None if part else _median(record, f"{case}: in core: PyTorch, seconds")
    for limit in CASES[case].bounds:
        title = f"{case}, {limit}"
        seconds = _median(record, f"{title}: seconds")
        if seconds is not None:
            plan = measured[f"{title}: plan"]
            yield Way(
                OURS, f"`ooc_cudnn`, limit {limit.replace('GiB', ' GiB')}", seconds,
                record["checks"][f"{title}: peak"]["peak"], core and seconds / core,
                plan["seconds"], plan["bytes_in"] + plan["bytes_out"],
                measured[f"{title}: first step, with its plan"],
                measured.get(f"{title}: tuning, with its plans"),
            )  # fmt: skip
        forward = _median(record, f"{title}: forward, seconds")
        if forward is not None:
            yield Way(OURS, "the same, forward alone", forward)
    on_the_card = "an eighth of it" if part else "all of it on the card"
    theirs = {name: (way.contender, way.label) for name, way in reversed(WAYS.items())}
    theirs |= {"in core": ("torch_in_core", on_the_card)}
    micro_batches = "torch_micro_batches", f"micro-batches of {MICRO_BATCH}"
    for name, (contender, label) in {"micro-batches": micro_batches, **theirs}.items():
        seconds = _median(record, f"{case}: {name}: PyTorch, seconds")
        if seconds is not None:
            peak = measured[f"{case}: {name}: PyTorch, peak"]
            yield Way(contender, f"PyTorch, {label}", seconds, peak, core and seconds / core)


def _median(record: Record, name: str) -> float | None:
    found = record["measurements"].get(name)
    return None if found is None else float(found["median"])


# Tables ------------------------------------------------------------------------------------------

#: How seconds compare: 1.00x is as long as PyTorch with all of the same network on the card.
BESIDE = "time (PyTorch on the card: 1.00x)"
HEAD = ("a training step of", "by", "takes", "memory of the card", BESIDE)


def row(trained: str, way: Way) -> tuple[str, ...]:
    """A row of a table: who took how long, in how much memory."""
    return (
        trained,
        way.label,
        format_seconds(way.seconds),
        NOTHING if way.device_bytes is None else format_bytes(way.device_bytes),
        NOTHING if way.ratio is None else f"{way.ratio:.2f}x",
    )


def _usual_card(found: Mapping[str, Record]) -> str:
    """The card of most records; of as many, the first."""
    return Counter(map(machine_of, found.values())).most_common(1)[0][0]


def _trained(case: str, record: Record, card: str) -> str:
    """What a case trains, and where, if not on the card that is said of all."""
    other = machine_of(record)
    return TRAINED[case] + (f", on one {other}" if other != card else "")


def short(folder: Path = script.RESULTS) -> str:
    """Return README's section: the picture, and a row for each way."""
    by_case = {case: each for case, each in records(folder).items() if case in SHORT}
    if not by_case:
        return f"Steps of networks are {NOT_MEASURED}: `python -m benchmarks.networks`."
    card = _usual_card(by_case)
    where = next(each["environment"] for each in by_case.values() if machine_of(each) == card)
    about = ABOUT.format(card, where["versions"]["nvidia-cudnn-cu13"])
    if _leave(by_case.values()):
        about += f" {LEAVING}"
    if any(way.tuning_seconds for case, each in by_case.items() for way in ways(case, each)):
        about += TUNED
    about += "*"
    image = PICTURE.link("Seconds and memory of the card", "README.md")
    rows = [
        row(_trained(case, each, card), way)
        for case, each in by_case.items()
        for way in ways(case, each)
    ]
    return join_paragraphs((image, about, markdown(HEAD, rows, align="llr")))


ABOUT = (
    "*A training step, forward and backward, on one {} (TF32, cuDNN {}). Images come from pinned\n"
    "memory in each step."
)
LEAVING = "The gradients of `ooc_cudnn` go back there, PyTorch's stay on the card."
TUNED = "\nBoth had measured which of cuDNN's algorithms (engines) are fastest before."


def long(folder: Path = script.RESULTS) -> str:
    """Return every case: what is known of each way, and what the record is held to."""
    by_case, rows, claims = records(folder), [], []
    card = _usual_card(by_case) if by_case else ""
    for case, trained in TRAINED.items():
        if case not in by_case:
            rows.append((trained, NOT_MEASURED, *[""] * 7))
            continue
        trained = _trained(case, by_case[case], card)
        rows += [(*row(trained, way), *_of_ours(way)) for way in ways(case, by_case[case])]
        claims += [
            _claim(claim)
            for claim in by_case[case]["claims"]
            if claim["bound"] is not None and claim["name"].startswith(f"{case}, ")
        ]
    head = (*HEAD, "predicted / measured", "over the link", "first step, planned in it", "tuning")
    held = markdown(("claim", "measured", "bound", "verdict"), claims) if claims else ""
    leaving = LEAVING.replace("back there", "to pinned memory") if _leave(by_case.values()) else ""
    where = f"On one {card}, where a row names no other." if by_case else ""
    return join_paragraphs((f"{where} {leaving}".strip(), markdown(head, rows, align="llr"), held))


def _leave(stored: Iterable[Record]) -> bool:
    """Whether gradients went to the host, as they did in records that say nothing of them."""
    return any(
        not plan.get("gradient_bytes")
        for record in stored
        for name, plan in record["measurements"].items()
        if name.endswith(": plan") and ", small, " not in name
    )


def _of_ours(way: Way) -> tuple[str, str, str, str]:
    if way.predicted_seconds is None or way.link_bytes is None or way.first_seconds is None:
        return "", "", "", ""
    return (
        f"{way.predicted_seconds / way.seconds:.2f}",
        format_bytes(way.link_bytes),
        format_seconds(way.first_seconds),
        NOTHING if way.tuning_seconds is None else format_seconds(way.tuning_seconds),
    )


def _claim(claim: Mapping[str, Any]) -> tuple[str, str, str, str]:
    verdict = "PASS" if claim["holds"] else "**MISS**"
    return claim["name"], f"{claim['value']:.3g}", f"{claim['relation']} {claim['bound']}", verdict


# The picture -------------------------------------------------------------------------------------


def drawn(folder: Path = script.RESULTS) -> dict[str, list[list[Any]]]:
    """Return what the picture shows of each network: label, colour, seconds and bytes of a way."""
    by_case = records(folder)
    return {
        TRAINED[case]: [
            [way.label.replace("`", ""), canvas.CONTENDER_COLOURS[way.contender],
             way.seconds, way.device_bytes]
            for way in ways(case, by_case[case])
        ]
        for case in SHORT
        if case in by_case
    }  # fmt: skip


def draw(values: Mapping[str, Any]) -> Any:
    """A row of panels for each network: seconds on the left, memory of the card on the right."""
    lines = max(map(len, values.values()))
    figure, axes = canvas.panels(len(values), 2, width=9, height=(0.45 * lines + 0.5) * len(values))
    for (seconds, memory), (trained, bars) in zip(axes, values.items(), strict=True):
        for position, (_, colour, took, held) in enumerate(reversed(bars)):
            for panel, value, told in (
                (seconds, took, format_seconds(took)), (memory, held / 2**30, format_bytes(held))
            ):  # fmt: skip
                bar = panel.barh(position, value, 0.7, color=colour)
                panel.bar_label(bar, [told], fontsize=8, padding=3)
        seconds.set_yticks(range(len(bars)), [bar[0] for bar in reversed(bars)], fontsize=8)
        memory.set_yticks([])
        seconds.set_title(trained, fontsize=9, loc="left")
        for panel in (seconds, memory):
            panel.margins(x=0.2)
            panel.set_ylim(-0.6, lines - 0.4)
            panel.grid(axis="y", visible=False)
    axes[-1][0].set_xlabel("seconds of a training step", fontsize=8)
    axes[-1][1].set_xlabel("memory of the card, GiB", fontsize=8)
    return figure


PICTURE = canvas.Picture("docs/images/networks/measured.png", drawn, draw)
PICTURES = (PICTURE,)
BLOCKS = (Block("README.md", "steps", short), Block("docs/performance.md", "steps", long))
