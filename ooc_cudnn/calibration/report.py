"""A machine model as text: rates at usual sizes, how sure they are, what is slow or doubtful."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import Line, MachineModel
from perfmodel.lines import KEPT, SCALED, is_noisy
from perfmodel.machine import FROM_DATA_SHEETS
from perfmodel.work import CHANNEL_STEP, Direction, Work, convolution_work, pass_work

MIB = 2**20
#: A line is doubtful that is so far off on samples it had not seen; and slow, if what it stands for
#: takes so many times as long as the fastest of its kind.
DOUBTFUL, SLOW = 0.25, 2.0
#: Clocks that are so much slower or faster at the end tell nothing for certain.
DRIFTED = 0.05
#: Arithmetic that three lines tell the rate of.
TOLD = ("tf32", "bfloat16")
#: So many of the least sure lines are named.
NAMED = 3


class Usual(NamedTuple):
    """Usual sizes that rates are told for: of a copy, and of a pass.

    And a convolution of 3 x 3, from so many channels to as many, on so many square images; or a
    depthwise one.
    """

    copy_bytes: int
    pass_bytes: int
    images: int
    channels: int
    extent: int

    @classmethod
    def of(cls, model: MachineModel) -> Usual:
        """Usual sizes on a host, or on a card."""
        on_host = not model.is_of_gpu
        return cls(MIB, 2 * MIB, 1, 64, 28) if on_host else cls(16 * MIB, 128 * MIB, 32, 256, 28)

    def __str__(self) -> str:
        return (
            f"rates at usual sizes: copies of {format_bytes(self.copy_bytes)}; convolutions, 3 x 3,"
            f" {self.channels} to {self.channels} channels, on {self.images} x {self.channels} x "
            f"{self.extent} x {self.extent}; passes that read and write "
            f"{format_bytes(self.pass_bytes)} of device memory"
        )

    def work(self, key: str) -> Work:
        """Work that a line of computing is asked for."""
        kind, dtype, *more = key.split("/")
        item = {"float16": 2, "bfloat16": 2, "float64": 8}.get(dtype, 4)
        if kind == "convolution":
            channels, sites = self.channels, self.extent**2
            tensor = float(item * self.images * channels * sites)
            groups = channels if _is_depthwise(key) else 1
            directions: tuple[Direction, ...] = ("backward_data", "backward_filter")
            return convolution_work(
                key, n=self.images, c_x=channels, c_y=channels, window_sites=9, output_sites=sites,
                groups=groups, x_bytes=tensor, y_bytes=tensor,
                w_bytes=float(9 * item * channels * channels // groups),
                direction=next((each for each in directions if each in more), "forward"),
            )  # fmt: skip
        values = self.pass_bytes / 2 / item
        powers = values * ("softmax" in more)
        return pass_work(
            key, device_bytes=self.pass_bytes, elements=values, taps=values, exponentials=powers
        )


def report(model: MachineModel) -> str:
    """Return what a person may want to know of a machine.

    Examples
    --------
    >>> from perfmodel import shipped
    >>> print(report(shipped("h200")).splitlines()[0])
    h200, calibrated shipped
    """
    usual = Usual.of(model)
    rows = [f"{model.name}, calibrated {model.calibrated}", f"{usual}", "", *_table(model, usual)]
    if model.transfer.slowdowns:
        rows += ["", "while both directions are busy", *_both_ways(model, usual)]
    host = {
        "a call": model.call_seconds,
        "each operand beyond two": model.operand_seconds,
        "issuing a step": model.step_seconds,
        "one that threads stage": model.staged_step_seconds,
        "launching a kernel": model.launch_seconds,
    }
    told = (f"{name} {format_seconds(seconds)}" for name, seconds in host.items() if seconds)
    rows += ["", f"the host takes for {', '.join(told)}"]
    rows += [f"drift of {name} from first to last: {share:+.1%}" for name, share in _drifts(model)]
    if "calibration_seconds" in model.facts:
        rows.append(f"measured in {model.facts['calibration_seconds']:.1f} s")
    return "\n".join([*rows, "", *explain_confidence(model)])


def summary(model: MachineModel, kept: str) -> list[str]:
    """Return three lines: what was measured, how sure it is, and where it is kept.

    Parameters
    ----------
    model : MachineModel
    kept : str
        Where.

    Examples
    --------
    >>> from perfmodel import shipped
    >>> measured, sure, kept = summary(shipped("h200"), "a.json")
    >>> measured[:40]
    'measured  h200 in 131 s: copies 54.52 GB'
    >>> kept
    'kept in   a.json'
    """
    usual = Usual.of(model)
    copies = [
        f"{_rate(key, _taken(usual, key, model.lines[key])[1])} {way}"
        for key, way in (("copy_in/pinned", "in"), ("copy_out/pinned", "out"))
        if key in model.lines
    ]
    fastest = {
        dtype: max(rates)
        for dtype in TOLD
        if (rates := [
            _taken(usual, key, line)[1]
            for key, line in model.compute.lines.items()
            if key.startswith(f"convolution/{dtype}/") and not _is_depthwise(key)
        ])
    }  # fmt: skip
    computing = [f"{_rate('convolution', rate)} in {dtype}" for dtype, rate in fastest.items()]
    seconds = model.facts.get("calibration_seconds")
    took = "" if seconds is None else f" in {seconds:.0f} s"
    sure = explain_confidence(model)[0].removeprefix("how sure: ")
    disturbed = sum(map(len, spoilt(model).values()))
    drifted = any(abs(share) > DRIFTED for _, share in _drifts(model))
    doubts = [f"disturbed lines: {disturbed}"] * bool(disturbed) + ["clocks drifted"] * drifted
    return [
        f"measured  {model.name}{took}: copies {', '.join(copies)}; 3 x 3 convolutions up to "
        f"{', '.join(computing)}",
        f"how sure  {'; '.join([sure, *doubts])}",
        f"kept in   {kept}",
    ]


def _table(model: MachineModel, usual: Usual) -> list[str]:
    """A row for each line: seconds and rate at the usual size, errors, and what is to be noted."""
    taken = {key: _taken(usual, key, line) for key, line in model.lines.items()}
    cells = [["", "takes", "rate", "residual", "held out", "spread", ""]]
    for key in sorted(taken, key=lambda key: (not key.startswith("copy_"), key)):
        (seconds, rate), quality = taken[key], model.quality.get(key, {})
        best = max(other for name, (_, other) in taken.items() if _kind(name) == _kind(key))
        slow = f"slow: {best / rate:.2g} times slower than the fastest of its kind" if rate else ""
        notes = [_doubt(key, quality) if model.quality else "", slow if SLOW * rate < best else ""]
        held_out = None if quality.get("samples") == 1 else quality.get("held_out_error")
        shares = quality.get("residual"), held_out, quality.get("spread")
        told = ["" if share is None else f"{share:.1%}" for share in shares]
        row = [key, format_seconds(seconds), _rate(key, rate), *told]
        cells.append([*row, "; ".join(filter(None, notes))])
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [
        "  ".join([key.ljust(first), *map(str.rjust, told, widths), notes]).rstrip()
        for key, *told, notes in cells
    ]


def _kind(key: str) -> str:
    """Group of lines that a line is compared with: copies of a direction, computing of a type."""
    kind = "/".join(key.split("/")[: 1 if key.startswith("copy_") else 2])
    return f"{kind}/depthwise" if _is_depthwise(key) else kind


def _is_depthwise(key: str) -> bool:
    return key.endswith("/depthwise")


def _taken(usual: Usual, key: str, line: Line) -> tuple[float, float]:
    """Seconds, and bytes or flops a second: 0 where it takes as long whatever the size."""
    if key.startswith("copy_"):
        seconds = line.seconds(usual.copy_bytes)
        return seconds, usual.copy_bytes / seconds
    work = usual.work(key)
    seconds = line.seconds(work.amount, work.features)
    # of a step of channels that is counted, a depthwise window computes one
    amount = work.amount / CHANNEL_STEP if _is_depthwise(key) else work.amount
    return seconds, amount / seconds if seconds > 2.0 * line.beta else 0.0


def _rate(key: str, rate: float) -> str:
    unit = "FLOP/s" if key.startswith("convolution") else "B/s"
    scale, prefix = (1e12, "T") if unit == "FLOP/s" and rate >= 1e12 else (1e9, "G")
    return f"{rate / scale:.4g} {prefix}{unit}" if rate else ""


def _doubt(key: str, quality: Mapping[str, float]) -> str:
    """Why a line may not be right; nothing where it should be."""
    if not quality:
        return "not measured: a known line, scaled as the nearest measured one"
    if KEPT in quality:
        return "disturbed: kept from the earlier calibration"
    if SCALED in quality:
        return "disturbed: a known line scaled"
    doubtful = is_noisy(key, quality.get("spread", 0.0)) or _error(quality) > DOUBTFUL
    return "doubtful" if doubtful else ""


def _error(quality: Mapping[str, float]) -> float:
    """The error on samples held out; of a single one, none was."""
    return quality.get("held_out_error", 0.0) if quality.get("samples") != 1 else 0.0


def _both_ways(model: MachineModel, usual: Usual) -> Iterator[str]:
    """Rates that are left of each direction, for each pair."""
    for pair, slower in model.transfer.slowdowns.items():
        source, target = pair.split("/")
        said = []
        for way, placement in ("in", source), ("out", target):
            if line := model.lines.get(f"copy_{way}/{placement}"):
                alone = usual.copy_bytes / line.seconds(usual.copy_bytes) / 1e9
                factor = getattr(slower, f"copy_{way}")
                said.append(f"{way} {alone / factor:.1f} of {alone:.1f} GB/s")
        if (spread := model.quality.get(f"duplex/{pair}", {}).get("spread")) is not None:
            said.append(f"spread {spread:.1%}")
        yield f"  in from {source:<8} out to {target:<8}  {', '.join(said)}"


def _drifts(model: MachineModel) -> list[tuple[str, float]]:
    """Shares by which the same copy and the same launch took longer at the end."""
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


def explain_confidence(model: MachineModel) -> list[str]:
    """Say how far the lines of a calibration can be trusted, and what that means for plans.

    Examples
    --------
    >>> from perfmodel import shipped
    >>> explain_confidence(shipped("host"))[0].startswith("how sure: half of the lines")
    True
    """
    held = {
        key: of for key, of in model.quality.items() if {"held_out_error", "spread"} <= of.keys()
    }
    if model.calibrated == FROM_DATA_SHEETS:
        return [f"how sure: not measured; scaled {FROM_DATA_SHEETS}"]
    if not held:
        return ["how sure: not known; this model does not say how well it was fitted"]
    wrong = {key: max(of["spread"], _error(of)) for key, of in held.items()}
    single = {key for key, of in held.items() if of.get("samples") == 1}
    told = {key: share for key, share in wrong.items() if key not in single} or wrong
    least = sorted(told, key=lambda key: -told[key])[:NAMED]
    lines = [
        f"how sure: half of the lines are right within {statistics.median(told.values()):.0%}; "
        f"least sure are {', '.join(f'{key} ({told[key]:.0%})' for key in least)}"
    ]
    if single:
        lines.append(f"known lines, scaled to one measurement each: {len(single)}")
    kept, scaled = spoilt(model).values()
    drifts = {name: share for name, share in _drifts(model) if abs(share) > DRIFTED}
    if not kept and not scaled and not drifts:
        return [*lines, "nothing was disturbed: plans are as sure as these lines"]
    if kept:
        lines.append(f"disturbed, and kept from the earlier calibration: {_few(kept)}")
    if scaled:
        lines.append(f"disturbed, and known lines scaled to what was seen: {_few(scaled)}")
    if drifts:
        drifted = ", ".join(f"{name} by {share:+.0%}" for name, share in drifts.items())
        lines.append(f"clocks drifted while it measured: {drifted}")
    meaning = "plans are as good as after the earlier calibration"
    if scaled or not kept:
        worst = max([wrong[key] for key in scaled if key in wrong] or map(abs, drifts.values()))
        meaning = (
            f"predicted seconds may be off by {worst:.0%} and more where such a line counts, and "
            "plans slower than the best. Calibrate again when the machine is quiet: lines that "
            "were measured well are kept"
        )
    return [*lines, f"results are right in any case; {meaning}"]


def _few(keys: list[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return f"{len(keys)} of the lines ({', '.join(keys[:NAMED])}{more})"
