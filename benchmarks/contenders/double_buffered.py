"""The best loop by hand: pinned memory, several streams, double buffering.

It is what a user who knows the card would write. Pieces take turns on lanes. A lane is a stream
with buffers of its own: a piece is copied in, computed and copied out on it, in that order, while
the other lanes do the same with the pieces before and after it. With three lanes one copies in, one
computes and one copies out. Arrays in pinned memory are copied from and to where they lie. Pageable
arrays go through pinned buffers, which threads fill and empty while the card works.

There are two forms. In PyTorch's, PyTorch copies and computes. In CuPy's, CuPy copies and cuDNN is
called by hand, since CuPy has no convolution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np

from benchmarks.contenders.bands import HALO_ROWS, Band, bands
from benchmarks.contenders.torch_convolution import release_torch, torch_settings
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.convolution_contender import ConvolutionContender, HostArray, Operands
from ooc_cudnn.bench.direct import ConvolutionPlan, DirectBiasActivation
from ooc_cudnn.bench.placing import allocate_pinned, free_cupy

FEWEST_PIECES = 4
COPYING_THREADS = 8
_TO_DEVICE, _TO_HOST = 1, 2


def pieces(shape: Sequence[int], piece_bytes: int) -> list[Band]:
    """Cut into pieces of at most so many bytes: whole images, or rows of one where it is larger.

    There are at least four, so that there is something to overlap.

    Examples
    --------
    >>> [(*piece,) for piece in pieces((4, 2, 8, 8), 1024)]
    [(0, 1, 0, 8), (1, 2, 0, 8), (2, 3, 0, 8), (3, 4, 0, 8)]
    >>> [(*piece,) for piece in pieces((1, 2, 8, 8), 512)]
    [(0, 1, 0, 2), (0, 1, 2, 4), (0, 1, 4, 6), (0, 1, 6, 8)]
    """
    images, channels, height, width = shape
    row_bytes = 4 * channels * width
    in_a_piece = min(piece_bytes // (row_bytes * height), images // FEWEST_PIECES)
    if in_a_piece:
        return list(bands(images, height, in_a_piece, height))
    rows = max(1, min(piece_bytes // row_bytes, height // FEWEST_PIECES))
    return list(bands(images, height, 1, rows))


class Lane(ABC):
    """A stream with buffers of its own, on which pieces follow each other.

    `largest` is how many numbers of x and of y the largest piece has: pageable arrays go through
    pinned buffers of that size, which `threads` fill and empty.
    """

    def __init__(
        self, operands: Operands, largest: tuple[int, int], threads: ThreadPoolExecutor
    ) -> None:
        self.operands, self._threads = operands, threads
        self._held = (
            tuple(allocate_pinned((count,)) for count in largest) if operands.pageable else None
        )
        self._arriving: tuple[HostArray, HostArray] | None = None

    @abstractmethod
    def enqueue(self, band: Band, x: HostArray, y: HostArray) -> None:
        """Issue the copy of x, the computation and the copy to y; wait for nothing."""

    @abstractmethod
    def wait(self) -> None:
        """Wait for what this lane was given, and for no other."""

    def start(self, band: Band) -> None:
        x = band.read(self.operands.x)
        y = band.written(self.operands.y)
        if self._held is None:
            self.enqueue(band, x, y)
            return
        self.finish()
        held_x, held_y = (
            held[: part.size].reshape(part.shape)
            for held, part in zip(self._held, (x, y), strict=True)
        )
        self._copy_by_threads(held_x, x)
        self.enqueue(band, held_x, held_y)
        self._arriving = (y, held_y)

    def finish(self) -> None:
        """Wait until the last piece is where it belongs."""
        self.wait()
        if self._arriving is not None:
            self._copy_by_threads(*self._arriving)
            self._arriving = None

    def _copy_by_threads(self, target: HostArray, source: HostArray) -> None:
        """Copy some channels of an image in each thread."""
        images, channels = target.shape[:2]
        step = -(-channels // COPYING_THREADS)
        parts = [
            (image, slice(first, first + step))
            for image in range(images)
            for first in range(0, channels, step)
        ]
        for _ in self._threads.map(lambda part: np.copyto(target[part], source[part]), parts):
            pass


class TorchLane(Lane):
    """A lane of PyTorch's, whose allocator keeps the memory of each stream for that stream."""

    def __init__(self, operands: Operands, *rest: Any) -> None:
        super().__init__(operands, *rest)
        import torch

        self._place = torch.device("cuda" if operands.cuda else "cpu")
        # Where products may be rounded, cuDNN is fastest channels-last; else channels-first.
        self._format = torch.channels_last if operands.tf32 else torch.contiguous_format
        w = torch.from_numpy(operands.w).to(self._place)
        self._w, self._b = w.to(memory_format=self._format), torch.from_numpy(operands.b)
        self._b = self._b.to(self._place)
        self._stream: Any = None
        if operands.cuda:
            torch.cuda.synchronize()  # the filters are there before another stream reads them
            self._stream = torch.cuda.Stream()

    def enqueue(self, band: Band, x: HostArray, y: HostArray) -> None:
        import torch

        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            piece = torch.empty(x.shape, device=self._place)
            _copy_in_torch(piece, torch.from_numpy(x))
            piece = piece.to(memory_format=self._format)
            result = torch.nn.functional.conv2d(piece, self._w, self._b, padding=1).relu_()
            above = band.top - band.read_rows(self.operands.x.shape[2])[0]
            kept = result.contiguous()[:, :, above : above + y.shape[2]]
            _copy_in_torch(torch.from_numpy(y), kept)

    def wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _copy_in_torch(target: Any, source: Any) -> None:
    """One copy where both are packed, else one a plane: PyTorch would wait for any other."""
    if target.is_contiguous() and source.is_contiguous():
        target.copy_(source, non_blocking=True)
        return
    planes = (each.view(-1, *each.shape[2:]) for each in (target, source))
    for plane, from_plane in zip(*planes, strict=True):
        plane.copy_(from_plane, non_blocking=True)


class CupyLane(Lane):
    """A lane of CuPy's: copies of the CUDA runtime, and cuDNN called by hand."""

    def __init__(self, operands: Operands, *rest: Any) -> None:
        super().__init__(operands, *rest)
        import cupy

        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._made: dict[tuple[int, ...], tuple[Any, Any, ConvolutionPlan, Any]] = {}
        cupy.cuda.runtime.deviceSynchronize()  # the filters are there

    def enqueue(self, band: Band, x: HostArray, y: HostArray) -> None:
        """Copy in, with zeros where a piece of rows meets the border; convolve; copy out."""
        whole = y.shape[2] == self.operands.x.shape[2]
        rows = y.shape[2] if whole else y.shape[2] + 2 * HALO_ROWS
        shape = (*x.shape[:2], rows, x.shape[3])
        held_x, held_y, convolution, pointwise = self._buffers(shape, row_padding=int(whole))
        begin = 0 if whole else band.top - HALO_ROWS
        above = band.read_rows(self.operands.x.shape[2])[0] - begin
        inside = held_x[:, :, above : above + x.shape[2]]
        with self._stream:
            for outside in (held_x[:, :, :above], held_x[:, :, above + x.shape[2] :]):
                if outside.size:
                    outside[...] = 0
            self._copy(inside.data.ptr, held_x.strides[1], x.ctypes.data, x.strides[1], x,
                       _TO_DEVICE)  # fmt: skip
            convolution.launch(held_x.data.ptr, self.operands.device_w.data.ptr, held_y.data.ptr)
            pointwise()
            self._copy(y.ctypes.data, y.strides[1], held_y.data.ptr, held_y.strides[1], y,
                       _TO_HOST)  # fmt: skip

    def wait(self) -> None:
        self._stream.synchronize()

    @property
    def engines(self) -> set[str]:
        return {plan.engine for _, _, plan, _ in self._made.values()}

    def _buffers(
        self, shape: tuple[int, ...], *, row_padding: int
    ) -> tuple[Any, Any, ConvolutionPlan, Any]:
        """The buffers of a shape with the launches that are bound to them, made once."""
        if shape not in self._made:
            import cupy

            o = self.operands
            with self._stream:
                plan = ConvolutionPlan(shape, o.w.shape, tf32=o.tf32, row_padding=row_padding)
                x, y = cupy.empty(shape, "f4"), cupy.empty(plan.y_shape, "f4")
                self._made[shape] = x, y, plan, DirectBiasActivation(y, o.device_b)
        return self._made[shape]

    def _copy(
        self, to: int, to_pitch: int, source: int, pitch: int, host: HostArray, kind: int
    ) -> None:
        """Copy the rows of all planes at once; a pitch is the bytes from plane to plane."""
        import cupy

        planes, width = host.shape[0] * host.shape[1], host[0, 0].nbytes
        runtime, stream = cupy.cuda.runtime, self._stream.ptr
        if to_pitch == pitch == width:
            runtime.memcpyAsync(to, source, planes * width, kind, stream)
        else:
            runtime.memcpy2DAsync(to, to_pitch, source, pitch, width, planes, kind, stream)


def take_turns(lanes: Sequence[Lane], order: Iterable[Band]) -> None:
    """Give each piece to the next lane; a lane with pageable arrays first ends the piece it has."""
    turn = 0
    for turn, band in enumerate(order, 1):
        lanes[(turn - 1) % len(lanes)].start(band)
    for step in range(len(lanes)):
        lanes[(turn + step) % len(lanes)].finish()


class DoubleBuffered(ConvolutionContender):
    """The loop: pieces of at most `piece_bytes` of x take turns on the lanes of a form."""

    kind: type[Lane]
    device_share = 0.5
    lanes, piece_bytes = 3, 2**25

    def __init__(self, operands: Operands) -> None:
        super().__init__(operands)
        self._lanes: list[Lane] = []
        self._threads: ThreadPoolExecutor | None = None

    def prepare(self) -> None:
        o = self.operands
        self._bands = pieces(o.x.shape, self.piece_bytes)
        self._threads = ThreadPoolExecutor(COPYING_THREADS)
        reads = [band.read(o.x).size for band in self._bands]
        writes = [band.written(o.y).size for band in self._bands]
        largest = max(reads), max(writes)
        self._lanes = [self.kind(o, largest, self._threads) for _ in range(self.lanes)]

    def run(self) -> None:
        take_turns(self._lanes, self._bands)

    def details(self) -> dict[str, Any]:
        return {
            "streams": self.lanes,
            "piece_bytes": self.piece_bytes,
            "pieces": len(self._bands),
            "pinned": "buffers" if self.operands.pageable else "x and y",
        }

    def release(self) -> None:
        self._lanes = []
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


class DoubleBufferedTorch(DoubleBuffered):
    """In PyTorch."""

    name = "double_buffered_torch"
    about = "a double-buffered loop in PyTorch: pinned memory, three streams, pieces of 32 MiB"
    kind = TorchLane

    def run(self) -> None:
        """Loop, by PyTorch's rule for rounding products."""
        with torch_settings(tf32=self.operands.tf32):
            super().run()

    def details(self) -> dict[str, Any]:
        import torch

        return super().details() | {"torch": torch.__version__}

    def release(self) -> None:
        super().release()
        release_torch(cuda=self.operands.cuda)


class DoubleBufferedCupy(DoubleBuffered):
    """In CuPy, with cuDNN by hand."""

    name = "double_buffered_cupy"
    about = (
        "a double-buffered loop in CuPy, cuDNN called by hand: pinned memory, three streams, "
        "pieces of 32 MiB"
    )
    kind = CupyLane

    def prepare(self) -> None:
        if not self.operands.cuda:
            raise Unavailable("CuPy needs an NVIDIA GPU")
        super().prepare()

    def details(self) -> dict[str, Any]:
        engines = {name for lane in self._lanes for name in getattr(lane, "engines", ())}
        return super().details() | {"engines": sorted(engines)}

    def release(self) -> None:
        super().release()
        free_cupy(cuda=self.operands.cuda)
