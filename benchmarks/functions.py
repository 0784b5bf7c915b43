"""Every public function far out of core, against the limit of its link and its arithmetic.

float32 with TF32, n=512 images of 64 channels, 256x256: 8.6 GB in each large operand, all of them
in pinned memory, limit 4 GiB. The limit of a call is the larger of two, taken in the same run: raw
copies of its operands in and its results out, each byte once, both ways at once; and the launches
of its plan by themselves, on data that the device already holds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn import operations
from ooc_cudnn.bench import script
from ooc_cudnn.bench.contents import Images, filters, unwritten
from ooc_cudnn.bench.diagnosis import record_calls
from ooc_cudnn.bench.limits import Link
from ooc_cudnn.bench.timing import Timing, interleave
from ooc_cudnn.devices import get_device

NAME = "functions"
BOUND = 0.90
#: Patches of every result that `verify` recomputes in float64.
PATCHES = 2
HostArray = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One call; the large arrays that it reads, and those that it writes."""

    name: str
    call: Callable[[], Any]
    reads: tuple[HostArray, ...]
    writes: tuple[HostArray, ...] = ()
    before: Callable[[], Any] | None = None


class Operands:
    """Four arrays in pinned memory, allocated once and used by every function; small ones beside.

    `x`, `y` and `dy` hold random numbers; `out` takes every result.
    """

    def __init__(self, report: script.Report) -> None:
        self.shape = (6, 8, 24, 32) if report.quick else (512, 64, 256, 256)
        begin = time.perf_counter()
        self.x, self.y, self.dy, self.out = (script.allocate_pinned(self.shape) for _ in range(4))
        report.measure("seconds to allocate the pinned operands", time.perf_counter() - begin)
        for seed, array in enumerate((self.x, self.y, self.dy)):
            Images.of(self.shape, seed).fill(array)
        report.say("operands filled")
        channels = self.shape[1]
        w, b = filters(channels, channels)
        self.w, self.b = (report.to_device(array) for array in (w, b))
        random = np.random.default_rng(5)
        vectors = random.uniform(0.5, 1.5, (4, channels)).astype(np.float32)
        self.scale, self.bias, self.mean, self.variance = (
            report.to_device(vector) for vector in vectors
        )
        # Arrays of the host device count against its limit; a GPU user's own arrays do not.
        self.limit: Any = "160kB" if report.quick else "4GiB"

    def pooled(self, array: HostArray) -> HostArray:
        """The first quarter of an array, as what pooling by 2 gives."""
        n, c, h, w = self.shape
        return array.reshape(-1)[: array.size // 4].reshape(n, c, h // 2, w // 2)


def cases(on: Operands) -> Iterator[Case]:
    """Every public function; pooling of windows that overlap, too, and a chain of seven."""

    def case(
        name: str, *operands: Any, unread: Any = None, before: Callable[[], Any] | None = None,
        **more: Any,
    ) -> Case:  # fmt: skip
        """A call of the function that the name begins with; large arrays are read and written."""
        call = partial(getattr(ooc_cudnn, name.partition(",")[0]), *operands, **more)
        out = more.get("out")
        results = out if isinstance(out, tuple) else (out,)
        is_large = lambda array: isinstance(array, np.ndarray) and array.size >= x.size // 4  # noqa: E731
        reads = tuple(array for array in operands if is_large(array) and array is not unread)
        return Case(name, call, reads, tuple(filter(is_large, results)), before)

    x, y, dy, out, w, b = on.x, on.y, on.dy, on.out, on.w, on.b
    half, half_y, half_dy = (on.pooled(array) for array in (out, y, dy))
    fused = "convolution_add_activation"
    yield case("convolution_forward", x, w, padding=1, out=out)
    yield case("convolution_backward_data", w, dy, padding=1, out=out)
    yield case("convolution_backward_filter", x, dy, padding=1)
    yield case("convolution_backward_bias", dy)
    yield case(f"{fused}_forward", x, w, b, padding=1, out=out)
    yield case(f"{fused}_pooling_forward", x, w, b, window=2, padding=1, out=half)
    yield case(f"{fused}_backward", x, w, y, dy, padding=1, out=(out, None, None))
    layer = [
        operations.Convolution(w, padding=1),
        operations.AddTensor(b),
        operations.Activation("relu"),
    ]
    chain = [*layer, *layer, operations.Pooling(2)]
    yield case("chain_forward, conv-bias-relu twice and pooling", x, chain, out=half)
    yield case("add_tensor", b, x, out=out)
    yield case("activation_forward, relu", x, out=out)
    yield case("activation_forward, gelu", x, mode="gelu", out=out)
    yield case("activation_backward, relu", y, dy, out=out)
    yield case("activation_backward, gelu", y, dy, x, mode="gelu", out=out, unread=y)
    for mode in ("channel", "instance"):
        yield case(f"softmax_forward, {mode}", x, mode=mode, out=out)
        yield case(f"softmax_backward, {mode}", y, dy, mode=mode, out=out)
    normalize, saved = ooc_cudnn.batch_normalization_forward_training, dict[str, Any]()
    yield case(normalize.__name__, x, on.scale, on.bias, out=(out, None, None))
    yield case("batch_normalization_forward_inference", x, on.scale, on.bias, on.mean, on.variance,
               out=out)  # fmt: skip

    def train() -> None:
        _, saved["saved_mean"], saved["saved_inverse_variance"] = normalize(
            x, on.scale, on.bias, out=(out, None, None)
        )

    def backward() -> None:
        ooc_cudnn.batch_normalization_backward(x, dy, on.scale, **saved, out=(out, None, None))

    yield Case("batch_normalization_backward", backward, (x, dy), (out,), train)
    yield case("pooling_forward, 2x2 max", x, window=2, out=half)
    yield case("pooling_forward, 3x3 average", x, window=3, stride=2, padding=1, out=half,
               mode="average_exclude_padding")  # fmt: skip
    yield case(
        "pooling_backward, 2x2 max", half_y, half_dy, x, window=2, out=out,
        before=lambda: ooc_cudnn.pooling_forward(x, window=2, out=half_y),
    )  # fmt: skip


class Bench:
    """Measures one function after the other."""

    def __init__(self, report: script.Report, limit: Any) -> None:
        self.report, self.limit = report, limit
        self.device = get_device(report.arguments.device)
        self.synchronize = report.synchronize
        self.link = Link(cuda=report.arguments.cuda)
        self.repeats = 2 if report.quick else 3

    def measure(self, case: Case) -> None:
        """Time a call, take its limit, look at what it wrote."""
        report, name = self.report, case.name
        copies = self.link.copies(case.reads, case.writes)
        if case.before is not None:
            case.before()
        begin = time.perf_counter()
        case.call()  # plans, compiles its kernels
        report.measure(f"{name}: first call, planned and compiled", time.perf_counter() - begin)
        times = interleave(
            {"link": copies, "call": case.call}, self.synchronize, repeats=self.repeats, warmup=0
        )
        with without_link(self.device), record_calls() as calls:
            case.call()
        # A trace without copies: gaps between launches are the host's, not the device's.
        core_seconds = min(calls[0].trace.busy_seconds("compute"), calls[0].seconds)
        diagnosis = self._verified(case, copies)
        self._compare(case, times, core_seconds, diagnosis)

    def _verified(self, case: Case, copies: Callable[[], None]) -> dict[str, Any]:
        """Run once more on poisoned results: profiled, and patches recomputed in float64."""
        report, name = self.report, case.name
        copies()
        with ooc_cudnn.settings(verify=PATCHES):
            diagnosis, _ = report.profile(name, case.call, self.limit)
        missing = sum(unwritten(array) for array in case.writes)
        report.check(
            f"{name}: contents",
            {"ok": not missing, "verified_patches": PATCHES, "unwritten_planes": missing},
        )
        return diagnosis

    def _compare(
        self,
        case: Case,
        times: dict[str, Timing],
        core_seconds: float,
        diagnosis: dict[str, Any],
    ) -> None:
        report, name = self.report, case.name
        ours, link = times["call"].median, times["link"].median
        binds = "link" if link >= core_seconds else "arithmetic"
        limit = max(link, core_seconds)
        report.measure(f"{name}: seconds", times["call"])
        report.measure(f"{name}: link", times["link"])
        report.measure(
            f"{name}: limit",
            {
                "seconds": limit,
                "binds": binds,
                "link_seconds": link,
                "in_core_compute_seconds": core_seconds,
                "bytes_in": sum(array.nbytes for array in case.reads),
                "bytes_out": sum(array.nbytes for array in case.writes),
            },
        )
        report.claim(f"{name}: limit / measured", limit / ours, ">=", BOUND)
        report.predicted(name, diagnosis, ours)


@contextmanager
def without_link(device: Any) -> Iterator[None]:
    """Let calls leave out their copies from and to the host: their launches, in core.

    Plans, pieces and launches are those of the call; they run on whatever the device's memory holds
    from the call before, and results on the host stay as they are.
    """
    kept = {name: getattr(device, name) for name in ("copy_in", "copy_out")}

    def on_device_alone(name: str) -> Callable[[Any, Any, Any], Any]:
        def copy(destination: Any, source: Any, stream: Any) -> Any:
            if isinstance(source, np.ndarray) or isinstance(destination, np.ndarray):
                return None
            return kept[name](destination, source, stream)

        return copy

    try:
        for name in kept:
            setattr(device, name, on_device_alone(name))
        yield
    finally:
        for name in kept:
            delattr(device, name)


def body(report: script.Report) -> None:
    on = Operands(report)
    bench = Bench(report, on.limit)
    with ooc_cudnn.settings(memory_limit=on.limit, allow_tf32=True):
        for case in cases(on):
            try:
                bench.measure(case)
            except Exception as error:  # the others are still worth their time on the card
                failure = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                report.check(f"{case.name}: contents", failure)
    ratios = [claim.value for claim in report.claims if claim.name.endswith("limit / measured")]
    report.claim("functions measured", len(ratios))
    if ratios:
        report.claim("limit / measured, geometric mean",
                     math.exp(sum(map(math.log, ratios)) / len(ratios)))  # fmt: skip


main = partial(script.run, NAME, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
