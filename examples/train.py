"""Train a network that ships with the library, on drawn images, under a memory limit.

A step is planned whole and run as one program; gradients come back where parameters are, here as
NumPy arrays, and stochastic gradient descent is one line of NumPy. The batch is the same in every
step, so that the loss falls.

    python -m examples.train vgg16 --batch 512 --memory-limit 8GiB
    python -m examples.train resnet50 --batch 256 --memory-limit 16GiB --policy checkpoint
    python -m examples.train vgg16 --batch 2 --image 32 --memory-limit 40MiB --device host
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

import ooc_cudnn
from ooc_cudnn import networks
from ooc_cudnn.units import format_bytes, format_seconds

NETWORKS = ("vgg16", "resnet50")
CLASSES = 1000


def train(options: argparse.Namespace) -> list[float]:
    """Take steps of descent, and print what each took; return the losses."""
    size = {"batch": options.batch, "image": options.image, "width": options.width}
    net, loss = getattr(networks, options.network)(classes=CLASSES, **size)
    random = np.random.default_rng(0)
    images = random.standard_normal(net.graph.tensors["images"].shape, np.float32)
    labels = random.integers(CLASSES, size=options.batch)
    step = net.training_step(loss, memory_limit=options.memory_limit, policy=options.policy)
    losses = []
    for number in range(1, options.steps + 1):
        with ooc_cudnn.profile() as recorded:
            begin = time.perf_counter()
            losses.append(step(images=images, labels=labels))
            for name, gradient in step.gradients.items():
                net.parameters[name] -= options.rate * gradient
            seconds = time.perf_counter() - begin
        (ran,) = recorded.calls
        print(
            f"step {number}: loss {losses[-1]:.4f}; {format_seconds(seconds)}, of which the "
            f"network {format_seconds(ran.seconds)} ({format_seconds(ran.predicted_seconds)} "
            f"predicted){' and the rest planning' if number == 1 else ''}; "
            f"{format_bytes(ran.bytes_in)} in, {format_bytes(ran.bytes_out)} out"
        )
    print(
        f"at most {format_bytes(ran.peak_device_bytes)} of {format_bytes(ran.plan.memory_limit)} "
        f"on the device; policy {ran.plan.policy}, micro-batches: {ran.plan.micro_batches}"
    )
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, and train."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="examples.train", description=about)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--batch", type=int, default=32, help="images (%(default)s)")
    parser.add_argument("--image", type=int, default=224, help="height and width (%(default)s)")
    parser.add_argument("--width", type=float, default=1.0, help="of all channels: small nets")
    parser.add_argument("--memory-limit", "--limit", help='device memory: bytes, "8GiB", "50%%"')
    parser.add_argument("--policy", default="best", help="keep, remake, offload, ... (%(default)s)")
    parser.add_argument("--device", default="auto", help="cuda, cuda:1 or host; where it works")
    parser.add_argument("--steps", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="of learning (%(default)s)")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, not {options.steps}")
    with ooc_cudnn.settings(device=options.device):
        train(options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
