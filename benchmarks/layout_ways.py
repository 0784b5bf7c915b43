"""How `benchmarks.layouts` runs a convolution, a pooling and a re-layout in NCHW, NHWC and CHWN.

In NCHW and NHWC cuDNN convolves. CHWN it does not have, but its filter gradient does the same sums:
with x (c, n, h, w) as images of n channels, and w (c, k, r, s) as their gradient, the gradient of a
filter of (k, n, h', w') in NHWC is y in CHWN (strides become dilations). Where there are one to
three channels, a direct convolution (few_channels.cu) stands beside either, in any layout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kernel_cases import Laid, view_of
from benchmarks.layout_cases import Operation
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Engine, EngineFailedError
from ooc_cudnn.devices.kernels import launch as launching
from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, geometry
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES, DeviceView
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.convolution.gradients import AnyConvolution, ConvolutionBackwardFilter
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout
from ooc_cudnn.tensor import same_strides

Run = Callable[[], None]
ORDERS = {"NCHW": "channels_first", "NHWC": "channels_last"}
#: Seconds after which no further engine is tried; where channels are few, and engines that are
#: compiled at run time are tried, too.
ENGINE_SECONDS, FEW_CHANNELS_SECONDS = 0.12, 0.6
#: cuDNN 9's forward engine that heuristics rank nowhere, and that is fastest in strict float32.
FFT = Engine(4)
#: Input channels and windows that the direct convolution is tried with: its threads, and the output
#: channels and sites of each.
FEW_CHANNELS, THREADS = 3, 128
TILES = ((16, 4), (32, 2))
SOURCE = str(Path(__file__).parent / "few_channels.cu")


class Operands(NamedTuple):
    """x, w, y and the bias of an operation in one layout, as PyTorch tensors."""

    x: Any
    w: Any
    y: Any
    bias: Any


class Choice(NamedTuple):
    """One way to run an operation in a layout: an engine of cuDNN's, or a tile of few_channels."""

    name: str
    engine: Engine | None = None
    workspace: int = 0
    tile: tuple[int, int] | None = None


def as_gradient(forward: Convolution) -> ConvolutionBackwardFilter | None:
    """The filter gradient that is this convolution in CHWN; None where padding would be negative.

    >>> forward = Convolution.of((64, 3, 9, 9), (8, 3, 3, 3), padding=1, stride=2)
    >>> made = as_gradient(forward)
    >>> made.forward.x_shape, made.forward.output_shape, made.output_shape
    ((3, 64, 9, 9), (3, 8, 3, 3), (8, 64, 5, 5))
    """
    (n, c, *sizes), (k, _, *window), sites = (
        forward.x_shape,
        forward.w_shape,
        forward.output_shape[2:],
    )
    reached = zip(sizes, window, sites, forward.stride, forward.padding, strict=True)
    padding = tuple(
        (before, (places - 1) * step + taps - size - before)
        for size, taps, places, step, (before, _) in reached
    )
    if min(after for _, after in padding) < 0:
        return None
    swapped = Convolution(
        (c, n, *sizes), (k, n, *sites), padding, forward.dilation, forward.stride,
        dtype=forward.dtype, allow_tf32=forward.allow_tf32, layout="channels_last",
    )  # fmt: skip
    return ConvolutionBackwardFilter(swapped, forward.dtype)


class Ways:
    """Runs operations on a device, on PyTorch's tensors."""

    def __init__(self, torch: Any, device: Device, place: str) -> None:
        self.torch, self.device, self.place = torch, device, place
        self.stream = None
        if device.kind == "cuda":
            import cupy

            self.stream = cupy.cuda.Stream.null
        self._scratch = torch.empty(0, dtype=torch.uint8, device=place)

    # Tensors ------------------------------------------------------------------------------------

    def tensor(self, shape: Sequence[int], layout: str, dtype: str, *, fill: bool = False) -> Any:
        """A tensor of logical shape (n, c, h, w) in a layout: random numbers, or NaN."""
        found = self.torch.empty_strided(
            tuple(shape), Laid(tuple(shape), layout).strides(),
            dtype=getattr(self.torch, dtype), device=self.place,
        )  # fmt: skip
        return found.normal_() if fill else found.fill_(math.nan)

    def laid(self, tensor: Any, layout: str) -> Any:
        """The same values in a layout, copied by PyTorch."""
        shape = tuple(tensor.shape)
        found = self.torch.empty_strided(
            shape, Laid(shape, layout).strides(), dtype=tensor.dtype, device=self.place
        )
        return found.copy_(tensor)

    def as_it_lies(self, tensor: Any, layout: str) -> Any:
        """The same memory in a layout; None where that is another one: one channel is no change."""
        shape = tuple(tensor.shape)
        strides = Laid(shape, layout).strides()
        if not same_strides(shape, tuple(tensor.stride()), strides):
            return None
        return tensor.as_strided(shape, strides)

    def operands(self, operation: Operation, layout: str, x: Any = None) -> Operands:
        """Operands of an operation; x of random numbers where it is not given."""
        dtype = operation.dtype
        if x is None:
            x = self.tensor(operation.x_shape, layout, dtype, fill=True)
        w = bias = None
        if isinstance(operation, Convolution):
            share = 1 / math.sqrt(math.prod(operation.w_shape[1:]))
            w = self.tensor(operation.w_shape, "NCHW", dtype, fill=True).mul_(share)
            bias = self.tensor(operation.w_shape[:1], "NCHW", dtype, fill=True)
        return Operands(x, w, self.tensor(operation.output_shape, layout, dtype), bias)

    def _room(self, nbytes: int) -> tuple[int, int]:
        """Scratch of so many bytes: that of one launch is the next one's, too."""
        if self._scratch.numel() < nbytes:
            self._scratch = None
            self._scratch = self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.place)
        return self._scratch.data_ptr(), nbytes

    # Ways ---------------------------------------------------------------------------------------

    def launch(self, operation: Any, inputs: Mapping[str, Any], output: Any) -> Run:
        """A launch by whatever the device runs it with."""
        views = {name: view_of(each) for name, each in inputs.items() if each is not None}
        views["out"] = view_of(output)
        names = tuple(name if each is not None else "" for name, each in inputs.items())
        made = Launch(operation, names, "out")
        nbytes = (self.device.workspace(((made, views),), None) or (0, ()))[0]  # type: ignore[arg-type]
        self._room(nbytes)

        def run(_kept: Any = (inputs, output)) -> None:
            self.device.run(made, views, self._room(nbytes), self.stream)

        return run

    def brought(self, tensor: Any, layout: str) -> tuple[list[Run], Any]:
        """What brings a tensor into a layout, and the tensor there: nothing where it lies so."""
        lying = self.as_it_lies(tensor, layout)
        if lying is not None:
            return [], lying
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        target = self.tensor(shape, layout, dtype)
        return [self.launch(Relayout(shape, dtype), {"x": tensor}, target)], target

    def fused(self, operation: Convolution, on: Operands) -> Run:
        """A convolution in NHWC with bias and ReLU, as one launch."""
        made = FusedConvolution(replace(operation, layout=ORDERS["NHWC"]), "relu")
        inputs = {"x": on.x, "w": self.laid(on.w, "NHWC"), "b": on.bias}
        return self.launch(made, inputs, on.y)

    def bias_relu(self, on: Operands) -> Run:
        """In place."""
        shape, dtype = tuple(on.y.shape), str(on.y.dtype).removeprefix("torch.")
        made = Pointwise(shape, dtype, dtype, "relu", has_shift=True)
        inputs = {"value": on.y, "addend": None, "shift": on.bias, "old": None}
        return self.launch(made, inputs, on.y)

    def choices(self, operation: Operation, layout: str, on: Operands) -> Iterator[Choice]:
        """Ways to run an operation in a layout: engines of cuDNN as long as there is time."""
        if not isinstance(operation, Convolution):
            yield Choice("kernel")
            return
        if self.device.kind == "cuda":
            for tile in tiles_of(operation):
                yield Choice(f"direct {tile[0]}x{tile[1]}", tile=tile)
        made, engines = in_layout(operation, layout), self.device.engines
        if made is None:
            return
        if engines is None:
            launch = Launch(made, ("", ""), "")
            yield Choice(
                "host", workspace=(self.device.workspace(((launch, {}),), None) or (0,))[0]
            )
            return
        few = operation.w_shape[1] <= FEW_CHANNELS and layout in ORDERS
        first, found = list(filter(None, [engines.chosen(made)])), False
        if operation.precision == "float32" and layout in ORDERS:
            first.append(FFT)
        until = time.perf_counter() + (FEW_CHANNELS_SECONDS if few else ENGINE_SECONDS)
        ranked = engines.candidates(made, every=False, compiled=few)
        # the same engine with other knobs is another one
        for engine in dict.fromkeys((*first, *ranked)):
            if found and time.perf_counter() > until:
                return
            with engines.forced(made, engine) as built:
                if built is None:
                    continue
            choice = Choice(built[1], engine, built[0])
            try:
                self.by(operation, layout, on, choice)()
            except (EngineFailedError, self.torch.cuda.OutOfMemoryError):
                continue
            found = True
            yield choice

    def by(self, operation: Operation, layout: str, on: Operands, choice: Choice) -> Run:
        """An operation in a layout, as it was chosen."""
        if not isinstance(operation, Convolution):
            return self.launch(operation, {"x": on.x}, on.y)
        if choice.tile is not None:
            x, w, y = map(view_of, (on.x, on.w, on.y))
            planned = direct_plan(operation, x, y, *choice.tile)
            key = ("few channels", operation, layout, choice.tile)

            def directly(_kept: Any = on) -> None:
                launching.launch(key, (x, w, y), lambda: planned, (), self.stream)

            return directly
        made, engines, engine = in_layout(operation, layout), self.device.engines, choice.engine
        assert made is not None
        if layout in ORDERS:
            w = self.laid(on.w, layout)
            views = (view_of(on.x), view_of(w), view_of(on.y))
        else:
            w = self.laid(on.w.transpose(0, 1), "NHWC")  # (c, k, r, s)
            views = (_swapped(on.x), view_of(w), _swapped(on.y))
        of = dict(zip(("first", "second", "result"), views, strict=True))
        launch = Launch(made, ("first", "second"), "result")

        def run(_kept: Any = (on, w)) -> None:
            forced = engines.forced(made, engine) if engines and engine else nullcontext()
            with forced:
                self.device.run(launch, of, self._room(choice.workspace), self.stream)

        return run


def in_layout(operation: Convolution, layout: str) -> AnyConvolution | None:
    """The convolution of cuDNN's that an operation is in a layout."""
    if layout in ORDERS:
        return replace(operation, layout=ORDERS[layout])
    return as_gradient(operation)


def tiles_of(operation: Convolution) -> tuple[tuple[int, int], ...]:
    """Output channels and sites of a thread that the direct convolution is tried with."""
    square = len(set(operation.window)) == len(set(operation.stride)) == 1
    return TILES if square and operation.w_shape[1] <= FEW_CHANNELS else ()


def direct_plan(
    operation: Convolution, x: DeviceView, y: DeviceView, kernels: int, sites: int
) -> launching.Launch:
    """The launch of few_channels.cu."""
    (n, c_x, *x_size), c_y = operation.x_shape, operation.w_shape[0]
    number = n * math.prod(operation.output_shape[2:])
    if number >= 2**32:
        raise ValueError(f"{number} sites are more than the trial's kernel counts")
    pack = 1
    if y.strides[1] == 1:
        pack = min(WIDEST_ACCESS_BYTES // y.item_bytes, kernels)
        while c_y % pack:
            pack //= 2
    window, stride = operation.window[0], operation.stride[0]
    return launching.Launch(
        SOURCE,
        f"few_channels<{CUDA_TYPES[x.dtype]}, {c_x}, {window}, {stride}, {kernels}, {sites}, "
        f"{pack}>",
        (min(-(-number // (THREADS * sites)), 2**31 - 1), -(-c_y // kernels)),
        geometry(
            n, c_x, c_y, *x_size, *operation.output_shape[2:],
            *(before for before, _ in operation.padding), *x.strides, *y.strides,
            number, int(y.strides[0] == 1),
        ),
        (THREADS, 1),
    )  # fmt: skip


def _swapped(tensor: Any) -> DeviceView:
    """A CHWN tensor as (c, n, h, w), which then lies channels last."""
    view = view_of(tensor)
    (n, c, *sizes), (by_n, by_c, *steps) = view.shape, view.strides
    return replace(view, shape=(c, n, *sizes), strides=(by_c, by_n, *steps))


class Timer:
    """Seconds of a few launches in a row on the device, several ways in turns."""

    #: A batch lasts so long at least, in so many launches at most; the host issues one in this.
    SECONDS, MOST, ISSUE_SECONDS = 1e-3, 20, 6e-5

    def __init__(self, device: Device) -> None:
        self.device = device

    def batch(self, runs: Sequence[Run], rounds: int) -> float:
        """Seconds of a round."""
        if self.device.kind != "cuda":
            began = time.perf_counter()
            for _ in range(rounds):
                for run in runs:
                    run()
            return (time.perf_counter() - began) / rounds
        import cupy

        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        self.device.hold(self.ISSUE_SECONDS * len(runs) * rounds, None)
        begin.record()
        for _ in range(rounds):
            for run in runs:
                run()
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end)) / 1e3 / rounds

    def medians(self, ways: Mapping[str, Sequence[Run]], batches: int) -> dict[str, float]:
        """Seconds of a round of each way."""
        rounds = {}
        for name, runs in ways.items():
            self.batch(runs, 1)  # builds, compiles, allocates
            wanted = round(self.SECONDS / max(self.batch(runs, 1), 1e-7))
            rounds[name] = max(min(wanted, self.MOST // len(runs)), 1)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(batches):
            for name, runs in ways.items():
                found[name].append(self.batch(runs, rounds[name]))
        return {name: float(np.median(samples)) for name, samples in found.items()}
