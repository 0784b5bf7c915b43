"""A rank of `benchmarks.ddp_scale`: trains ResNet-50 under a limit. Rank 0 writes what it took.

Its one argument is a JSON object, `OPTIONS` of `benchmarks.ddp_scale` and where to write.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import ooc_cudnn
import ooc_cudnn.torch as ooc
from examples.ddp_resnet50 import CLASSES, resnet

WARM_UP = 7


def step(model: nn.Module, optimizer: Any, images: Any, labels: Any) -> float:
    """A step; its loss."""
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())  # the host waits here for the card


def train(asked: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Take steps, and check what they made."""
    ranks, rank = distributed.get_world_size(), distributed.get_rank()
    order: Any = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    torch.manual_seed(0)
    model = resnet(tuple(asked.blocks), asked.width).to(device, memory_format=order)
    torch.manual_seed(1 + rank)
    images = torch.randn(asked.batch, 3, asked.image, asked.image, device=device)
    images = images.contiguous(memory_format=order)
    labels = torch.randint(CLASSES, (asked.batch,), device=device)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(copy.deepcopy(model)(images), labels).item()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if asked.limit != "none":
        ooc.limit(model, asked.limit, statistics=asked.statistics)
    # a model alone is not wrapped: that is what one card does without torchrun
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    begin = time.perf_counter()
    loss = step(trained, optimizer, images, labels)
    figures: dict[str, Any] = {"first step, with its plan": time.perf_counter() - begin}
    figures |= {"loss": loss, "expected_loss": expected}
    seconds = []
    for repeat in range(WARM_UP + asked.repeats):
        distributed.barrier()
        begin = time.perf_counter()
        step(trained, optimizer, images, labels)
        if repeat >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
    weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    low, high = weights.clone(), weights.clone()
    distributed.all_reduce(low, distributed.ReduceOp.MIN)
    distributed.all_reduce(high, distributed.ReduceOp.MAX)
    figures |= {"seconds": seconds, "ranks_are_equal": bool(torch.equal(low, high))}
    if device.type == "cuda":
        figures["max_memory_allocated"] = torch.cuda.max_memory_allocated()
    if asked.limit != "none":
        plan = model.forward.plan
        figures |= {"predicted": plan.seconds, "device_bytes": plan.device_bytes}
    return figures


def main() -> None:
    """Join the other ranks, and train."""
    asked = argparse.Namespace(**json.loads(sys.argv[1]))
    on_cards = asked.device == "cuda"
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_cards else torch.device("cpu")
    )
    with ExitStack() as stack:
        if on_cards:
            torch.cuda.set_device(device)
            torch.backends.cuda.matmul.allow_tf32 = True
            stack.enter_context(ooc_cudnn.settings(allow_tf32=True))
        else:
            stack.enter_context(ooc_cudnn.settings(device="host", machine="host"))
        distributed.init_process_group("nccl" if on_cards else "gloo")
        stack.callback(distributed.destroy_process_group)
        figures = train(asked, device)
        if distributed.get_rank() == 0:
            Path(asked.output).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
