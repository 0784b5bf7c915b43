"""The suite's cases: the paper's figures and tables, and layers of real networks.

The paper is Ito, Matsumiya and Endo, "ooc_cuDNN: Accommodating convolutional neural networks over
GPU memory capacity", IEEE Big Data 2017; its figures are of a Tesla P100 in strict float32. All
convolutions are 3x3 with padding 1, with features in pinned host memory where nothing else is said;
the limit is less than the data, so every case is out of core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ooc_cudnn.bench.case import Case

STRICT, TF32 = "strict", "tf32"
#: Figure 9's channels -> the limit, and GFLOPS where the paper states them.
FIGURE_9 = {
    64: ("256MiB", 4332.0),
    128: ("512MiB", None),
    256: ("1GiB", 6787.0),
    512: ("2GiB", None),
    1024: ("4GiB", None),
    2048: ("8GiB", None),
    4096: ("16GiB", None),
}
#: From 2**31 elements on cuDNN crawls on the whole tensors: they are not tried.
_MOST_CHANNELS_OF_WHOLE_TENSORS = 1024


def _convolution(
    name: str,
    about: str,
    source: str,
    shape: tuple[int, int, int, int],
    *,
    tiny: tuple[int, int, int, int],
    memory_limit: str,
    baselines: tuple[str, ...],
    precision: str = TF32,
    pageable: bool = False,
    **more: Any,
) -> Case:
    """A case of the workload "convolution": shapes are (n, cX, height, width), cY as cX."""
    # Room for three quarters of the data.
    tiny_bytes = 4 * math.prod(tiny) * 2 * 3 // 4 + 4 * 9 * tiny[1] ** 2
    return Case(
        name=f"{name}-{precision}",
        about=f"{about}, {'TF32' if precision == TF32 else 'strict float32'}",
        source=source,
        workload="convolution",
        sizes={**_sizes(shape), "c_y": shape[1], "pageable": int(pageable)},
        tiny={**_sizes(tiny), "c_y": tiny[1]},
        memory_limit=memory_limit,
        tiny_memory_limit=f"{tiny_bytes}B",
        baselines=baselines,
        allow_tf32=precision == TF32,
        **more,
    )


def _sizes(shape: tuple[int, int, int, int]) -> dict[str, int]:
    return dict(zip(("n", "c_x", "height", "width"), shape, strict=True))


def _figure_9() -> Iterator[Case]:
    for index, (channels, (limit, gflops)) in enumerate(FIGURE_9.items()):
        large = channels >= 2048
        whole = ("cudnn",) if channels <= _MOST_CHANNELS_OF_WHOLE_TENSORS else ()
        for precision in (STRICT, TF32):
            yield _convolution(
                f"fig9-c{channels}",
                f"one image of 1024x1024, {channels} channels",
                "figure 9",
                (1, channels, 1024, 1024),
                tiny=(1, 4 + 2 * index, 24, 32),
                memory_limit=limit,
                baselines=("in_core", *whole, "copy_limit"),
                precision=precision,
                repeats=2 if large and precision == STRICT else 3,
                paper={} if gflops is None else {"GFLOPS": gflops},
            )


def _table_4() -> Iterator[Case]:
    rows = {
        "a": ("one image of 8192x4096, 64 channels", (1, 64, 8192, 4096), "4GiB", 2574.0),
        "b": ("one image of 1024x1024, 256 channels", (1, 256, 1024, 1024), "1GiB", 6787.0),
        "c": ("512 images of 256x256, 64 channels", (512, 64, 256, 256), "4GiB", 2681.0),
    }
    tiny_shapes = {"a": (1, 8, 48, 24), "b": (1, 12, 24, 32), "c": (8, 8, 16, 16)}
    for row, (about, shape, memory_limit, gflops) in rows.items():
        for precision in (STRICT, TF32):
            yield _convolution(
                f"table4-{row}",
                about,
                "table 4",
                shape,
                tiny=tiny_shapes[row],
                memory_limit=memory_limit,
                baselines=("copy_limit", "serial", "in_core"),
                precision=precision,
                paper={"GFLOPS": gflops},
            )


def _figure_10() -> Iterator[Case]:
    for images in (1, 64):
        for precision in (STRICT, TF32):
            yield _convolution(
                f"fig10-n{images}",
                f"fused against unfused: {images} x 64 x 1024 x 1024",
                "figure 10",
                (images, 64, 1024, 1024),
                tiny=(1 if images == 1 else 4, 8, 24, 32),
                memory_limit="256MiB" if images == 1 else "4GiB",
                baselines=("unfused", "copy_limit"),
                precision=precision,
                repeats=11 if images == 1 else 3,
                paper={"fused_over_unfused": 0.42},
            )


def _figure_14() -> Iterator[Case]:
    for size, images in (("1gb", 64), ("2gb", 128), ("4gb", 256), ("9gb", 512)):
        for precision in (TF32, STRICT) if images >= 256 else (TF32,):
            serial = ("serial",) if precision == TF32 else ()
            yield _convolution(
                f"fig14-{size}",
                f"{images} images of 256x256, 64 channels",
                "figure 14",
                (images, 64, 256, 256),
                tiny=(8, 8, 16, 16),
                memory_limit="1GiB" if images <= 128 else "4GiB",
                baselines=(*serial, "copy_limit", "in_core"),
                precision=precision,
                repeats=5 if precision == TF32 else 3,
            )


def _networks() -> Iterator[Case]:
    yield _convolution(
        "vgg-conv2", "VGG's second convolution, 256 images", "VGG-16, conv1_2",
        (256, 64, 224, 224), tiny=(8, 8, 14, 14), memory_limit="2GiB",
        baselines=("copy_limit", "in_core"),
    )  # fmt: skip
    yield _convolution(
        "pathology-slide", "a slide of 16384x8192, 16 channels", "networks for pathology",
        (1, 16, 16384, 8192), tiny=(1, 8, 48, 24), memory_limit="2GiB",
        baselines=("copy_limit", "in_core"),
    )  # fmt: skip
    yield _convolution(
        "pageable-4gb", "figure 14's 4 GB in plain NumPy arrays", "figure 14, without pinning",
        (256, 64, 256, 256), tiny=(8, 8, 16, 16), memory_limit="4GiB",
        baselines=(), pageable=True,
    )  # fmt: skip


CASES: dict[str, Case] = {
    case.name: case
    for family in (_figure_9, _table_4, _figure_10, _figure_14, _networks)
    for case in family()
}
