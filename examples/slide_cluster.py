"""Label a slide that is larger than a machine: from Zarr through a U-Net to a pyramid of labels.

A synthetic slide is written to Zarr, chunk by chunk; every block of it goes through the network on
some worker; the labels and smaller and smaller copies of them go to Zarr. Whatever is there already
is not made again, so a run that was ended goes on where it was.

    python -m examples.slide_cluster
    python -m examples.slide_cluster --size 65536 --chunk 4096 --folder /data --memory-limit 16GiB
    python -m examples.slide_cluster --size 512 --chunk 128 --workers 0 --folder /tmp/small
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client

import ooc_cudnn
import ooc_cudnn.dask as ooc
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.units import format_seconds

CLASSES = 3
#: Of the smallest level of the pyramid, at most.
SMALLEST_SIDE = 256


def tissue(block_info: Any) -> np.ndarray[Any, Any]:
    """A chunk of the slide: waves of three colours, the same wherever chunks are cut."""
    _, _, rows, columns = block_info[None]["array-location"]
    y, x = np.mgrid[slice(*rows), slice(*columns)].astype("float32")
    waves = [np.sin(x / 37) * np.cos(y / 53), np.sin((x + y) / 91), np.cos(x / 17 - y / 29)]
    return (127.5 + 127.5 * np.stack(waves)[None]).astype("uint8")


def u_net(shape: tuple[int, ...], width: int) -> tuple[ooc_cudnn.Network, Tensor]:
    """A U-Net of three levels on stored images; the likeliest class of each of their sites."""
    net = ooc_cudnn.Network()

    def pair(x: Tensor, channels: int) -> Tensor:
        for _ in range(2):
            x = net.activation(net.convolution(x, channels, window=3, padding=1))
        return x

    x = net.image(net.input("slide", shape, "uint8"), mean=128.0, scale=1 / 128)
    kept = [pair(x, width)]
    for level in (1, 2):
        kept.append(pair(net.pooling(kept[-1], window=2), width * 2**level))
    x = kept.pop()
    for level in (1, 0):
        up = net.transposed_convolution(x, width * 2**level, window=2, stride=2)
        x = pair(net.concatenate([kept.pop(), up]), width * 2**level)
    # found on the card: a label takes a byte, the scores that it is made of several
    return net, net.argmax(net.convolution(x, CLASSES, window=1))


def label(options: argparse.Namespace) -> list[str]:
    """Make what is missing of slide, labels and pyramid; return the paths of the levels."""
    store, side = str(Path(options.folder) / "slide.zarr"), options.size
    grid = da.core.normalize_chunks(
        (1, 3, options.chunk, options.chunk), (1, 3, side, side), dtype="uint8"
    )
    made = da.map_blocks(tissue, chunks=grid, dtype="uint8", meta=np.empty((0,) * 4, "uint8"))
    _written("slide", made, store, "slide")
    slide = da.from_zarr(store, component="slide")
    net, labelled = u_net(slide.shape, options.width)
    labels = ooc.forward(net, labelled, slide=slide)[:, 0]
    levels = ["labels/0"]
    _written("labels", labels, store, levels[0])
    while side > SMALLEST_SIDE:
        finer, side = da.from_zarr(store, component=levels[-1]), -(-side // 2)
        levels.append(f"labels/{len(levels)}")
        coarser = finer[:, ::2, ::2].rechunk((1, options.chunk, options.chunk))
        _written(f"labels, {side} x {side}", coarser, store, levels[-1])
    return levels


def _written(what: str, array: da.Array, store: str, component: str) -> None:
    begin = time.perf_counter()
    ooc.to_zarr(array, store, component=component, resume=True)
    seconds = time.perf_counter() - begin
    print(f"{what}: {array.npartitions} chunks there after {format_seconds(seconds)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, start workers, and label the slide."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=2048, help="rows and columns of the slide")
    parser.add_argument("--chunk", type=int, default=512, help="rows and columns of a chunk")
    parser.add_argument("--width", type=int, default=8, help="channels of the first layer")
    parser.add_argument("--folder", default="slide", help="where the store is, or will be")
    parser.add_argument("--workers", type=int, help="0: this process alone; one a card by default")
    parser.add_argument("--memory-limit", "--limit", help="device memory of each worker: 16GiB")
    parser.add_argument("--device", default="auto", help="auto, cuda or host")
    options = parser.parse_args(arguments)
    for name in ("size", "chunk", "width"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(options, name)}")
    with ExitStack() as stack:
        if options.workers == 0:
            stack.enter_context(dask.config.set(scheduler="synchronous"))
            device = {"device": options.device, "memory_limit": options.memory_limit}
            stack.enter_context(ooc_cudnn.settings(**device))
        else:
            given = {"device": options.device, "memory_limit": options.memory_limit}
            local = stack.enter_context(ooc.cluster(options.workers, **given))
            client = stack.enter_context(Client(local))
            for worker in ooc.workers(client):
                print(f"{worker.address}: {worker.device}, planned for as {worker.machine.name}")
        label(options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
