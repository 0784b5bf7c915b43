"""Figures of cards from their data sheets, from which `scaling` makes profiles nobody measured.

Rates are peaks: of dense products that are summed in float32, of device memory, and of the link in
one direction. Sheets of GeForce cards and of the L4 name products of sparse matrices, or such
that are summed in float16: half of these. What a page gives that could be looked up stands in
`sources` (read on 2026-12-01); `unverified` names figures that none of these pages has: they are
from the vendor's sheets as remembered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

GIB = 2**30

USABLE_SHARE = 0.98
"""Share of a card's memory that CUDA shows: 0.98 to 0.99 of the cards that were seen."""

LEFT_BY_ECC = 15 / 16
"""Share of GDDR memory that is left where its error correction is kept in it."""

PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0
"""GB/s of sixteen lanes, each way."""


@dataclass(frozen=True)
class DataSheet:
    """Data sheet of a card.

    Parameters
    ----------
    name : str
        Of its profile.
    model : str
        As the driver writes it within the name of the card, in lower case.
    compute_capability : float
    memory_gib : float
    memory_gb_s : float
        Bandwidth of device memory.
    half, tf32, float32, float64 : float
        TFLOP/s. 0 where there is no such arithmetic: TF32 is computed as float32 then.
    link_gb_s : float
        To the host, each way.
    l2_mb : float
        Its second-level cache.
    has_bfloat16 : bool
        Whether tensor cores take bfloat16, as fast as float16: it is computed as float32 else.
    has_inline_ecc : bool
        Whether error correction is kept in the memory itself.
    host_gb_s : float
        Bandwidth of host memory where it binds when both directions of the link are busy; else 0.
    sources : tuple of str
    unverified : tuple of str
    """

    name: str
    model: str
    compute_capability: float
    memory_gib: float
    memory_gb_s: float
    half: float
    tf32: float
    float32: float
    float64: float
    link_gb_s: float
    l2_mb: float
    sources: tuple[str, ...]
    unverified: tuple[str, ...] = ()
    has_bfloat16: bool = True
    has_inline_ecc: bool = False
    host_gb_s: float = 0.0

    @property
    def device_bytes(self) -> int:
        """Bytes that CUDA shows, or a little fewer.

        Examples
        --------
        >>> round(SHEETS["l4"].device_bytes / 2**30, 2)
        22.05
        """
        left = LEFT_BY_ECC if self.has_inline_ecc else 1.0
        return int(self.memory_gib * GIB * left * USABLE_SHARE)


_LOCKWOOD = "https://glennklockwood.com/garden/processors"
_A10 = "https://sysrqmts.com/ru/gpus/compare/nvidia-a10-pcie-vs-nvidia-quadro-rtx-4000"
_V100 = (
    "https://sysrqmts.com/es/gpus/compare/nvidia-tesla-t4-vs-nvidia-tesla-v100-sxm3-32-gb",
    "https://hmc-tech.com/gpu/nvidia-t4-vs-nvidia-v100-sxm",
)

#: The card whose profile was measured, and is scaled to others.
MEASURED_SHEET = DataSheet(
    "h100", "h100", 9.0, 80, 3350, 989.4, 494.7, 66.9, 33.5, PCIE_5, 50,
    (f"{_LOCKWOOD}/h100", "https://archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html"),
)  # fmt: skip

_TABLE = (
    # name, model, capability, GiB, GB/s, half, TF32, float32, float64, link GB/s, L2 MB
    DataSheet(
        "rtx3060", "rtx 3060", 8.6, 12, 360, 25.5, 12.7, 12.7, 0.2, PCIE_4, 3,
        ("https://pcpartdb.com/gpus/view/nvidia-geforce-rtx-3060-12-gb-ga104",
         "http://cholla.mmto.org/nvidia/my3060.html"),
        unverified=("half", "tf32"),
    ),
    DataSheet(
        "rtx3090", "rtx 3090", 8.6, 24, 936, 71.0, 35.6, 35.6, 0.56, PCIE_4, 6,
        ("https://holynerdvana.blogspot.com/2022/10/nvidia-geforce-rtx-3090-specifications.html",),
        unverified=("tf32", "float64"),
    ),
    DataSheet(
        "rtx4090", "rtx 4090", 8.9, 24, 1008, 165.2, 82.6, 82.6, 1.29, PCIE_4, 72,
        ("https://waredb.com/processor/nvidia-geforce-rtx-4090",),
        unverified=("link_gb_s",),
    ),
    DataSheet(
        "rtx5090", "rtx 5090", 12.0, 32, 1792, 209.5, 104.8, 104.8, 1.64, PCIE_5, 96,
        ("https://main-horse.github.io/posts/5090-mm-perf",
         "https://www.spheron.network/blog/nvidia-rtx-5090-specs/"),
        unverified=("float64",),
    ),
    DataSheet(
        "a10", "a10", 8.6, 24, 600, 125.0, 62.5, 31.2, 0.49, PCIE_4, 6, (_A10,),
        unverified=("half", "tf32", "float64"), has_inline_ecc=True,
    ),
    DataSheet(
        "l4", "l4", 8.9, 24, 300, 121.0, 60.0, 30.3, 0.47, PCIE_4, 48,
        ("https://fpsbench.com/compare/gpu/nvidia-l4-vs-nvidia-tesla-m40",
         "https://store.sourcecode.com/en-us/bg-bucket-compare/125/9820"),
        has_inline_ecc=True,
    ),
    DataSheet(
        "t4", "t4", 7.5, 16, 320, 65.1, 0.0, 8.1, 0.25, PCIE_3, 4, _V100,
        has_bfloat16=False, has_inline_ecc=True,
    ),
    DataSheet(
        "v100-16gb", "v100", 7.0, 16, 897, 125.3, 0.0, 15.7, 7.8, PCIE_3, 6, _V100,
        has_bfloat16=False,
    ),
    DataSheet(
        "v100-32gb", "v100", 7.0, 32, 897, 125.3, 0.0, 15.7, 7.8, PCIE_3, 6, _V100,
        has_bfloat16=False,
    ),
    DataSheet(
        "a100-40gb", "a100", 8.0, 40, 1555, 312.0, 156.0, 19.5, 9.7, PCIE_4, 40,
        (f"{_LOCKWOOD}/A100",),
    ),
    DataSheet(
        "a100-80gb", "a100", 8.0, 80, 2039, 312.0, 156.0, 19.5, 9.7, PCIE_4, 40,
        (f"{_LOCKWOOD}/A100",),
    ),
    DataSheet(
        "gh200", "gh200", 9.0, 96, 4000, 989.4, 494.7, 66.9, 33.5, 450.0, 50,
        ("https://datacrunch.io/blog/data-movement-in-the-nvidia-gh200-grace-hopper-superchip",),
        unverified=("half", "tf32", "float32", "float64", "host_gb_s"), host_gb_s=512.0,
    ),
    DataSheet(
        "b200", "b200", 10.0, 180, 8000, 2250.0, 1125.0, 75.0, 37.0, PCIE_5, 126,
        (f"{_LOCKWOOD}/B200", "https://hmc-tech.com/gpu/nvidia-b200-vs-nvidia-gb200"),
        unverified=("memory_gib", "link_gb_s", "l2_mb"),
    ),
)  # fmt: skip

#: Sheets of cards that have no measured profile, by name.
SHEETS = {sheet.name: sheet for sheet in _TABLE}

#: Those of cards that have one: the H200 is the H100 with more memory.
_OF_MEASURED = (
    MEASURED_SHEET,
    replace(MEASURED_SHEET, name="h200", model="h200", memory_gib=141, memory_gb_s=4800),
)


def nearest_sheet(
    card: str,
    device_bytes: int,
    compute_capability: float | None = None,
    among: Iterable[DataSheet] = (*_OF_MEASURED, *_TABLE),
) -> DataSheet | None:
    """Return the sheet of a card, or of the one that is most like it.

    Of several models that the name holds, or of none, it is the one whose compute capability is
    nearest, then whose family (RTX, or not), then whose memory. Cards on a link of their own to
    the host are known by name only.

    Parameters
    ----------
    card : str
        As the driver names it.
    device_bytes : int
    compute_capability : float, optional
        Where it is unknown, a card whose name is unknown is like none: None is returned.
    among : iterable of DataSheet

    Examples
    --------
    >>> nearest_sheet("NVIDIA A100-SXM4-40GB", 40 * GIB).name
    'a100-40gb'
    >>> nearest_sheet("NVIDIA GeForce RTX 3080", 10 * GIB, 8.6).name
    'rtx3060'
    >>> nearest_sheet("a card", 10 * GIB) is None
    True
    """
    sheets = tuple(among)
    said = card.lower()
    named = [sheet for sheet in sheets if re.search(rf"\b{sheet.model}\b", said)]
    if compute_capability is None and not named:
        return None

    def distance(sheet: DataSheet) -> tuple[float, bool, float]:
        known = sheet.compute_capability if compute_capability is None else compute_capability
        more = math.log(sheet.device_bytes / max(device_bytes, 1))
        is_of_family = ("rtx" in said) == ("rtx" in sheet.model)
        return round(abs(sheet.compute_capability - known), 1), not is_of_family, abs(more)

    return min(named or (sheet for sheet in sheets if not sheet.host_gb_s), key=distance)
