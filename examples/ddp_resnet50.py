"""Train ResNet-50 on several cards, each under a memory limit, by DistributedDataParallel.

Each process (a rank) has a card and images of its own, drawn once; DistributedDataParallel adds up
gradients, as ever. Without a card the ranks compute on the host, by gloo.

    torchrun --nproc-per-node 2 -m examples.ddp_resnet50 --batch 768 --memory-limit 16GiB
    torchrun --nproc-per-node 2 -m examples.ddp_resnet50 --batch 768 --memory-limit 16GiB --statistics global
    torchrun --nproc-per-node 2 -m examples.ddp_resnet50 --blocks 1,1 --width 8 --batch 4 --image 32 --memory-limit 4MiB
    python -m examples.ddp_resnet50 --batch 768 --memory-limit 16GiB

"""  # noqa: E501  # commands are one line each

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import ooc_cudnn
import ooc_cudnn.torch as ooc
from ooc_cudnn.units import format_bytes, format_seconds

CLASSES = 1000
#: Of a bottleneck's channels, what comes out.
EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, the second of which strides."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = EXPANSION * width
        self.layers = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            straight = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(straight, nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnet(blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64) -> nn.Module:
    """ResNet-50, or one of other depth and width."""
    stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
    layers = [stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(before, width * 2**stage, stride))
            before = EXPANSION * width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def train(options: argparse.Namespace, device: torch.device) -> list[float]:
    """Take steps; return the mean over ranks of the loss of each. Rank 0 prints what they took."""
    ranks = distributed.get_world_size() if distributed.is_initialized() else 1
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    torch.manual_seed(0)
    model = resnet(options.blocks, options.width).to(device)
    if options.memory_limit != "none":
        ooc.limit(model, options.memory_limit, statistics=options.statistics)
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=options.rate, momentum=0.9)
    torch.manual_seed(1 + rank)
    images = torch.randn(options.batch, 3, options.image, options.image, device=device)
    labels = torch.randint(CLASSES, (options.batch,), device=device)
    losses, seconds = [], []
    for number in range(1, options.steps + 1):
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(trained(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        if ranks > 1:
            distributed.all_reduce(mean)
        losses.append(mean.item())  # the host waits here for the card
        seconds.append(time.perf_counter() - begin)
        if rank == 0:
            first = " (with capture and planning)" if number == 1 else ""
            print(f"step {number}: loss {losses[-1]:.4f}, {format_seconds(seconds[-1])}{first}")
    if rank == 0:
        rate = ranks * options.batch / median(seconds[1:] or seconds)
        print(f"{ranks} rank{'s' * (ranks > 1)}: {rate:.4g} images a second")
        if options.memory_limit != "none":
            limited: Any = model.forward
            print(f"a plan of {format_bytes(limited.plan.device_bytes)}")
        if options.save:
            torch.save(model.state_dict(), options.save)
    return losses


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, join the other ranks where torchrun has started some, and train."""
    parser = argparse.ArgumentParser(
        prog="examples.ddp_resnet50", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--batch", type=int, default=32, help="images a rank (%(default)s)")
    parser.add_argument("--image", type=int, default=224, help="height and width (%(default)s)")
    parser.add_argument("--blocks", type=_numbers, default="3,4,6,3", help="(%(default)s)")
    parser.add_argument("--width", type=int, default=64, help="of the first layer (%(default)s)")
    parser.add_argument(
        "--memory-limit", "--limit", help='memory of a card: "16GiB"; none: PyTorch alone'
    )
    parser.add_argument("--statistics", default="rank", choices=("rank", "global"))
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--rate", type=float, default=0.01, help="of learning (%(default)s)")
    parser.add_argument("--save", help="where rank 0 writes a checkpoint")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, not {options.steps}")
    on_cards = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if on_cards else torch.device("cpu")
    with ExitStack() as stack:
        if on_cards:
            torch.cuda.set_device(device)
        else:
            stack.enter_context(ooc_cudnn.settings(device="host", machine="host"))
        if "RANK" in os.environ:  # torchrun
            distributed.init_process_group("nccl" if on_cards else "gloo")
            stack.callback(distributed.destroy_process_group)
        train(options, device)
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    raise SystemExit(main())
