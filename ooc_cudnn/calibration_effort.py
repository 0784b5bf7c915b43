"""How much a calibration measures: piece sizes, shapes and repeats, as tables."""

from __future__ import annotations

from dataclasses import dataclass

from ooc_cudnn.devices.base import Device
from ooc_cudnn.tensor import numpy_dtype

MIB = 2**20

#: Kinds of arithmetic: dtype, and whether TF32 is allowed.
ARITHMETIC = (
    ("float32", True),
    ("float32", False),
    ("float16", True),
    ("bfloat16", True),
    ("float64", True),
)

#: Convolutions measured on a GPU: n, cX, cY, height and width, window. Every third one is enough
#: for a quick calibration.
GPU_CONVOLUTIONS = (
    (8, 64, 64, 256, 3),
    (1, 64, 64, 256, 3),
    (16, 32, 64, 128, 5),
    (16, 128, 128, 128, 3),
    (8, 16, 32, 256, 3),
    (4, 128, 128, 128, 3),
    (8, 256, 256, 64, 3),
    (32, 256, 256, 64, 3),
    (8, 3, 64, 256, 3),
    (4, 64, 128, 128, 1),
)
#: The same on the host, a hundred times smaller.
HOST_CONVOLUTIONS = (
    (1, 32, 64, 128, 3),
    (1, 16, 64, 192, 3),
    (1, 128, 128, 32, 3),
    (1, 32, 32, 64, 5),
    (2, 64, 64, 96, 3),
    (1, 3, 32, 256, 3),
    (1, 16, 32, 128, 3),
    (4, 32, 32, 32, 3),
    (2, 256, 64, 32, 1),
)


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    `copy_bytes` are piece sizes over the link, `disk_bytes` to and from a file of at most
    `file_bytes`, `elements` those of elementwise passes.
    """

    copy_bytes: tuple[int, ...]
    disk_bytes: tuple[int, ...]
    file_bytes: int
    convolutions: tuple[tuple[int, int, int, int, int], ...]
    elements: tuple[int, ...]
    batches: int
    batch_seconds: float


def make_effort(device: Device, *, quick: bool) -> Effort:
    """Return how much to measure on a device."""
    small = device.kind == "host"
    shapes = HOST_CONVOLUTIONS if small else GPU_CONVOLUTIONS
    most = 22 if small else 25
    if quick:
        copies = (1, 4, 16)
        return Effort(
            copy_bytes=tuple(size * MIB for size in copies),
            disk_bytes=(MIB, 2 * MIB, 4 * MIB),
            file_bytes=24 * MIB,
            convolutions=shapes[::3],
            elements=(2 ** (most - 6), 2 ** (most - 3), 2 ** (most - 1)),
            batches=3,
            batch_seconds=0.01,
        )
    return Effort(
        copy_bytes=tuple(size * MIB for size in (1, 2, 4, 16, 32, 64)),
        disk_bytes=(MIB, 4 * MIB, 8 * MIB, 16 * MIB),
        file_bytes=96 * MIB,
        convolutions=shapes,
        elements=tuple(2**power for power in range(most - 8, most + 1, 2)),
        batches=3 if small else 5,
        batch_seconds=0.03,
    )


def arithmetic(device: Device) -> tuple[tuple[str, bool], ...]:
    """Return the kinds of arithmetic that are worth measuring: the host knows no TF32."""
    kinds: tuple[tuple[str, bool], ...] = ARITHMETIC
    if device.kind == "host":
        kinds = ARITHMETIC[1:]
    try:
        numpy_dtype("bfloat16")
    except TypeError:  # without ml_dtypes nobody can pass such an array
        kinds = tuple(kind for kind in kinds if kind[0] != "bfloat16")
    return kinds
