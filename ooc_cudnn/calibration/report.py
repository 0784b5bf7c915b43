"""A machine model as text: rates at usual sizes, how sure they are, what is slow or doubtful."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ooc_cudnn.calibration.lines import KEPT, SCALED, is_noisy
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import Line, MachineModel
from perfmodel.work import Work, convolution_work, pass_work

MIB = 2**20
#: A line is doubtful that is so far off on samples it had not seen; and slow, if what it stands for
#: takes so many times as long as the fastest of its like.
DOUBTFUL, SLOW = 0.25, 2.0
#: Clocks that are so much slower or faster at the end tell nothing for certain.
DRIFTED = 0.05
#: So many of the least sure lines are named.
NAMED = 3

_HEADER = ("", "takes", "rate", "residual", "held out", "spread", "")
_FACTS = {
    "allocate_pinned_bytes_per_second": "allocating pinned memory",
    "pin_bytes_per_second": "page-locking plain memory",
    "unpin_bytes_per_second": "releasing it",
}


class Usual(NamedTuple):
    """What the rates of a report are told for.

    A copy of so many bytes; a pass that reads and writes as many; a convolution, 3 x 3, on so many
    images of so many channels, as many as it makes, and sites.
    """

    copy_bytes: int
    pass_bytes: int
    images: int
    channels: int
    extent: int

    @classmethod
    def of(cls, model: MachineModel) -> Usual:
        """On a card, or on a host."""
        if model.identity.get("gpu", "none") == "none":
            return cls(MIB, 2 * MIB, 1, 64, 28)
        return cls(16 * MIB, 128 * MIB, 32, 256, 28)

    def __str__(self) -> str:
        sizes = f"{self.images} x {self.channels} x {self.extent} x {self.extent}"
        return (
            f"rates at usual sizes: copies of {format_bytes(self.copy_bytes)}; convolutions, "
            f"3 x 3, {self.channels} to {self.channels} channels, on {sizes}; passes that read "
            f"and write {format_bytes(self.pass_bytes)} of device memory"
        )

    def work(self, key: str) -> Work:
        """What a line of computing is asked for."""
        kind, dtype, *more = key.split("/")
        item = {"float16": 2, "bfloat16": 2, "float64": 8}.get(dtype, 4)
        if kind == "convolution":
            tensor = float(item * self.images * self.channels * self.extent**2)
            return convolution_work(
                key, n=self.images, c_x=self.channels, c_y=self.channels, window_sites=9,
                output_sites=self.extent**2, x_bytes=tensor, y_bytes=tensor,
                w_bytes=float(9 * item * self.channels**2),
                direction="forward" if len(more) < 2 else more[1],  # type: ignore[arg-type]
            )  # fmt: skip
        elements = self.pass_bytes / 2 / item
        exponentials = elements * ("softmax" in more)
        return pass_work(
            key, device_bytes=self.pass_bytes, elements=elements, taps=elements,
            exponentials=exponentials,
        )  # fmt: skip


class Row(NamedTuple):
    """What is said of a line; `amount` is of bytes, or of operations, in `seconds`."""

    key: str
    seconds: float
    amount: float
    notes: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """A second."""
        return self.amount / self.seconds if self.seconds else 0.0


def report(model: MachineModel) -> str:
    """Return what a person may want to know of a machine.

    Parameters
    ----------
    model : MachineModel

    Examples
    --------
    >>> from perfmodel import shipped
    >>> print(report(shipped("h200")).splitlines()[0])
    h200, calibrated shipped
    """
    usual = Usual.of(model)
    rows = [f"{model.name}, calibrated {model.calibrated}", str(usual)]
    rows += ["", *_table(model, usual), ""]
    if model.transfer.slowdowns:
        rows += ["while both directions are busy", *_both_ways(model, usual), ""]
    host = {
        "a call": model.call_seconds,
        "each operand beyond two": model.operand_seconds,
        "issuing a step": model.step_seconds,
        "one that threads stage": model.staged_step_seconds,
        "launching a kernel": model.launch_seconds,
    }
    told = (f"{name} {format_seconds(seconds)}" for name, seconds in host.items() if seconds)
    rows.append(f"the host takes for {', '.join(told)}")
    rows += [
        f"{words}: {model.facts[name] / 1e9:.2f} GB/s"
        for name, words in _FACTS.items()
        if name in model.facts
    ]
    for name, value in model.facts.items():
        if name.startswith("strided_"):
            which = name.removeprefix("strided_").removesuffix("_over_plain").replace("_", " ")
            rows.append(f"strided {which}: {value:.2f} times as long as a plain one")
    rows += [f"drift of {name} from first to last: {share:+.1%}" for name, share in _drifts(model)]
    if "calibration_seconds" in model.facts:
        rows.append(f"measured in {model.facts['calibration_seconds']:.1f} s")
    return "\n".join([*rows, "", *how_sure(model)])


def _table(model: MachineModel, usual: Usual) -> list[str]:
    """A row for each line: seconds and rate at the usual size, errors, and what is to be noted."""
    cells: list[tuple[str, ...]] = [_HEADER]
    for row in _rows(model, usual):
        quality = model.quality.get(row.key, {})
        shares = (
            f"{quality[name]:.1%}" if name in quality else ""
            for name in ("residual", "held_out_error", "spread")
        )
        cells.append(
            (row.key, format_seconds(row.seconds), _rate(row), *shares, "; ".join(row.notes))
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if at in (0, len(widths) - 1) else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _rate(row: Row) -> str:
    if not row.amount:
        return ""
    unit = "FLOP/s" if row.key.startswith("convolution") else "B/s"
    scale, prefix = (1e12, "T") if unit == "FLOP/s" and row.rate >= 1e12 else (1e9, "G")
    return f"{row.rate / scale:.4g} {prefix}{unit}"


def _rows(model: MachineModel, usual: Usual) -> Iterator[Row]:
    found = []
    for key, line in model.lines.items():
        if key.startswith("copy_"):
            found.append(Row(key, line.seconds(usual.copy_bytes), usual.copy_bytes))
        else:
            work = usual.work(key)
            seconds = line.seconds(work.amount, work.features)
            # what takes about as long whatever its size has no rate
            bound = seconds > 2.0 * line.beta
            found.append(Row(key, seconds, work.amount if bound else 0.0))
    fastest: dict[tuple[str, ...], float] = {}
    for row in found:
        fastest[_like(row.key)] = max(fastest.get(_like(row.key), 0.0), row.rate)
    for row in found:
        notes = list(_doubts(row.key, model.quality.get(row.key, {})))
        if row.rate and SLOW * row.rate < fastest[_like(row.key)]:
            notes.append(f"slow: {row.rate / fastest[_like(row.key)]:.2g} of the fastest like it")
        yield row._replace(notes=tuple(notes))


def _like(key: str) -> tuple[str, ...]:
    """What a line is compared with: copies of one direction, convolutions or passes of one type."""
    parts = key.split("/")
    return tuple(parts[:1] if key.startswith("copy_") else parts[:2])


def _doubts(key: str, quality: Mapping[str, float]) -> Iterator[str]:
    if KEPT in quality:
        yield "disturbed: kept from the earlier calibration"
    elif SCALED in quality:
        yield "disturbed: a known line scaled"
    elif is_noisy(key, quality.get("spread", 0.0)) or _error(quality) > DOUBTFUL:
        yield "doubtful"


def _error(quality: Mapping[str, float]) -> float:
    """The error on samples held out; of a single one, none was."""
    return quality.get("held_out_error", 0.0) if quality.get("samples", 2.0) > 1 else 0.0


def _both_ways(model: MachineModel, usual: Usual) -> Iterator[str]:
    """What is left of the rate of each direction, of each pair."""
    for pair, slower in model.transfer.slowdowns.items():
        source, target = pair.split("/")
        said = []
        for way, placement, factor in (
            ("in", source, slower.copy_in), ("out", target, slower.copy_out),
        ):  # fmt: skip
            line: Line | None = model.lines.get(f"copy_{way}/{placement}")
            if line is not None:
                alone = usual.copy_bytes / line.seconds(usual.copy_bytes) / 1e9
                said.append(f"{way} {alone / factor:.1f} of {alone:.1f} GB/s")
        spread = model.quality.get(f"duplex/{pair}", {}).get("spread")
        varied = f", spread {spread:.1%}" if spread is not None else ""
        yield f"  in from {source:<8} out to {target:<8}  {', '.join(said)}{varied}"


def _drifts(model: MachineModel) -> list[tuple[str, float]]:
    """How much longer the same copy and the same launch took at the end."""
    return [
        (name.removeprefix("drift_of_").removesuffix("_share").replace("_", " "), share)
        for name, share in model.facts.items()
        if name.startswith("drift_of_")
    ]


def spoilt(model: MachineModel) -> dict[str, list[str]]:
    """Return the lines of a calibration that were spoilt: kept from an earlier one, or scaled."""
    return {
        kind: sorted(key for key, held in model.quality.items() if kind in held)
        for kind in (KEPT, SCALED)
    }


def how_sure(model: MachineModel) -> list[str]:
    """Say how far the lines of a calibration can be trusted, and what that means for plans.

    Examples
    --------
    >>> from perfmodel import shipped
    >>> how_sure(shipped("host"))[0].startswith("how sure: half of the lines")
    True
    """
    held = {
        key: of for key, of in model.quality.items() if {"held_out_error", "spread"} <= of.keys()
    }
    if not held:
        return ["how sure: not known; this model does not say how well it was fitted"]
    wrong = {key: max(of["spread"], _error(of)) for key, of in held.items()}
    single = sum(of.get("samples") == 1 for of in held.values())
    told = {key: share for key, share in wrong.items() if held[key].get("samples") != 1} or wrong
    least = sorted(told, key=lambda key: -told[key])[:NAMED]
    named = ", ".join(f"{key} ({told[key]:.0%})" for key in least)
    lines = [
        f"how sure: half of the lines are right within {statistics.median(told.values()):.0%}; "
        f"least sure are {named}"
    ]
    if single:
        lines.append(f"known lines, scaled to one measurement each: {single}")
    kept, scaled = spoilt(model).values()
    drifted = [f"{name} by {share:+.0%}" for name, share in _drifts(model) if abs(share) > DRIFTED]
    if not kept and not scaled and not drifted:
        return [*lines, "nothing was disturbed: plans are as sure as these lines"]
    if kept:
        lines.append(f"disturbed, and kept from the earlier calibration: {_few(kept)}")
    if scaled:
        lines.append(f"disturbed, and known lines scaled to what was seen: {_few(scaled)}")
    if drifted:
        lines.append(f"clocks drifted while it measured: {', '.join(drifted)}")
    if kept and not scaled:
        meaning = "plans are as good as after the earlier calibration"
    else:
        shares = [wrong[key] for key in scaled if key in wrong] or [
            abs(share) for _, share in _drifts(model)
        ]
        meaning = (
            f"predicted seconds may be off by {max(shares):.0%} and more where such a line counts, "
            "and plans slower than the best. Calibrate again when the machine is quiet: lines that "
            "were measured well are kept"
        )
    return [*lines, f"results are right in any case; {meaning}"]


def _few(keys: list[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return f"{len(keys)} of the lines ({', '.join(keys[:NAMED])}{more})"
