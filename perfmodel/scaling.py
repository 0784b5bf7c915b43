"""The profile of a card from that of another one, by the ratios of their data sheets.

Each line of the measured card is scaled, term by term: what counts arithmetic by the ratio of
FLOP/s of its type, everything else by that of the bandwidths of device memory, copies by that of
the links. Launches and what the host takes stay as they are: no sheet tells them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .compute import ComputeModel
from .data_sheets import DataSheet
from .linear import Line
from .machine import FROM_DATA_SHEETS, MachineModel
from .record import rounded
from .slowdown import Slowdown
from .transfer import TransferModel
from .work import CACHE_BYTES

#: Terms of convolutions that count arithmetic; so does alpha.
_FLOPS = {"flops_x128", "flops_y128", "flops_wide_window", "wave_flops"}
#: Terms of passes that count what is computed in float64 where the values are.
_COMPUTED = {"elements", "taps", "exponentials"}
_HALVES = ("float16", "bfloat16")


def scaled_machine(measured: MachineModel, of: DataSheet, to: DataSheet) -> MachineModel:
    """Return the profile of the card of a sheet, scaled from one that was measured.

    Parameters
    ----------
    measured : MachineModel
    of : DataSheet
        Of the card that was measured.
    to : DataSheet
    """
    memory = of.memory_gb_s / to.memory_gb_s
    link = of.link_gb_s / to.link_gb_s
    lost = measured.losses.get("copies", 0.0) * memory / link
    return replace(
        measured,
        name=to.name,
        calibrated=FROM_DATA_SHEETS,
        identity={
            "gpu": to.model.upper(),
            "host": "any",
            "device_bytes": str(to.device_bytes),
            "note": _note(of, to),
        },
        transfer=_scaled_link(measured.transfer, of, to),
        compute=ComputeModel(
            {key: _scaled(key, measured.compute.lines, of, to) for key in measured.compute.lines},
            launching=measured.compute.launching,
        ),
        # the share of device memory's bandwidth that a copy takes
        losses={**measured.losses, "copies": rounded(min(lost, 1.0), 3)},
        quality={},
        samples={},
        facts={},
    )


def arithmetic_ratio(dtype: str, of: DataSheet, to: DataSheet) -> float:
    """Return how many times as long products take that are as fast as the sheets say.

    Parameters
    ----------
    dtype : str
        As in the keys of lines: "tf32", "float16".
    of, to : DataSheet
    """
    kind = "half" if dtype in _HALVES else dtype
    ratio: float = getattr(of, kind) / getattr(to, kind)
    return ratio


def computed_as(dtype: str, card: DataSheet) -> str:
    """Return the arithmetic by which a card computes products of a type.

    Examples
    --------
    >>> from perfmodel.data_sheets import SHEETS
    >>> [computed_as(dtype, SHEETS["t4"]) for dtype in ("tf32", "bfloat16", "float16")]
    ['float32', 'float32', 'float16']
    """
    lacks = (dtype == "tf32" and not card.tf32) or (dtype == "bfloat16" and not card.has_bfloat16)
    return "float32" if lacks else dtype


def _scaled_link(link: TransferModel, of: DataSheet, to: DataSheet) -> TransferModel:
    slower = of.link_gb_s / to.link_gb_s
    copies = {
        way: {
            place: replace(line, alpha=line.alpha * _copy_ratio(place, slower))
            for place, line in getattr(link, way).items()
        }
        for way in ("copy_in", "copy_out")
    }
    slowdowns = dict(link.slowdowns)
    if to.host_gb_s:
        both = sum(1e-9 / copies[way]["pinned"].alpha for way in copies)
        # both directions read or write one memory of the host
        shared = rounded(max(both / to.host_gb_s, 1.0), 5)
        slowdowns["pinned/pinned"] = Slowdown(shared, shared)
    return TransferModel(copies["copy_in"], copies["copy_out"], slowdowns, link.latency)


def _copy_ratio(placement: str, slower: float) -> float:
    """Copies that are staged wait for a slower link, and for the host where it is faster."""
    if placement == "pinned":
        return slower
    return max(slower, 1.0) if placement == "pageable" else 1.0


def _scaled(key: str, lines: Mapping[str, Line], of: DataSheet, to: DataSheet) -> Line:
    """The line of a key, scaled term by term."""
    kind, dtype, *_ = key.split("/")
    memory = of.memory_gb_s / to.memory_gb_s
    if kind != "convolution":
        computed = (
            max(memory, arithmetic_ratio("float64", of, to)) if dtype == "float64" else memory
        )
        line = _without_cache(lines[key], min(to.l2_mb * 1e6 / CACHE_BYTES, 1.0))
        terms = {
            name: rate * (computed if name in _COMPUTED else memory)
            for name, rate in line.terms.items()
        }
        return Line(line.alpha * memory, line.beta, terms)
    by = computed_as(dtype, to)
    line = lines.get(key.replace(dtype, by), lines[key])
    # windows of one channel each are computed without tensor cores
    flops = arithmetic_ratio("float32" if key.endswith("/depthwise") else by, of, to)
    terms = {
        name: rate * (flops if name in _FLOPS else memory) for name, rate in line.terms.items()
    }
    return Line(line.alpha * flops, line.beta, terms)


def _without_cache(line: Line, share: float) -> Line:
    """The line where a cache holds a share of the bytes that `uncached_bytes` supposes."""
    beyond = line.terms.get("uncached_bytes", 0.0)
    if not beyond:
        return line
    terms = {**line.terms, "uncached_bytes": beyond * share}
    return Line(line.alpha + beyond * (1.0 - share), line.beta, terms)


def _note(of: DataSheet, to: DataSheet) -> str:
    """Source of the figures, and what the card lacks."""
    without = [
        name for name, there in (("TF32", to.tf32), ("bfloat16", to.has_bfloat16)) if not there
    ]
    lacks = f" No tensor cores for {' and '.join(without)}: as float32." if without else ""
    return (
        f"Not measured: the figures of the {of.name}, scaled by data sheets. Device memory "
        f"{to.memory_gb_s:g} GB/s, {to.half:g} TFLOP/s in float16, {to.float32:g} in float32, the "
        f"link {to.link_gb_s:g} GB/s each way, L2 {to.l2_mb:g} MB.{lacks} Launches and the host "
        f"are as of the {of.name}. Run 'ooc-cudnn calibrate' on the card itself."
    )
