"""CUDA Unified Memory in the three forms of the paper's section 6.5.

Features, result, filters and bias are managed memory; the CPU has written the features before every
run, and a run ends when the CPU has read every page of the result. The result is allocated anew for
each run, so that no run moves what an earlier one left in it: the best case for Unified Memory.
cuDNN computes, with the library's kernel for bias and ReLU; its scratch memory is ordinary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ooc_cudnn
from benchmarks.contenders.bands import Band, bands, byte_ranges
from benchmarks.contenders.managed import (
    HOST,
    ManagedArray,
    need_managed_memory,
    prefetch,
    read_every_page,
)
from ooc_cudnn.bench.contender import Unavailable
from ooc_cudnn.bench.convolution_contender import ConvolutionContender, Operands
from ooc_cudnn.bench.direct import ConvolutionPlan, DirectBiasActivation
from ooc_cudnn.bench.guards import need_host
from ooc_cudnn.bench.placing import free_cupy


class UnifiedMemory(ConvolutionContender):
    """As is: pages move when they are touched."""

    name = "unified_memory"
    about = "CUDA Unified Memory as is: pages move when they are touched"
    device_share = 2.0
    host_share = 1.0
    note = (
        "managed memory is kept below what the card has free: over-subscription was not exercised"
    )

    def __init__(self, operands: Operands) -> None:
        super().__init__(operands)
        self._arrays: dict[str, ManagedArray] = {}
        self._plan: Any = None
        self._pointwise: Any = None

    def prepare(self) -> None:
        """Build cuDNN's plans, then take managed memory: what they took is seen to be taken."""
        operands = self.operands
        if not operands.cuda:
            raise Unavailable("CUDA Unified Memory needs an NVIDIA GPU")
        import cupy

        need_managed_memory()
        need_host(operands.feature_bytes, "managed x and y")
        self._card = int(cupy.cuda.runtime.getDevice())
        self._stream: Any = cupy.cuda.Stream(non_blocking=True)
        with self._stream:
            self._build()
        for name, array in (("x", operands.x), ("w", operands.w), ("b", operands.b)):
            self._arrays[name] = ManagedArray(array.shape)
        operands.images.fill(self._arrays["x"].host)
        self._arrays["w"].host[...] = operands.w
        self._arrays["b"].host[...] = operands.b

    def rest(self) -> None:
        """Bring the features back to the host, and allocate the result anew."""
        self._forget("y")
        self._arrays["y"] = ManagedArray(self.operands.y.shape)
        self._arrays["x"].prefetch(HOST, self._stream)
        self._bind()
        self._stream.synchronize()

    def run(self) -> None:
        self._launch()
        self._stream.synchronize()
        read_every_page(self._arrays["y"].host)

    @property
    def result(self) -> Any:
        return self._arrays["y"].host

    def check(self) -> Mapping[str, Any] | None:
        """Begin with a result that was allocated anew, as every run does."""
        self.rest()
        return super().check()

    def details(self) -> dict[str, Any]:
        return {
            "managed_bytes": sum(array.nbytes for array in self._arrays.values()),
            "engine": self._plan.engine,
            "workspace_bytes": self._plan.workspace_bytes,
        }

    def release(self) -> None:
        self._plan = self._pointwise = None
        for name in list(self._arrays):
            self._forget(name)
        free_cupy(cuda=self.operands.cuda)

    def _build(self) -> None:
        operands = self.operands
        shapes = operands.x.shape, operands.w.shape
        self._plan = ConvolutionPlan(*shapes, tf32=operands.tf32)

    def _bind(self) -> None:
        """Make the bias kernel ready for the result that was just allocated."""
        with self._stream:
            self._pointwise = DirectBiasActivation(
                self._arrays["y"].device, self._arrays["b"].device
            )

    def _launch(self) -> None:
        arrays = self._arrays
        self._plan.launch(arrays["x"].pointer, arrays["w"].pointer, arrays["y"].pointer)
        self._pointwise()

    def _forget(self, name: str) -> None:
        array = self._arrays.pop(name, None)
        if array is not None:
            self._pointwise = None  # it holds the result's memory
            array.release()


class UnifiedMemoryPrefetch(UnifiedMemory):
    """All of it prefetched: the features to the card, then the result to the host."""

    name = "unified_memory_prefetch"
    about = "CUDA Unified Memory with prefetches of all of x and y"

    def run(self) -> None:
        for name in ("x", "y"):
            self._arrays[name].prefetch(self._card, self._stream)
        self._launch()
        self._arrays["y"].prefetch(HOST, self._stream)
        self._stream.synchronize()
        read_every_page(self._arrays["y"].host)


class UnifiedMemoryPrefetchSplit(UnifiedMemory):
    """Pieces as the library cuts them, prefetched on two streams beside the one that computes.

    Pieces keep all channels. Pieces of rows are gathered on the card to packed memory and back:
    cuDNN is slow, and not always right, on strided ones.
    """

    name = "unified_memory_prefetch_split"
    about = "CUDA Unified Memory with prefetches, in the pieces of the library's plan"

    def __init__(self, operands: Operands) -> None:
        super().__init__(operands)
        self._plans: dict[tuple[int, ...], ConvolutionPlan] = {}
        self._buffers: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def run(self) -> None:
        """Prefetch each piece, compute it, prefetch its result, all three at once."""
        import cupy

        x, y = self._arrays["x"], self._arrays["y"]
        height = self.operands.x.shape[2]
        for band in self._bands:
            self._prefetch(x, band, *band.read_rows(height), self._card, self._inward)
            self._prefetch(y, band, band.top, band.bottom, self._card, self._inward)
            self._stream.wait_event(self._inward.record(cupy.cuda.Event(disable_timing=True)))
            with self._stream:
                self._compute(band)
            self._outward.wait_event(self._stream.record(cupy.cuda.Event(disable_timing=True)))
            self._prefetch(y, band, band.top, band.bottom, HOST, self._outward)
        self._outward.synchronize()
        read_every_page(y.host)

    def details(self) -> dict[str, Any]:
        engines = sorted({plan.engine for plan in self._plans.values()})
        return {
            "managed_bytes": sum(array.nbytes for array in self._arrays.values()),
            "split": self._split.to_json(),
            "pieces": len(self._bands),
            "engines": engines,
        }

    def release(self) -> None:
        self._plans.clear()
        self._buffers.clear()
        super().release()

    def _build(self) -> None:
        """Cut as the library would, and make a plan for each shape of a piece."""
        import cupy

        o = self.operands
        with ooc_cudnn.settings(memory_limit=o.limit, allow_tf32=o.tf32):
            self._split = ooc_cudnn.plan(
                "convolution_add_activation_forward",
                x=o.x, w=o.device_w, b=o.device_b, padding=1, activation="relu", out=o.y,
            ).split  # fmt: skip
        images, _, height, _ = o.x.shape
        self._bands = list(bands(images, height, self._split.n, self._split.h_y))
        self._inward, self._outward = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        for band in self._bands:
            shape = self._shape(band)
            if shape in self._plans:
                continue
            whole = self._is_whole(band)
            plan = ConvolutionPlan(shape, o.w.shape, tf32=o.tf32, row_padding=int(whole))
            self._plans[shape] = plan
            if not whole:
                self._buffers[shape] = cupy.empty(shape, "f4"), cupy.empty(plan.y_shape, "f4")

    def _bind(self) -> None:
        """Make the bias kernels ready: one for each piece's result."""
        y, b = self._arrays["y"].device, self._arrays["b"].device
        with self._stream:
            self._pointwise = {
                band: DirectBiasActivation(
                    y[band.first : band.last]
                    if self._is_whole(band)
                    else self._buffers[self._shape(band)][1],
                    b,
                )
                for band in self._bands
            }

    def _compute(self, band: Band) -> None:
        arrays, plan = self._arrays, self._plans[self._shape(band)]
        w = arrays["w"].pointer
        if self._is_whole(band):
            x_pointer, y_pointer = (
                arrays[name].pointer + band.first * (arrays[name].nbytes // len(self.operands.x))
                for name in ("x", "y")
            )
            plan.launch(x_pointer, w, y_pointer)
            self._pointwise[band]()
            return
        x, y = self._buffers[self._shape(band)]
        band.gather(arrays["x"].device, x)
        plan.launch(x.data.ptr, w, y.data.ptr)
        self._pointwise[band]()
        band.scatter(y, arrays["y"].device)

    def _is_whole(self, band: Band) -> bool:
        return (band.top, band.bottom) == (0, self.operands.x.shape[2])

    def _shape(self, band: Band) -> tuple[int, ...]:
        """The input that cuDNN is given for a piece: with rows for its padding, or whole."""
        _, channels, height, width = self.operands.x.shape
        rows = height if self._is_whole(band) else band.bottom - band.top + 2
        return band.last - band.first, channels, rows, width

    @staticmethod
    def _prefetch(
        array: ManagedArray, band: Band, top: int, bottom: int, place: int, stream: Any
    ) -> None:
        shape = array.device.shape
        for offset, nbytes in byte_ranges(shape, band.first, band.last, top, bottom):
            prefetch(array.pointer + offset, nbytes, place, stream)
