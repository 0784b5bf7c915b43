"""Work: the features of one computation, from which `compute` predicts its seconds.

Planning counts the work of thousands of pieces, so what is counted from shapes is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from .record import Table, number, text

Known = TypeVar("Known")
Direction = Literal["forward", "backward_data", "backward_filter"]

CHANNEL_STEP = 32
"""Kernels compute output channels in multiples of so many (the paper's section 4.2)."""

TILE_CHANNELS = 128
"""Channels of the wide tiles in which matrix units compute."""

WIDE_WINDOW = 3
"""Engines for windows that are wider than this, along any axis, are slower."""

WAVE_TILES = 132
"""Tiles that are computed at once, one on each multiprocessor: those of an H200."""

SITES_COUNT = 2.0
"""Weight of the sites of an image in `Work.distance`, beside the amount."""

CACHE_BYTES = 48 * 2**20
"""Bytes of a pass beyond these are read and written in device memory; the rest is found in the
cache, where earlier work left it. (An H200's has 50 MB.)"""


@dataclass(frozen=True)
class Work:
    """The features of one computation from which its seconds are predicted.

    Parameters
    ----------
    key : str
        Names the line, most general part first: "convolution/tf32/channels_last",
        "pointwise/float32".
    flops : float
        Floating-point operations; what convolutions are linear in.
    device_bytes : float
        Bytes read and written in device memory; what everything else is linear in.
    features : mapping from name to float
        What else seconds may be linear in: a line has a rate for those that count.
    problem : str
        What is computed, whatever its size: "64 to 128, 3x3" for one. All computations of one key
        and problem are about as well or badly predicted, so one that was tried corrects the others
        that are nearest to it (`ComputeModel.corrected`).
    """

    key: str
    flops: float
    device_bytes: float
    features: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    def __post_init__(self) -> None:
        text("key", self.key)
        object.__setattr__(self, "flops", number("flops", self.flops))
        object.__setattr__(self, "device_bytes", number("device_bytes", self.device_bytes))
        features = {name: number(name, amount) for name, amount in self.features.items()}
        object.__setattr__(self, "features", Table(features))

    @classmethod
    def _counted(
        cls,
        key: str,
        flops: float,
        device_bytes: float,
        features: Mapping[str, float],
        problem: str,
    ) -> Work:
        """Work whose numbers need no checks: they were counted from shapes."""
        work = object.__new__(cls)
        work.__dict__.update(
            key=key,
            flops=flops,
            device_bytes=device_bytes,
            features=Table(features),
            problem=problem,
        )
        return work

    @property
    def amount(self) -> float:
        """Amount that the seconds are linear in: flops of a convolution, else device bytes.

        Examples
        --------
        >>> Work("pointwise/float32", flops=0.0, device_bytes=64.0).amount
        64.0
        """
        return self.flops if self.key.startswith("convolution") else self.device_bytes

    @property
    def in_full_waves(self) -> Work:
        """The same work, as if the last wave of tiles took no longer than its tiles do.

        Examples
        --------
        >>> work = Work("convolution", 1e9, 0.0, {"flops_y128": 2e9, "wave_flops": 3e9})
        >>> work.in_full_waves.features["wave_flops"]
        2000000000.0
        """
        if "wave_flops" not in self.features:
            return self
        tiled = "flops_x128" if "/backward_data" in self.key else "flops_y128"
        features = {**self.features, "wave_flops": self.features[tiled]}
        return Work._counted(self.key, self.flops, self.device_bytes, features, self.problem)

    @property
    def kind(self) -> str:
        """Key and problem: what is the same for all sizes of one computation."""
        return f"{self.key}: {self.problem}"

    @property
    def image_sites(self) -> float:
        """The sites of an image that is convolved, in each group; 1 for anything else.

        Examples
        --------
        >>> Work("convolution", 1e9, 0.0, {"sites": 600.0, "products": 6.0}).image_sites
        100.0
        """
        images = self.features.get("products", 0.0)
        return (self.features["sites"] / images if images else 0.0) or 1.0

    @property
    def sized(self) -> str:
        """Kind, amount and sites of an image: one computation of one size."""
        return f"{self.kind}; {self.amount:.9g} at {self.image_sites:.9g}"

    def distance(self, other: Work) -> float:
        """Return the distance of two sizes of a kind: logarithms of ratios.

        Of the amounts; and of the sites of an image, which count for more than how many images
        there are.

        Examples
        --------
        >>> near, far, asked = (
        ...     Work("convolution", 2e6 * sites * images, 0.0, {"sites": sites, "products": images})
        ...     for sites, images in ((200.0, 16.0), (800.0, 16.0), (200.0, 64.0))
        ... )
        >>> near.distance(asked) < far.distance(asked)
        True
        """
        amounts = max(self.amount, 1.0) / max(other.amount, 1.0)
        sites = self.image_sites / other.image_sites
        return abs(math.log(amounts)) + SITES_COUNT * abs(math.log(sites))

    def nearest(self, known: Iterable[Known], of: Callable[[Known], Work]) -> Known:
        """The one of several known whose work is nearest; of two as near, that of more work.

        Examples
        --------
        >>> sizes = [Work("pointwise", 0.0, nbytes) for nbytes in (16.0, 64.0, 200.0)]
        >>> [Work("pointwise", 0.0, nbytes).nearest(sizes, lambda each: each).device_bytes
        ...  for nbytes in (1.0, 32.0, 90.0)]
        [16.0, 64.0, 64.0]
        """

        def nearness(each: Known) -> tuple[float, float, str]:
            work = of(each)
            return self.distance(work), -work.amount, work.sized

        return min(known, key=nearness)

    @property
    def family(self) -> str:
        """Key, and the problem up to its first semicolon: what may be as well or badly predicted.

        Examples
        --------
        >>> Work("convolution", 1.0, 1.0, problem="3x3; 64 to 128").family
        'convolution: 3x3'
        """
        return f"{self.key}: {self.problem.partition(';')[0]}"


def convolution_work(
    key: str,
    *,
    n: int,
    c_x: int,
    c_y: int,
    output_sites: int,
    window_sites: int,
    window_extent: int = 1,
    groups: int = 1,
    x_bytes: float,
    w_bytes: float,
    y_bytes: float,
    problem: str = "",
    direction: Direction = "forward",
) -> Work:
    """Return the work of a convolution, or of one of its gradients (paper, section 4.2).

    Its flops are those that kernels carry out: output channels of each group in steps of 32.
    Its features are what tensor cores and wide tiles add to the paper's flops: the arithmetic with
    the channels of each group rounded up to the 128 of a tile, those of y, or of x; all of it,
    where the window is wider than `WIDE_WINDOW`; the bytes of x and of y, which bind where channels
    are few; and the sites n * hY * wY, each of which costs something whatever the channels. Where
    the convolution is made of matrix products, one for each image and group, of x unfolded to
    columns: how many products, and the elements of the columns. And the arithmetic of whole waves
    of tiles, each of 128 sites of y and 128 channels of the result: the last wave takes as long as
    the others however few tiles are in it. (Not of the filters' gradient, whose long sums are cut
    until all multiprocessors have some.)

    Parameters
    ----------
    n, c_x, c_y : int
        Batch, input channels and output channels over all groups.
    output_sites, window_sites : int
        hY * wY and rW * sW, or their like in one and three dimensions.
    groups : int
        Divides both channel counts.
    window_extent : int
        The longest extent of the window.
    x_bytes, w_bytes, y_bytes : float
        Of the data (or its gradient), of the filters and of the result.
    direction : {"forward", "backward_data", "backward_filter"}

    Examples
    --------
    Of 133 tiles of 128 sites and 128 channels, the last one is a wave by itself.

    >>> sizes = dict(n=1, c_x=1, c_y=128, window_sites=1, x_bytes=0.0, w_bytes=0.0, y_bytes=0.0)
    >>> waves = [convolution_work("convolution", output_sites=128 * tiles, **sizes)
    ...          .features["wave_flops"] / (132 * 2 * 128 * 128) for tiles in (1, 132, 133)]
    >>> waves
    [1.0, 1.0, 2.0]
    """
    # 2 * n * (hY * wY) * (rW * sW) * cX / groups * cY, in all groups
    products = 2 * n * output_sites * window_sites * groups
    narrow_x, wide_x = c_x // groups, _stepped(c_x // groups, TILE_CHANNELS)
    narrow_y, wide_y = (_stepped(c_y // groups, step) for step in (CHANNEL_STEP, TILE_CHANNELS))
    flops = float(products * narrow_x * narrow_y)
    features = {
        "flops_y128": float(products * narrow_x * wide_y),
        "flops_x128": float(products * wide_x * narrow_y),
        "flops_wide_window": flops if window_extent > WIDE_WINDOW else 0.0,
        "x_bytes": float(x_bytes),
        "y_bytes": float(y_bytes),
        "sites": float(n * output_sites),
        "products": float(n * groups),
        # n * (hY * wY) * (rW * sW) * cX
        "columns": float(n * output_sites * window_sites * c_x),
    }
    if direction != "backward_filter":
        outputs, summed = (wide_y, narrow_x) if direction == "forward" else (wide_x, c_y // groups)
        tile = TILE_CHANNELS**2
        tiles = groups * (_stepped(n * output_sites, TILE_CHANNELS) * outputs // tile)
        # 2 * ceil(tiles / 132) * 132 * 128 * 128 * cX / groups * (rW * sW)
        whole = _stepped(tiles, WAVE_TILES) * tile
        features["wave_flops"] = float(2 * whole * summed * window_sites)
    return Work._counted(key, flops, float(x_bytes + w_bytes + y_bytes), features, problem)


def _stepped(channels: int, step: int) -> int:
    return -(-channels // step) * step


def pass_work(
    key: str,
    *,
    device_bytes: float,
    elements: float,
    taps: float = 0.0,
    exponentials: float = 0.0,
    problem: str = "",
) -> Work:
    """Return the work of a pass over device memory.

    Its features are the given ones, and `uncached_bytes`, those beyond `CACHE_BYTES`.

    Parameters
    ----------
    device_bytes : float
        Read and written.
    elements : float
        That are computed: narrow types are bound by this sooner than by their bytes.
    taps : float
        Values that windows look at, over all their places.
    exponentials : float
        Transcendental functions that are evaluated.
    """
    features = {
        "elements": elements,
        "taps": taps,
        "exponentials": exponentials,
        "uncached_bytes": max(device_bytes - CACHE_BYTES, 0.0),
    }
    counted = {name: float(amount) for name, amount in features.items() if amount}
    return Work._counted(key, 0.0, float(device_bytes), counted, problem)
