"""What `benchmarks.kernels` measures: launches on layers of Li et al., and PyTorch's counterparts.

Every tensor is a PyTorch tensor of logical shape (n, c, h, w), laid in memory by its strides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import ooc_cudnn
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.launch import Launch
from ooc_cudnn.operations.core.pointwise import Relayout
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.operations.softmax.channels import Softmax, SoftmaxBackward
from ooc_cudnn.tensor import ITEM_BYTES

#: Axes of (n, c, h, w) from the outermost in memory to the innermost.
LAYOUTS = {"NCHW": (0, 1, 2, 3), "NHWC": (0, 2, 3, 1), "CHWN": (1, 2, 3, 0)}
FLOAT_BYTES = 4
#: In results of integers before they are written.
UNWRITTEN = 165

#: Table 1 of Li et al.: images, channels and extent of each convolution's input.
CONVOLUTIONS = {
    "CV1": (128, 1, 28), "CV2": (128, 16, 14), "CV3": (128, 3, 24), "CV4": (128, 64, 12),
    "CV5": (64, 3, 224), "CV6": (64, 96, 55), "CV7": (64, 256, 13), "CV8": (64, 384, 13),
    "CV9": (32, 3, 224), "CV10": (32, 128, 56), "CV11": (32, 256, 28), "CV12": (32, 512, 14),
}  # fmt: skip
LARGE_INPUT = 64 * 10**6
#: Its pooling layers: images, channels, extent and window; strides are 2. Their paper has the
#: extents and windows; images and channels are those of the networks.
POOLINGS = {
    "PL1": (128, 16, 28, 2), "PL2": (128, 16, 14, 2), "PL3": (128, 64, 24, 3),
    "PL4": (128, 64, 12, 3), "PL5": (128, 96, 55, 3), "PL6": (128, 192, 27, 3),
    "PL7": (128, 256, 13, 3), "PL8": (64, 96, 110, 3), "PL9": (64, 256, 26, 3),
    "PL10": (64, 256, 13, 3),
}  # fmt: skip
SCALED_INPUT = 256 * 10**6
STRIDE = 2
#: Values that are of the tensor "x".
OF_X = ("swish", "peaks")
MODES = {"max": "max", "average": "average_exclude_padding", "average+": "average_include_padding"}
#: Rows and classes; from the third on it is bandwidth that counts.
SOFTMAX = ((128, 10), (128, 1000), (128, 10_000), (1024, 10_000), (16_384, 10_000),
           (16_384, 1000), (512, 30_000), (128, 100_000))  # fmt: skip
LATENCY_CLASSES = 1000
RELAYOUT_SHARE, SOFTMAX_SHARE, POOLING_SHARE = 0.90, 0.85, 0.85
SOFTMAX_TIME, POOLING_TIME = 1.2, 1.0

Tensors = Mapping[str, Any]


class Laid(NamedTuple):
    """A tensor of a case: shape, memory layout, where its values are from (`values`), and dtype."""

    shape: tuple[int, ...]
    layout: str = "NCHW"
    fill: str = ""
    dtype: str = "float32"

    def strides(self) -> tuple[int, ...]:
        strides, step = [0] * len(self.shape), 1
        order = LAYOUTS[self.layout] if len(self.shape) == 4 else range(len(self.shape))
        for axis in reversed(tuple(order)):
            strides[axis] = step
            step *= self.shape[axis]
        return tuple(strides)


@dataclass(frozen=True)
class Case:
    """One launch, what PyTorch does instead, and what is asked of it."""

    group: str
    name: str
    launch: Launch
    tensors: Mapping[str, Laid]
    #: PyTorch's way, where it has the layout: what it prepares from the tensors, and its call.
    theirs: Callable[[Any, Tensors], Callable[[], Any]] | None = None
    #: The public function on the tensors.
    public: Callable[[Tensors], Any] | None = None
    #: Of the largest element, how far contents may be from those of the host device.
    tolerance: float = 0.0
    #: The same on a small map, of which contents are compared; None of a small one.
    small: Case | None = None
    share: float | None = None
    time: float | None = None
    #: Cases of one kind are compared with the best of PyTorch's times of that kind.
    kind: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes read and written, each once."""
        return sum(ITEM_BYTES[laid.dtype] * math.prod(laid.shape) for laid in self.tensors.values())


def view_of(tensor: Any) -> DeviceView:
    """A tensor as the kernels see it."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return DeviceView(tensor.data_ptr(), dtype, tuple(tensor.shape), tuple(tensor.stride()))


def scaled(shape: tuple[int, ...], least_bytes: int) -> tuple[int, ...]:
    """The shape with its images doubled until it exceeds so many bytes.

    >>> scaled((64, 96, 55, 55), 64 * 10**6), scaled((2, 3, 4, 4), 1000)
    ((64, 96, 55, 55), (4, 3, 4, 4))
    """
    while FLOAT_BYTES * math.prod(shape) <= least_bytes:
        shape = (2 * shape[0], *shape[1:])
    return shape


# Re-layout ---------------------------------------------------------------------------------------


def relayouts(shape: tuple[int, ...], name: str) -> Iterator[Case]:
    """A tensor from each of the layouts to each other one."""

    def copy(torch: Any, on: Tensors) -> Callable[[], Any]:
        return partial(torch.empty_like(on["y"]).copy_, on["x"])

    for source, target in itertools.permutations(LAYOUTS, 2):
        yield Case(
            "relayout", f"{name} {source} to {target}",
            Launch(Relayout(shape, "float32"), ("x",), "y"),
            {"x": Laid(shape, source, "random"), "y": Laid(shape, target)},
            copy, share=RELAYOUT_SHARE,
        )  # fmt: skip


# Softmax -----------------------------------------------------------------------------------------


def softmaxes(shape: tuple[int, int]) -> Iterator[Case]:
    """Forward and backward of so many rows and classes."""
    rows, classes = shape
    short = classes <= LATENCY_CLASSES and rows <= 128
    asked: Any = {"time": SOFTMAX_TIME} if short else {"share": SOFTMAX_SHARE}
    laid = Laid(shape, fill="random")
    yield Case(
        "softmax", f"{rows} x {classes} forward",
        Launch(Softmax(shape, "accurate", "float32"), ("x",), "y"),
        {"x": laid, "y": Laid(shape)},
        lambda torch, on: partial(torch.softmax, on["x"], 1),
        lambda on: ooc_cudnn.softmax_forward(on["x"], out=on["y"]),
        tolerance=2e-6, **asked,
    )  # fmt: skip

    def backward(torch: Any, on: Tensors) -> Callable[[], Any]:
        return partial(torch._softmax_backward_data, on["dy"], on["y"], 1, torch.float32)

    yield Case(
        "softmax", f"{rows} x {classes} backward",
        Launch(SoftmaxBackward(shape, "accurate", "float32"), ("y", "dy"), "dx"),
        {"y": Laid(shape, fill="softmax"), "dy": laid, "dx": Laid(shape)},
        backward,
        lambda on: ooc_cudnn.softmax_backward(on["y"], on["dy"], out=on["dx"]),
        tolerance=2e-6, **asked,
    )  # fmt: skip


# Pooling -----------------------------------------------------------------------------------------


def poolings(shape: tuple[int, ...], window: int, name: str, mode: str) -> Iterator[Case]:
    """Forward and backward in each layout."""
    forward = Pooling.of(shape, window=window, stride=STRIDE, mode=MODES[mode])
    counted = mode == "average+"
    options: Any = {"window": window, "stride": STRIDE, "mode": MODES[mode]}
    sites = forward.output_shape
    backward = PoolingBackward(forward, (0, shape[2]))

    def pooled(torch: Any, x: Any) -> Any:
        if forward.is_max:
            return torch.nn.functional.max_pool2d(x, window, STRIDE)
        return torch.nn.functional.avg_pool2d(x, window, STRIDE, count_include_pad=counted)

    def pooling_gradient(torch: Any, on: Tensors) -> Callable[[], Any]:
        aten, size, step = torch.ops.aten, [window] * 2, [STRIDE] * 2
        if not forward.is_max:
            return partial(
                aten.avg_pool2d_backward,
                on["dy"], on["x"], size, step, [0, 0], False, counted, None,
            )  # fmt: skip
        _, index = aten.max_pool2d_with_indices(on["x"], size, step)
        return partial(
            aten.max_pool2d_with_indices_backward,
            on["dy"], on["x"], size, step, [0, 0], [1, 1], False, index,
        )  # fmt: skip

    for layout in LAYOUTS:
        theirs = layout != "CHWN"  # which PyTorch does not have
        x = Laid(shape, layout, "random")
        asked: Any = {"share": POOLING_SHARE, "time": POOLING_TIME}
        yield Case(
            "pooling", f"{name} {mode} {layout} forward",
            Launch(forward, ("x",), "y"),
            {"x": x, "y": Laid(sites, layout)},
            (lambda torch, on: partial(pooled, torch, on["x"])) if theirs else None,
            (lambda on: ooc_cudnn.pooling_forward(on["x"], out=on["y"], **options))
            if theirs else None,
            tolerance=0 if forward.is_max else 2e-6, kind=f"{name} {mode} forward", **asked,
        )  # fmt: skip
        # Averages need dy alone; PyTorch's shape of x costs nothing.
        operands = {"dy": Laid(sites, layout, "sixteenths"), "dx": Laid(shape, layout)}
        inputs: tuple[str, ...] = ("", "dy", "")
        if forward.is_max:
            operands |= {"x": x, "y": Laid(sites, layout, "pooled")}
            inputs = ("y", "dy", "x")

        def with_x(torch: Any, on: Tensors) -> Tensors:
            return on if "x" in on else {**on, "x": on["dx"]}

        yield Case(
            "pooling", f"{name} {mode} {layout} backward",
            Launch(backward, inputs, "dx"), operands,
            (lambda torch, on: pooling_gradient(torch, with_x(torch, on))) if theirs else None,
            (lambda on: ooc_cudnn.pooling_backward(
                on["y"], on["dy"], on["x"], out=on["dx"], **options))
            if theirs and forward.is_max else None,
            tolerance=0 if forward.is_max else 2e-6, kind=f"{name} {mode} backward", **asked,
        )  # fmt: skip


# All of them -------------------------------------------------------------------------------------


def filled(torch: Any, case: Case, place: str) -> dict[str, Any]:
    """The tensors of a case, with NaN (of integers, 165) where results belong."""
    tensors: dict[str, Any] = {}
    for name, laid in sorted(case.tensors.items(), key=lambda item: item[1].fill in OF_X):
        dtype = getattr(torch, laid.dtype)
        tensor = torch.empty_strided(laid.shape, laid.strides(), dtype=dtype, device=place)
        tensor.fill_(math.nan if dtype.is_floating_point else UNWRITTEN)
        contents = values(torch, laid, place, tensors)
        tensors[name] = tensor if contents is None else tensor.copy_(contents)
    if case.tensors.get("y", Laid(())).fill == "pooled":
        forward = case.launch.operation.forward
        tensors["y"].copy_(
            torch.nn.functional.max_pool2d(tensors["x"].contiguous(), forward.window[0], STRIDE)
        )
    return tensors


def values(torch: Any, laid: Laid, place: str, made: Tensors) -> Any:
    """What `fill` says; None of results. `made` are the tensors of the case before this one."""
    kind, _, bound = laid.fill.partition(" ")
    if kind in ("", "pooled"):
        return None
    if kind in ("bytes", "below", "seed"):
        most = {"bytes": 256, "seed": 2**31}.get(kind) or int(bound)
        return torch.randint(most, laid.shape, device=place)
    if kind == "swish":
        return torch.nn.functional.silu(made["x"].float())
    if kind == "peaks":  # of each image, and the sum of the exponentials below it
        peak = made["x"].float().flatten(1).logsumexp(1)
        return torch.stack([peak, torch.ones_like(peak)], 1)
    drawn = torch.randn(laid.shape, device=place)
    changes: dict[str, Callable[[Any], Any]] = {
        "random": lambda x: x,
        "softmax": lambda x: torch.softmax(x, 1),
        "sixteenths": lambda x: (x * 16).round_() / 16,  # whose sums are exact, in any order
        "positive": lambda x: x.abs() + 0.5,
        "large": lambda x: 1e5 * x,
    }
    return changes[kind](drawn)


def with_relatives(every: Iterable[Case], small: Iterable[Case]) -> Iterator[Case]:
    """Cases, each with the one of the same kernel in the same way on a small map."""
    return (replace(case, small=each) for case, each in zip(every, small, strict=True))


#: What makes cases -> a small shape.
SMALL: dict[Any, tuple[int, ...]] = {
    relayouts: (5, 3, 7, 6), softmaxes: (7, 10), poolings: (2, 3, 9, 8)
}  # fmt: skip


def sized(
    make: Callable[..., Iterator[Case]], shape: tuple[int, ...], *rest: Any
) -> Iterator[Case]:
    """Cases of a shape, each with its relative."""
    return with_relatives(make(shape, *rest), make(SMALL[make], *rest))


@cache
def cases(*, quick: bool) -> tuple[Case, ...]:
    """In the order in which they are worth their time."""
    if quick:
        return (
            *relayouts(SMALL[relayouts], "small"),
            *softmaxes(SMALL[softmaxes]),
            *(case for mode in MODES for case in poolings(SMALL[poolings], 3, "small", mode)),
        )
    all_cases = [*sized(relayouts, (64, 96, 55, 55), "CV6")]
    for rows in SOFTMAX:
        all_cases += sized(softmaxes, rows)
    pools = {
        name: (scaled((n, c, extent, extent), SCALED_INPUT), window)
        for name, (n, c, extent, window) in POOLINGS.items()
    }
    for name, (shape, window) in pools.items():
        all_cases += sized(poolings, shape, window, name, "max")
    for name, (n, c, extent) in CONVOLUTIONS.items():
        shape = scaled((n, c, extent, extent), 4 * LARGE_INPUT)
        all_cases += sized(relayouts, shape, f"{name} scaled")
    for mode, (name, (shape, window)) in itertools.product(list(MODES)[1:], pools.items()):
        all_cases += sized(poolings, shape, window, name, mode)
    return tuple(all_cases)
