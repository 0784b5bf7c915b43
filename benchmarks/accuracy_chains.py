"""Chains that are bound by computing: the same in every run, beside the calls that are drawn.

What is drawn is mostly bound by the link. These are VGG-16's feature layers, whose windows are all
3x3 and whose channels go from few to many: many images and one, and its narrow and its wide layers.
"""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy_draw import Drawn, Operand
from benchmarks.accuracy_sketches import convolution_flops

#: Output channels of VGG-16's feature layers; 0 is a pooling.
LAYERS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
#: Index of the first one: none is drawn with so high a number.
FIRST = 10_000
#: Output channels (0 is a pooling), and the shape of x, on a card.
CHAINS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    (LAYERS, (1024, 3, 224, 224)),
    (LAYERS, (1, 3, 8192, 8192)),
    ((64,) * 12, (64, 64, 224, 224)),
    ((512,) * 6, (256, 512, 28, 28)),
)
#: Elsewhere channels and sites are so many times fewer, and images.
FEWER = {"cuda": (1, 1, 1), "host": (16, 4, 64), "tiny": (32, 7, 512)}
#: Memory limit, over the bytes of all operands.
SHARE = 20.0


def chains(scale: str) -> tuple[Drawn, ...]:
    """The chains, as large as a device takes them."""
    channels, sites, images = FEWER[scale]
    drawn = []
    for index, (layers, (n, c_x, *extents)) in enumerate(CHAINS):
        shape = (
            max(n // images, 1),
            max(c_x // channels, 3),
            *(extent // (sites * (sites if n == 1 else 1)) for extent in extents),
        )
        narrow = tuple(layer and max(layer // channels, 3) for layer in layers)
        drawn.append(chain_of(FIRST + index, narrow, shape))
    return tuple(drawn)


def chain_of(index: int, layers: tuple[int, ...], shape: tuple[int, ...]) -> Drawn:
    """Convolutions with bias and ReLU, and poolings, in TF32 on pinned memory."""
    n, channels, *extents = shape
    operands = [Operand("x", shape, "float32", "pinned", "channels_first", "data")]
    operations: list[tuple[str, dict[str, Any]]] = []
    flops = 0.0

    def parameter(name: str, of: tuple[int, ...], fill: str) -> None:
        name = f"operations[{len(operations)}].{name}"
        operands.append(Operand(name, of, "float32", "device", "channels_first", fill))

    for layer in layers:
        if not layer:
            operations.append(("Pooling", {"window": 2}))
            extents = [extent // 2 for extent in extents]
            continue
        w = (layer, channels, 3, 3)
        parameter("w", w, "filters")
        operations.append(("Convolution", {"padding": 1}))
        parameter("b", (layer,), "data")
        operations += [("AddTensor", {}), ("Activation", {"mode": "relu"})]
        flops += n * convolution_flops(w, (layer, *extents), 1)
        channels = layer
    y = (n, channels, *extents)
    operands.append(Operand("y", y, "float32", "pinned", "channels_first", "result"))
    return Drawn(
        seed=0,
        index=index,
        function="chain_forward",
        operands=tuple(operands),
        arguments={},
        operations=tuple(operations),
        allow_tf32=True,
        memory_share=SHARE,
        flops=flops,
    )
