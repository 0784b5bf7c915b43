"""Every function but the convolutions in core, without `out`, against PyTorch's best.

On layers of VGG-16, ResNet-50 and a 3-D U-Net, in three types, each in the better of two memory
orders, as `engines` does for convolutions. A gradient of PyTorch's is what its `autograd.grad`
takes with the forward pass kept. Errors are against PyTorch in float64, of our results and of
PyTorch's. Functions that take the card little time are bound by the host: that is said of each.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import ooc_cudnn
from benchmarks.engines import MEAN, MOST, ORDERS, best, in_both_orders, largest_error, timings
from ooc_cudnn.bench import script
from ooc_cudnn.bench.timing import Timing

NAME = "functions_in_core"
DTYPES = ("float32", "float16", "bfloat16")
#: Of the largest result, what an error may be; PyTorch's may be larger.
ERRORS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
ERROR_SHARE = 2.0
#: A call is the host's where the host takes more than such a share of the time of one among many.
OF_HOST = 0.9
SECONDS = 400.0


class Layer(NamedTuple):
    """A feature map, and how it is pooled, if it is, by windows of `window`."""

    network: str
    n: int
    channels: int
    extent: int
    axes: int = 2
    window: int = 2
    stride: int = 2
    padding: int = 0
    mode: str = "max"
    normalized: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.channels, *self.axes * (self.extent,))

    @property
    def name(self) -> str:
        return (
            f"{self.network} {self.n}x{self.channels}, {'x'.join(self.axes * [f'{self.extent}'])}"
        )


LAYERS = (
    Layer("VGG-16", 64, 64, 224, normalized=False),
    Layer("VGG-16", 64, 256, 56, normalized=False),
    Layer("VGG-16", 64, 512, 14, normalized=False),
    Layer("ResNet-50", 256, 64, 112, window=3, padding=1),
    Layer("ResNet-50", 256, 256, 56),
    Layer("ResNet-50", 256, 2048, 7, window=7, stride=7, mode="average_include_padding"),
    Layer("U-Net", 1, 32, 128, axes=3),
    Layer("U-Net", 1, 128, 32, axes=3),
)
QUICK = (Layer("quick", 2, 4, 8, window=3, padding=1),)
#: Rows and classes of softmax: of a classifier, and of each voxel of a segmentation.
CLASSES = ((256, 1000), (1, 4, 128, 128, 128))
QUICK_CLASSES = ((4, 10),)


Way = Callable[[dict[str, Any]], Any]


class Problem:
    """One function on one shape: tensors in both memory orders, and the two ways.

    `function` and `peer` take operands: x, dy, scale and bias of channels, and what is added here.
    """

    def __init__(
        self, torch: Any, about: str, shape: Sequence[int], dtype: str, place: str, what: str,
        function: Way, peer: Way,
    ) -> None:  # fmt: skip
        self.torch, self.name, self.dtype = torch, f"{about} {dtype} {what}", dtype
        self._shape, self._place = shape, place
        self.function, self.peer = function, peer

    def drawn(self, shape: Sequence[int], seed: int) -> Any:
        generator = self.torch.Generator(device=self._place).manual_seed(seed)
        made = self.torch.randn(
            tuple(shape), generator=generator, dtype=self.torch.float32, device=self._place
        )
        return made.to(getattr(self.torch, self.dtype))

    @cached_property
    def of(self) -> dict[str, dict[str, Any]]:
        """The operands by memory order."""
        x, dy = (self.drawn(self._shape, seed) for seed in (0, 1))
        scale, bias = (self.drawn((self._shape[1],), seed).abs() + 0.5 for seed in (2, 3))
        maps = in_both_orders(self.torch, {"x": x, "dy": dy}, len(self._shape) - 2)
        vectors = {"scale": scale.float(), "bias": bias}
        return {order: {**of, **vectors} for order, of in maps.items()}

    def ours(self, order: str) -> Any:
        return self.function(self.of[order])

    def theirs(self, order: str) -> Any:
        return self.peer(self.of[order])

    def expected(self) -> Any:
        """In float64, by PyTorch."""
        wide = {name: each.double() for name, each in self.of[ORDERS[0]].items()}
        return self.peer(wide)

    def error(self, found: Any, expected: Any) -> float:
        """The largest error of all results, as shares of the largest of each."""
        pairs = zip(_all(found), _all(expected), strict=True)
        tensors = ((self.torch.as_tensor(ours), wide) for ours, wide in pairs)
        return max(largest_error(ours, wide.reshape(ours.shape)) for ours, wide in tensors)


def _all(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def gradient(torch: Any, make: Callable[..., Any], names: Sequence[str]) -> Way:
    """PyTorch's gradient of what `make` makes of operands: forward once, backward at each call."""
    kept: dict[int, Any] = {}

    def call(of: dict[str, Any]) -> Any:
        if id(of) not in kept:
            with torch.enable_grad():
                leaves = {name: of[name].detach().requires_grad_() for name in names}
                kept[id(of)] = make(**{**of, **leaves}), tuple(leaves.values()), of
        result, leaves, _ = kept[id(of)]
        return torch.autograd.grad(result, leaves, of["dy"], retain_graph=True)

    return call


#: (what is called, our way, PyTorch's way) -> the problem.
Make = Callable[[str, Way, Way], Problem]


def problems(torch: Any, quick: bool, dtypes: Sequence[str], place: str) -> Iterator[Problem]:
    for layer in QUICK if quick else LAYERS:
        for dtype in dtypes:
            yield from of_layer(
                torch, layer, partial(Problem, torch, layer.name, layer.shape, dtype, place)
            )
    for shape in QUICK_CLASSES if quick else CLASSES:
        about = f"softmax {'x'.join(map(str, shape))}"
        for dtype in dtypes:
            yield from pair(
                torch, partial(Problem, torch, about, shape, dtype, place),
                ("forward", lambda of: ooc_cudnn.softmax_forward(of["x"])),
                ("backward", lambda of: ooc_cudnn.softmax_backward(of["y"], of["dy"])),
                lambda x, **_: torch.softmax(x, 1),
            )  # fmt: skip


def pair(
    torch: Any, problem: Make, forward: tuple[str, Way], backward: tuple[str, Way],
    make: Callable[..., Any], leaves: Sequence[str] = ("x",),
) -> Iterator[Problem]:  # fmt: skip
    """A function that PyTorch's `make` makes, too, and its gradient, from y and dy."""
    yield problem(*forward, lambda of: make(**of))
    of_gradient = problem(*backward, gradient(torch, make, leaves))
    for of in of_gradient.of.values():
        of["y"] = make(**of)
        of["dy"] = torch.empty_like(of["y"]).copy_(of_gradient.drawn(of["y"].shape, 1))
    yield of_gradient


def of_layer(torch: Any, layer: Layer, problem: Make) -> Iterator[Problem]:
    functional, axes = torch.nn.functional, layer.axes
    yield from pair(
        torch, problem,
        ("activation_forward", lambda of: ooc_cudnn.activation_forward(of["x"])),
        ("activation_backward", lambda of: ooc_cudnn.activation_backward(of["y"], of["dy"])),
        lambda x, **_: torch.relu(x),
    )  # fmt: skip
    in_place = problem(
        "add_tensor",
        lambda of: ooc_cudnn.add_tensor(of["bias"], of["y"]),
        lambda of: of["y"].add_(of["bias"].reshape(1, -1, *[1] * axes)),
    )
    for of in in_place.of.values():
        of["y"] = of["x"].clone()
    yield in_place
    yield problem(
        "convolution_backward_bias",
        lambda of: ooc_cudnn.convolution_backward_bias(of["dy"]),
        lambda of: of["dy"].sum((0, *range(2, 2 + axes))),
    )
    pool = getattr(functional, f"{'max' if layer.mode == 'max' else 'avg'}_pool{axes}d")
    geometry = {"stride": layer.stride, "padding": layer.padding}
    mine = {"window": axes * (layer.window,), "mode": layer.mode, **geometry}
    what = f"{layer.window}/{layer.stride}"
    yield from pair(
        torch, problem,
        (f"pooling_forward {what}", lambda of: ooc_cudnn.pooling_forward(of["x"], **mine)),
        (f"pooling_backward {what}",
         lambda of: ooc_cudnn.pooling_backward(of["y"], of["dy"], of["x"], **mine)),
        lambda x, **_: pool(x, layer.window, **geometry),
    )  # fmt: skip
    if layer.normalized:
        yield from _normalization(torch, problem)


def _normalization(torch: Any, problem: Make) -> Iterator[Problem]:
    normalize, name = torch.nn.functional.batch_norm, "batch_normalization"
    train = ooc_cudnn.batch_normalization_forward_training
    saved = ("saved_mean", "saved_inverse_variance")
    variants = pair(
        torch, problem,
        (f"{name}_forward_training", lambda of: train(of["x"], of["scale"], of["bias"])[0]),
        (f"{name}_backward", lambda of: ooc_cudnn.batch_normalization_backward(
            of["x"], of["dy"], of["scale"], **{each: of[each] for each in saved})),
        lambda x, scale, bias, **_: normalize(x, None, None, scale, bias.to(scale), training=True),
        ("x", "scale", "bias"),
    )  # fmt: skip
    known = ("scale", "bias", "mean", "variance")
    inference = problem(
        f"{name}_forward_inference",
        lambda of: ooc_cudnn.batch_normalization_forward_inference(
            of["x"], *(of[each] for each in known)
        ),
        lambda of: normalize(of["x"], of["mean"], of["variance"], of["scale"], of["bias"]),
    )
    for variant in (*variants, inference):
        for of in variant.of.values():
            axes, wide = [axis for axis in range(of["x"].dim()) if axis != 1], of["x"].double()
            of["bias"] = of["bias"].float()
            of["mean"] = of["saved_mean"] = wide.mean(axes).float()
            of["variance"] = wide.var(axes, unbiased=False).float()
            of["saved_inverse_variance"] = (of["variance"] + 1e-5).rsqrt()
        yield variant


def measured(report: script.Report, problem: Problem) -> tuple[float, bool]:
    """Ours over PyTorch's, checked; and whether the host binds ours."""
    in_place = problem.name.endswith("add_tensor")
    errors = {"ours": 0.0, "PyTorch": math.inf}
    with problem.torch.no_grad():
        if in_place:  # each call adds once more
            before = {order: of["y"].clone() for order, of in problem.of.items()}
        expected = problem.expected()
        for order, of in problem.of.items():
            for who, way in (("ours", problem.ours), ("PyTorch", problem.theirs)):
                if in_place:
                    of["y"].copy_(before[order])
                wrong = problem.error(way(order), expected)
                among = (wrong, errors[who])
                errors[who] = max(among) if who == "ours" else min(among)
    allowed = max(ERRORS[problem.dtype], ERROR_SHARE * errors["PyTorch"])
    report.check(
        f"{problem.name}: contents", {"ok": errors["ours"] <= allowed, **errors, "allowed": allowed}
    )
    seconds, host = timings(report, problem, ("ours", "PyTorch"))
    ratio = best(seconds, "ours") / best(seconds, "PyTorch")
    of_host = best(host, "ours") > OF_HOST * best(seconds, "ours")
    report.measure(
        problem.name,
        {
            "seconds": {way: timing.to_json() for way, timing in seconds.items()},
            "host, one call": {way: timing.median for way, timing in host.items()},
            "ours over PyTorch": ratio,
            "the host binds": of_host,
        },
        spoken=f"{_us(seconds, 'ours')} us, PyTorch {_us(seconds, 'PyTorch')} us: {ratio:.2f}"
        + f"; host {_us(host, 'ours')} us" * of_host,
    )
    return ratio, of_host


def _us(found: dict[str, Timing], who: str) -> str:
    return f"{1e6 * best(found, who):.0f}"


def body(report: script.Report) -> None:
    import torch

    place = "cuda" if report.arguments.cuda else "cpu"
    ratios: dict[str, tuple[float, bool]] = {}
    begin, dtypes = time.perf_counter(), report.arguments.dtypes
    dtypes = dtypes[:1] if report.quick else dtypes
    for problem in problems(torch, report.quick, dtypes, place):
        if time.perf_counter() - begin > report.arguments.seconds:
            report.note(f"not measured in {report.arguments.seconds:g} s: {problem.name} and later")
            break
        ratios[problem.name] = measured(report, problem)
        problem.of.clear()
        report.write()
    kinds: dict[str, list[float]] = {}
    for name, (ratio, of_host) in ratios.items():
        kinds.setdefault("all", []).append(ratio)
        if not of_host:
            kinds.setdefault("where the host does not bind", []).append(ratio)
        for dtype in (each for each in dtypes if f" {each} " in name):
            kinds.setdefault(dtype, []).append(ratio)
    for kind, values in kinds.items():
        name = f"{kind}: ours over PyTorch, geometric mean of {len(values)}"
        report.claim(name, statistics.geometric_mean(values), "<=", MEAN)
    worst = max(ratios, key=lambda name: ratios[name][0])
    report.claim(f"{worst}: ours over PyTorch, the largest", ratios[worst][0], "<=", MOST)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it")


main = partial(script.run, NAME, body, __doc__, more=options)

if __name__ == "__main__":
    sys.exit(main())
