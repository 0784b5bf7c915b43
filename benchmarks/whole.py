"""Whole images and volumes by `infer`: four cases of its users, beside PyTorch where it can run.

``python -m benchmarks.whole --case seismic`` measures one, ``--quick`` all at a tiny size. Each is
a record. Windows are those of MONAI, spelled out, so that a card's machine needs no MONAI: a test
compares the two. What is measured begins in pinned memory; PyTorch's results stay on the card.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import math
import sys
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import ooc_cudnn
import ooc_cudnn.torch as ooc
from benchmarks import networks
from benchmarks.whole_networks import Decoder, VolumeUNet
from ooc_cudnn.bench import script
from ooc_cudnn.bench.placing import release_device
from ooc_cudnn.bench.timing import LONG_SECONDS, Timing, time_call
from ooc_cudnn.bench.torch_setup import out_of_memory_as, precision
from ooc_cudnn.bench.torch_step import Memory
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.base import STREAMS
from ooc_cudnn.units import format_bytes, parse_limit

NAME = "whole"
#: A way is repeated so often, and for this share of a case's seconds.
REPEATS, SHARE = 5, 1 / 10
#: Sites from which one of a `VolumeUNet` of four levels depends to each side, and some more.
HALO = 64
#: Of what is compared, in its deviations: rounding in float16 or TF32, and the largest of many.
APART, APART_MOST = 0.01, 0.2
#: Of sites, those where rounding may choose another one of 100 classes.
OTHERS = 0.02


# Windows ------------------------------------------------------------------------------------------


def weights_of(window: int, axes: int, *, is_gaussian: bool) -> torch.Tensor:
    """What the sites of a window weigh: alike, or by a deviation of an eighth of its side."""
    if not is_gaussian:
        return torch.ones((window,) * axes)
    sites = torch.arange(window) - (window - 1) / 2
    line = torch.exp(-(sites**2) / (2 * (window / 8) ** 2))
    weights = functools.reduce(lambda made, _: made[..., None] * line, range(axes - 1), line)
    return weights.clamp(min=max(float(weights.min()), 1e-3))


def places(sites: Sequence[int], window: int, overlap: float) -> Iterator[tuple[slice, ...]]:
    """Where windows lie; the last ones of an axis end with it.

    >>> [each[0].start for each in places((20,), 8, 0.25)]
    [0, 6, 12]
    """
    stride = max(int(window * (1 - overlap)), 1)
    counts = (math.ceil((extent - window) / stride) + 1 for extent in sites)
    starts = ([min(at * stride, extent - window) for at in range(count)]
              for count, extent in zip(counts, sites, strict=True))  # fmt: skip
    for corner in itertools.product(*starts):
        yield tuple(slice(at, at + window) for at in corner)


@torch.no_grad()
def windowed(
    model: nn.Module, image: torch.Tensor, window: int, overlap: float, *, is_gaussian: bool = False
) -> torch.Tensor:
    """Scores of one image by sliding windows, as MONAI's SlidingWindowInferer averages them."""
    sites = image.shape[2:]
    weights = weights_of(window, len(sites), is_gaussian=is_gaussian).to(image)
    total, scores = image.new_zeros(sites), None
    for place in places(sites, window, overlap):
        made = model(image[(..., *place)])
        if scores is None:
            scores = image.new_zeros((1, made.shape[1], *sites))
        scores[(..., *place)] += made * weights
        total[place] += weights
    assert scores is not None
    return scores.div_(total)


# Measuring ----------------------------------------------------------------------------------------


def _place(report: script.Report) -> str:
    return "cuda" if report.arguments.cuda else "cpu"


def _on_card(report: script.Report, model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A model in evaluation where it runs; channels last on a card."""
    model = model.eval().requires_grad_(False).to(_place(report), dtype)
    axes = next(each.ndim for each in model.parameters() if each.ndim > 3)
    order = torch.channels_last if axes == 4 else torch.channels_last_3d
    return model.to(memory_format=order) if report.arguments.cuda else model


def _volume_unet(classes: int) -> VolumeUNet:
    """One whose scores differ as its inputs do; of weights as PyTorch draws them they hardly do."""
    torch.manual_seed(0)
    model = VolumeUNet(classes)
    for each in model.modules():
        if isinstance(each, nn.Conv3d):
            nn.init.kaiming_normal_(each.weight, nonlinearity="relu")
            assert each.bias is not None
            nn.init.zeros_(each.bias)
    return model


def _drawn(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Normal numbers in pinned memory."""
    array = torch.as_tensor(script.allocate_pinned(shape, dtype))
    generator = torch.Generator().manual_seed(1)
    some = torch.randn(min(array.numel(), 2**22 + 1), generator=generator).to(array.dtype)
    flat = array.view(-1)
    for at in range(0, len(flat), len(some)):
        flat[at : at + len(some)] = some[: len(flat) - at]
    return array


def _pinned(values: torch.Tensor) -> torch.Tensor:
    dtype = str(values.dtype).removeprefix("torch.")
    return torch.as_tensor(script.allocate_pinned(tuple(values.shape), dtype)).copy_(values)


def _timed(report: script.Report, run: Callable[[], Any]) -> Timing:
    samples = [time_call(run, report.synchronize)]
    share = 0.0 if report.quick else SHARE * report.arguments.seconds
    while len(samples) < REPEATS and sum(samples) + samples[-1] < share:
        samples.append(time_call(run, report.synchronize))
    return Timing(tuple(samples))


def _kept(report: script.Report, name: str, row: dict[str, Any]) -> None:
    """Measure a way: its seconds, and the most that the card held."""
    peak = row["memory"]["total"]
    spoken = f"{Timing(tuple(row['seconds']['samples']))}, {format_bytes(peak)}"
    report.measure(name, row | {"peak_bytes": peak}, spoken=spoken)
    report.write()


def ours(
    report: script.Report, name: str, run: Callable[[], Any], limit: str, asked: float | None = None
) -> Any:
    """Measure calls of `infer`; return what one made.

    `asked` are the seconds that it may take.
    """
    begin = time.perf_counter()
    result = run()
    row: dict[str, Any] = {"limit": limit, "first_seconds": time.perf_counter() - begin}
    memory = Memory(report.arguments.device)
    memory.begin()
    with ooc_cudnn.profile() as recorded:
        profiled = time_call(run, report.synchronize)
    held, calls = memory.figures(), recorded.calls  # a block each
    seconds = Timing((profiled,)) if profiled > LONG_SECONDS else _timed(report, run)
    predicted = sum(call.plan.seconds for call in calls)
    row |= {
        "seconds": seconds.to_json(), "memory": held, "predicted_seconds": predicted,
        "blocks": len(calls), "of_blocks_seconds": sum(call.seconds for call in calls),
        "busy_seconds": {
            each: sum(call.trace.busy_seconds(each) for call in calls) for each in STREAMS
        },
    }  # fmt: skip
    _kept(report, name, row)
    bytes_ = parse_limit(limit, name="limit") or 1
    report.claim(f"{name}: total memory / limit", held["total"] / bytes_, "<=", 1.0)
    report.claim(f"{name}: predicted / measured", predicted / seconds.median)
    report.claim(f"{name}: seconds", seconds.median, "<=" if asked else "", asked, "s")
    return result


class _DoesNotFit(Exception):
    """PyTorch has not the memory."""


def theirs(
    report: script.Report,
    name: str,
    way: Callable[[torch.Tensor], torch.Tensor],
    image: torch.Tensor,
) -> Any:
    """Measure a way of PyTorch's; return what it made, None where the card is too small.

    And where PyTorch has no kernel for maps of 2**31 numbers: its row has the reason.
    """
    _release(report)
    memory = Memory(report.arguments.device)

    def run() -> torch.Tensor:
        return way(image.to(_place(report), non_blocking=True))

    try:
        with torch.no_grad(), out_of_memory_as(torch, _DoesNotFit):
            first = time_call(run, report.synchronize)  # cuDNN's engines are tried
            memory.begin()
            result = run()
            held = memory.figures()
            seconds = _timed(report, run)
    except (_DoesNotFit, RuntimeError) as error:
        status = "does not fit" if isinstance(error, _DoesNotFit) else "refused"
        report.measure(name, {"status": status, "reason": str(error)[:300]})
        result = None
    else:
        row = {"seconds": seconds.to_json(), "memory": held, "first_seconds": first}
        _kept(report, name, row)
    return result


def _release(report: script.Report) -> None:
    """Give back what is kept of freed tensors, so that the next way has the card."""
    gc.collect()
    get_device(report.arguments.device).arena.release()
    if report.arguments.cuda:
        torch.cuda.empty_cache()


def _apart(found: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """How far two results are from each other, in deviations of the second."""
    found, expected = found.float().to(expected.device), expected.float()
    deviation = float(expected.std())
    away = (found - expected).abs() / deviation
    mean, most = float(away.mean()), float(away.max())
    is_ok = mean <= APART and most <= APART_MOST and deviation > 0
    return {"ok": is_ok, "mean": mean, "most": most, "deviation": deviation}


# The cases ----------------------------------------------------------------------------------------


def seismic(report: script.Report) -> None:
    """Faults in a volume of 1024 to a side: FaultSeg3D, in float16 and in TF32.

    Published: 7.5 s and 27.6 GB in half precision, by a compiler that tiles (Li et al., Nature
    Communications Engineering, 2025, s44172-025-00576-2).
    """
    side, limit = (64, "24MiB") if report.quick else (1024, "8GiB")
    window, smaller = (32, 32) if report.quick else (256, 320)  # of 2**31 numbers it refuses maps
    for dtype in ("float32",) if report.quick else ("float16", "float32"):
        model = _on_card(report, _volume_unet(1), getattr(torch, dtype))
        volume = _drawn((1, 1, side, side, side), dtype)
        faults = script.allocate_pinned(tuple(volume.shape), dtype)
        run = functools.partial(ooc.infer, model, volume, out=faults, memory_limit=limit)
        ours(report, f"ours, {dtype}", run, limit, 5.0 if dtype == "float16" else None)
        ooc.release(model)
        for at, (part, expected) in enumerate(_parts(report, model, volume)):
            apart = _apart(torch.as_tensor(faults)[part], expected)
            report.check(f"{dtype}: contents of part {at}", apart)
        if dtype == "float16" or report.quick:
            way = functools.partial(windowed, model, window=window, overlap=0.25)
            theirs(report, f"PyTorch, windows of {window}, {dtype}", way, volume)
            smaller_one = _pinned(volume[_cube(0, smaller)])
            theirs(report, f"PyTorch, a volume of {smaller}, {dtype}", model, smaller_one)


def _cube(begin: int, end: int) -> tuple[Any, ...]:
    return (..., *(slice(begin, end),) * 3)


def _parts(
    report: script.Report, model: nn.Module, volume: torch.Tensor
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Two parts of a volume, in a corner and in the middle, with PyTorch's results of these."""
    side = volume.shape[-1]
    extent = side // 8
    for first in (0, side // 2 - extent // 2):
        begin, end = max(first - HALO, 0), min(first + extent + HALO, side)
        inner = _cube(first - begin, first - begin + extent)
        with torch.no_grad():
            expected = model(volume[_cube(begin, end)].to(_place(report)))[inner]
        yield _cube(first, first + extent), expected


def labels(report: script.Report) -> None:
    """The largest of 100 classes in a volume of 384 to a side, in TF32.

    MONAI issue 6427: windows with all scores on the card, 9 s and 22.9 GB; with scores on the host,
    120 s.
    """
    side, classes, limit = (32, 10, "8MiB") if report.quick else (384, 100, "2GiB")
    model = _on_card(report, _volume_unet(classes), torch.float32)
    volume = _drawn((1, 1, side, side, side), "float32")
    found = script.allocate_pinned((1, 1, side, side, side), "uint8")
    run = functools.partial(
        ooc.infer, model, volume, out=found, memory_limit=limit, reduce="argmax"
    )
    ours(report, "ours", run, limit, 3.0)
    ooc.release(model)
    window = side // 2 if report.quick else side // 3
    theirs(report, f"PyTorch, windows of {window}",
           lambda x: windowed(model, x, window, 0.25).argmax(1), volume)  # fmt: skip
    theirs(report, "PyTorch, whole", lambda x: model(x).argmax(1), volume)
    _release(report)
    for at, (part, scores) in enumerate(_parts(report, model, volume)):
        label = torch.as_tensor(found)[part].to(scores.device, torch.int64)
        # what the class that was chosen lacks to the largest
        behind = (scores.amax(1, keepdim=True) - scores.gather(1, label)) / scores.std()
        lacks, apart = float(behind.max()), float((behind > 0).double().mean())
        is_ok = lacks <= APART_MOST and apart <= OTHERS and len(label.unique()) > 1
        report.check(f"contents of part {at}", {"ok": is_ok, "lacks": lacks, "apart": apart})


def decoder(report: script.Report) -> None:
    """Stable Diffusion's decoder: latents of 1024 to a side, 8192 x 8192 pixels, in float16.

    Each pixel depends on all others, by group norms and by attention. Beside it eager at 1024
    pixels: seconds a pixel.
    """
    torch.manual_seed(0)
    dtype = "float32" if report.quick else "float16"
    made = Decoder((8, 8, 16, 16), 2, 4) if report.quick else Decoder()
    model = _on_card(report, made, getattr(torch, dtype))
    small, checked, large = (8, 16, 16) if report.quick else (128, 256, 1024)
    check_limit, limit = ("2MiB", "2MiB") if report.quick else ("512MiB", "8GiB")
    latents = _drawn((1, 4, checked, checked), dtype)
    with torch.no_grad():
        expected = model(latents.to(_place(report)))
    found = ooc.infer(model, latents, memory_limit=check_limit)
    report.check(f"contents at {8 * checked}", _apart(found, expected))
    ooc.release(model)
    del found, expected
    latents = _drawn((1, 4, small, small), dtype)
    theirs(report, f"PyTorch, {8 * small} pixels", model, latents)
    _release(report)
    given = _drawn((1, 4, large, large), dtype)
    pixels = script.allocate_pinned((1, 3, 8 * large, 8 * large), dtype)
    run = functools.partial(ooc.infer, model, given, out=pixels, memory_limit=limit)
    ours(report, f"ours, {8 * large} pixels", run, limit)
    ooc.release(model)
    measured = report.measurements
    takes = (measured[f"ours, {8 * large} pixels"], measured[f"PyTorch, {8 * small} pixels"])
    ratio = takes[0]["seconds"]["median"] / takes[1]["seconds"]["median"] / (large / small) ** 2
    report.claim("seconds a pixel, ours / PyTorch's", ratio)
    if report.arguments.whole:
        expected = theirs(report, f"PyTorch, {8 * large} pixels", model, given)
        if expected is not None:
            report.check(f"contents at {8 * large}", _apart(torch.as_tensor(pixels), expected))
    else:
        is_finite = bool(np.isfinite(np.asarray(pixels)).all())
        report.check(f"contents at {8 * large}, finite", {"ok": is_finite})


def windows(report: script.Report) -> None:
    """What windows make of a volume beside the whole of it: seams, seconds and memory.

    The network is trained for some steps on patches, as such networks are. `WholeImageInferer`
    calls `infer`, as is done here.
    """
    sites, window, limit = (320, 320, 192), 96, "1GiB"
    steps, patch = report.arguments.steps, 96
    if report.quick:
        sites, window, limit, steps, patch = (32, 32, 16), 16, "8MiB", 2, 16
    volume, truth = synthetic(sites)
    model = _on_card(report, _trained(report, volume, truth, steps, patch), torch.float32)
    found, volume = script.allocate_pinned((1, 3, *sites), "float32"), _pinned(volume)
    run = functools.partial(ooc.infer, model, volume, out=found, memory_limit=limit)
    ours(report, "ours", run, limit)
    ooc.release(model)
    truth = truth.to(_place(report))
    whole = theirs(report, "PyTorch, whole", model, volume)
    report.check("contents", _apart(torch.as_tensor(found), whole))
    expected = whole.softmax(1)
    report.measure("wrong: whole", _wrong(whole, truth))
    pictures = {"volume": _slice_of(volume), "whole": _slice_of(expected[:, 1:2])}
    for is_gaussian, overlap in itertools.product((False, True), (0.25, 0.5)):
        name = f"windows of {window}, {'gaussian' if is_gaussian else 'constant'}, {overlap:g}"
        way = functools.partial(
            windowed, model, window=window, overlap=overlap, is_gaussian=is_gaussian
        )
        scores = theirs(report, f"PyTorch, {name}", way, volume)
        away = (scores.softmax(1) - expected).abs().amax(1, keepdim=True)
        changed = (scores.argmax(1) != expected.argmax(1)).double().mean()
        seams = {"mean": float(away.mean()), "most": float(away.max()), "labels": float(changed)}
        report.measure(f"seams: {name}", seams)
        report.measure(f"wrong: {name}", _wrong(scores, truth))
        if overlap == 0.25:
            pictures[name] = _slice_of(away)
        del scores, away
        _release(report)
    report.measure("pictures", pictures, spoken="to be drawn")


def synthetic(sites: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A noisy volume of three tissues, and which one is where; one is told by what is around it."""
    generator = torch.Generator().manual_seed(2)

    def smooth(coarse: int) -> torch.Tensor:
        few = torch.randn(1, 1, *(extent // coarse + 2 for extent in sites), generator=generator)
        return functional.interpolate(few, size=sites, mode="trilinear", align_corners=False)

    wide, fine = smooth(16), smooth(8)
    truth = torch.where(fine[0] > 0.3, torch.where(wide[0] > 0, 2, 1), 0)
    bright = (truth > 0).float()[None] + 0.5 * wide  # 1 and 2 are alike but for a wide shade
    return bright + 0.7 * torch.randn(bright.shape, generator=generator), truth


def _trained(
    report: script.Report, volume: torch.Tensor, truth: torch.Tensor, steps: int, patch: int
) -> nn.Module:
    """A network after some steps on patches; of weights as they are drawn scores say nothing."""
    model = _volume_unet(3).to(_place(report))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    random = np.random.default_rng(3)
    loss = torch.zeros(())
    for _ in range(steps):
        corner = [random.integers(0, extent - patch + 1) for extent in volume.shape[2:]]
        part: tuple[Any, ...] = (..., *(slice(at, at + patch) for at in corner))
        image, target = volume[part].to(_place(report)), truth[part].to(_place(report))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(image), target)
        loss.backward()
        optimizer.step()
    report.measure("loss after training", float(loss.detach()))
    return model


def _wrong(scores: torch.Tensor, truth: torch.Tensor) -> float:
    return float((scores.argmax(1) != truth).double().mean())


def _slice_of(values: torch.Tensor) -> dict[str, Any]:
    """A slice through the middle, in 255 steps from the least to the most: packed, as text."""
    plane = values[0, 0, :, :, values.shape[-1] // 2].float().cpu()
    least, most = float(plane.min()), float(plane.max())
    steps = ((plane - least) / max(most - least, 1e-30) * 255).round().to(torch.uint8).numpy()
    packed = b64encode(zlib.compress(steps.tobytes(), 9)).decode()
    return {"least": least, "most": most, "shape": list(plane.shape), "bytes": packed}


# The command line ---------------------------------------------------------------------------------

CASES = {"seismic": seismic, "labels": labels, "decoder": decoder, "windows": windows}


def body(report: script.Report) -> None:
    (case,) = report.arguments.case
    report.file = f"{NAME}_{case}"
    more: dict[str, Any] = {"allow_tf32": True}
    if not report.quick:  # by a machine that is named, plans would not follow what is measured
        host = networks.host_limit(report.arguments.device)
        more |= {"host_memory_limit": host, "machine": None}
    with script.no_stored_engines(), ooc_cudnn.settings(**more), precision(torch, tf32=True):
        CASES[case](report)
    release_device(report.arguments.device)
    _release(report)


def _several(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", nargs="+", choices=CASES, default=[*CASES], help="by default all")


def options(parser: argparse.ArgumentParser) -> None:
    _several(parser)
    parser.add_argument("--seconds", type=float, default=80.0, help="of a case, repeats included")
    parser.add_argument("--steps", type=int, default=400, help="of training, before windows")
    parser.add_argument("--whole", action="store_true",
                        help="let PyTorch decode all pixels, too, where that fits")  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    several = argparse.ArgumentParser(add_help=False)
    _several(several)
    asked, others = several.parse_known_args(words)
    return max(
        script.run(NAME, body, __doc__, [*others, "--case", case], more=options)
        for case in asked.case
    )


if __name__ == "__main__":
    sys.exit(main())
