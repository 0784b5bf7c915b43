"""VGG-16's feature layers as one chain, against PyTorch in core on the same card.

1024 images of 224x224, and single images of 8192, 16384 and 32768 pixels a side, in TF32, from and
to pinned memory under a limit of 16 GiB. The largest does not fit the card in any framework.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import ooc_cudnn
from ooc_cudnn import operations
from ooc_cudnn.bench import script
from ooc_cudnn.bench.contents import poison, unwritten
from ooc_cudnn.bench.placing import release_device
from ooc_cudnn.bench.timing import Timing, interleave

NAME = "chain_vgg"
#: Output channels of the convolutions; 0 is a pooling.
LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
Weights = list[tuple[Any, Any] | None]


def weights(scale: int) -> Weights:
    """Filters and biases that keep the variance (He et al.); None for a pooling."""
    random, found, c_x = np.random.default_rng(0), list[Any](), 3
    for layer in LAYERS:
        if not layer:
            found.append(None)
            continue
        c_y = layer // scale
        w = random.standard_normal((c_y, c_x, 3, 3)).astype(np.float32)
        w *= np.float32(np.sqrt(2 / (9 * c_x)))
        found.append((w, random.standard_normal(c_y).astype(np.float32) / 8))
        c_x = c_y
    return found


def chain(layers: Sequence[Any]) -> list[Any]:
    made: list[Any] = []
    for layer in layers:
        if layer is None:
            made.append(operations.Pooling(2))
        else:
            w, b = layer
            made += [
                operations.Convolution(w, padding=1),
                operations.AddTensor(b),
                operations.Activation("relu"),
            ]
    return made


def fill(x: np.ndarray[Any, Any]) -> None:
    """Write normal numbers: blocks of one pool, each begun elsewhere in it."""
    pool = np.random.default_rng(1).standard_normal(2**22 + 4096, dtype=np.float32)
    flat = x.reshape(-1)

    def block(start: int) -> None:
        part = flat[start : start + 2**22]
        offset = start // 2**22 * 37 % 4096
        part[...] = pool[offset : offset + len(part)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(block, range(0, len(flat), 2**22)))


class Torch:
    """The same layers in PyTorch, channels-last, in TF32, all on the card."""

    def __init__(self, layers: Sequence[Any]) -> None:
        import torch

        self.torch = torch
        torch.backends.cudnn.allow_tf32 = True
        self.layers = [
            layer
            and (
                torch.from_numpy(layer[0]).cuda().to(memory_format=torch.channels_last),
                torch.from_numpy(layer[1]).cuda(),
            )
            for layer in layers
        ]

    def put(self, x: np.ndarray[Any, Any]) -> Any:
        return self.torch.from_numpy(x).cuda().to(memory_format=self.torch.channels_last)

    def __call__(self, x: Any) -> Any:
        functional = self.torch.nn.functional
        with self.torch.no_grad():
            for layer in self.layers:
                if layer is None:
                    x = functional.max_pool2d(x, 2)
                else:
                    x = functional.conv2d(x, *layer, padding=1).relu_()
        return x

    def release(self) -> None:
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


def body(report: script.Report) -> None:
    quick = report.quick
    layers = weights(16 if quick else 1)
    shapes = {
        "n1024": (2, 3, 64, 64) if quick else (1024, 3, 224, 224),
        "8192": (1, 3, 256, 64) if quick else (1, 3, 8192, 8192),
        "16384": (1, 3, 512, 64) if quick else (1, 3, 16384, 16384),
        "32768": (1, 3, 1024, 64) if quick else (1, 3, 32768, 32768),
    }
    limit: Any = "1MiB" if quick else "16GiB"
    synchronize = report.synchronize
    made = chain([layer and tuple(report.to_device(a) for a in layer) for layer in layers])
    torch = Torch(layers) if report.arguments.cuda else None
    largest = max(int(np.prod(shape)) for shape in shapes.values())
    data = script.pinned((largest,))
    seconds: dict[str, float] = {}

    for name, shape in shapes.items():
        c_y = LAYERS[-2] // (16 if quick else 1)
        y = script.pinned((shape[0], c_y, shape[2] // 32, shape[3] // 32))
        x = data[: int(np.prod(shape))].reshape(shape)
        fill(x)
        poison(y)
        expected = None
        fits = torch is not None and name != "32768"
        if fits:
            found, expected = _in_core(torch, x, name, synchronize)
            report.measure(f"{name}: in core", found)

        def call(x: Any = x, y: Any = y) -> None:
            with ooc_cudnn.settings(memory_limit=limit, allow_tf32=True):
                ooc_cudnn.chain_forward(x, made, out=y)

        found = interleave({name: call}, synchronize, repeats=2 if quick else 3)[name]
        report.measure(f"{name}: seconds", found)
        did, _ = report.profile(name, call, limit)
        check = {"ok": not unwritten(y), "unwritten": unwritten(y)}
        if expected is not None:
            error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
            check |= {"relative_error": error, "ok": check["ok"] and error < 5e-3}
        report.check(f"{name}: contents", check)
        seconds[name] = found.median
        report.predicted(name, did, found.median)
        if fits:
            in_core = report.measurements[f"{name}: in core"]["median"]
            bound = 1.15 if name == "n1024" else 1.25
            title = f"{name}: times the in-core PyTorch time"
            report.claim(title, found.median / in_core, "<=", bound)
        release_device(report.arguments.device)
    ratio = seconds["32768"] / seconds["16384"]
    report.claim("32768: times the 16384 time", ratio, "<=", 4.5)


def _in_core(torch: Torch, x: Any, name: str, synchronize: Any) -> tuple[Timing, Any]:
    """Seconds on the card, and what comes out there."""
    held = [torch.put(x)]
    found = interleave({name: lambda: torch(held[0])}, synchronize, repeats=3)[name]
    y = torch(held.pop()).cpu().numpy()
    torch.release()
    return found, y


main = partial(script.run, NAME, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
