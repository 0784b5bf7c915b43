"""What a calibration measures of computing: convolutions and elementwise passes, as `Group`s."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from ooc_cudnn.devices.base import Device
from ooc_cudnn.measuring import Bench, Group, Recorder
from ooc_cudnn.operations.chain import Buffer, Launch
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.pointwise import Pointwise
from ooc_cudnn.pipeline.pricing import aligned
from ooc_cudnn.tensor import numpy_dtype
from perfmodel import Line

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
GPU_CONVOLUTIONS: tuple[tuple[int, int, int, int, int], ...] = (
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
HOST_CONVOLUTIONS: tuple[tuple[int, int, int, int, int], ...] = (
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


class ComputeMeasurements:
    """The launches that are timed on a device.

    Parameters
    ----------
    bench : Bench
    record : callable
        Takes the key of a line, the amount of work of a sample, and its timing.
    quick : bool
        Fewer of them.
    """

    def __init__(self, bench: Bench, record: Recorder, *, quick: bool) -> None:
        self.bench, self.record, self.device = bench, record, bench.device
        small = self.device.kind == "host"
        self.shapes = HOST_CONVOLUTIONS if small else GPU_CONVOLUTIONS
        most = 22 if small else 25
        if quick:
            self.shapes = self.shapes[::3]
            self.elements = (2 ** (most - 6), 2 ** (most - 3), 2 ** (most - 1))
        else:
            self.elements = tuple(2**power for power in range(most - 8, most + 1, 2))

    def groups(self) -> list[Group]:
        """What is to be measured, in parts that need the device's memory one after the other."""
        found = []
        for dtype, tf32 in arithmetic(self.device):
            for layout in self.device.layouts(dtype):
                measure = partial(self.convolutions, dtype, layout, allow_tf32=tf32)
                found.append(Group(f"convolutions {dtype} {layout}", 2.0, measure))
            if tf32 or self.device.kind == "host":
                found.append(Group(f"passes {dtype}", 0.5, partial(self.pointwise, dtype)))
        return found

    def with_stand_ins(self, lines: dict[str, Line]) -> dict[str, Line]:
        """Add the lines of TF32 on the host, which computes it as float32."""
        if self.device.kind == "host":
            strict = [key for key in lines if key.startswith("convolution/float32/")]
            lines.update({key.replace("float32", "tf32"): lines[key] for key in strict})
        return lines

    def convolutions(self, dtype: str, layout: str, *, allow_tf32: bool) -> None:
        """Measure one kind of arithmetic in one memory order."""
        found = []
        for n, c_x, c_y, extent, window in self.shapes:
            operation = replace(
                Convolution.of(
                    (n, c_x, extent, extent),
                    (c_y, c_x, window, window),
                    padding=window // 2,
                    dtype=dtype,
                    allow_tf32=allow_tf32,
                ),
                layout=layout,
            )
            buffers = {
                "x": Buffer(operation.x_shape, dtype, layout),
                "w": Buffer(operation.w_shape, dtype, layout),
                "y": Buffer(operation.output_shape, dtype, layout),
            }
            found.append((Launch(operation, ("x", "w"), "y"), buffers))
        self._launches(found, dtype)

    def pointwise(self, dtype: str) -> None:
        """Measure the fused elementwise pass: bias and ReLU."""
        found = []
        for elements in self.elements:
            shape = (1, 64, elements // 2048, 32)
            operation = Pointwise(shape, dtype, dtype, "relu", has_shift=True)
            buffers = {
                "x": Buffer(shape, dtype, "channels_first"),
                "b": Buffer((64,), dtype, "channels_first"),
                "y": Buffer(shape, dtype, "channels_first"),
            }
            found.append((Launch(operation, ("x", "", "b", ""), "y"), buffers))
        self._launches(found, dtype)

    def _launches(self, launches: list[tuple[Launch, dict[str, Buffer]]], dtype: str) -> None:
        """Time launches on random numbers; those that the memory limit excludes are left out."""
        # Each operand has a place of its own, so no result becomes another launch's input.
        sizes: dict[str, int] = {}
        chosen: list[tuple[Launch, dict[str, Buffer], int]] = []
        for launch, buffers in launches:
            grown = {
                name: max(sizes.get(name, 0), aligned(buffer.nbytes))
                for name, buffer in buffers.items()
            }
            held = sum(grown.values())
            scratch = self.bench.workspace(launch, buffers, held) if self.bench.fits(held) else None
            most = max([scratch or 0, *(other for *_, other in chosen)])
            if scratch is not None and self.bench.fits(held + aligned(most)):
                chosen.append((launch, buffers, scratch))
                sizes = grown
        held, most = sum(sizes.values()), max((scratch for *_, scratch in chosen), default=0)
        base = self.bench.reserve(held + aligned(most))
        self.bench.fill(base, held, dtype)
        starts = itertools.accumulate(sizes.values(), initial=base)
        pointers = dict(zip(sizes, starts, strict=False))
        for launch, buffers, scratch in chosen:
            work = launch.operation.work()
            timing = self.bench.launch(launch, buffers, pointers, (base + held, scratch))
            self.record(work.key, work.amount, timing)


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
