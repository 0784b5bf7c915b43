"""What the door for PyTorch costs beside the computing: capturing a model, and each later call.

Beside it stands what `torch.compile` takes to trace the same model, and to hand on a known call,
with a backend that does nothing. A call here hands its tensors to what would run them, which
returns at once: what is left is Python, Dynamo's guards, and what guards do not see.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

import ooc_cudnn
import ooc_cudnn.torch as ooc
from examples import models
from ooc_cudnn.bench import script
from ooc_cudnn.bench.timing import Timing, interleave
from ooc_cudnn.torch.lowering.precision import strict_float32
from ooc_cudnn.torch.runtime.ready_model import ReadyModel

NAME = "door_cost"
LIMIT = "8GiB"
#: Seconds that guards and dispatch of a known call may take, and how many times as long as
#: `torch.compile` capturing may.
DISPATCH, CAPTURE = 300e-6, 1.5
#: Of the largest element, in float32.
TOLERANCE = 1e-4


def nothing(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """Of a backend: what returns as many tensors as the graph, and computes none."""
    (outputs,) = next(node for node in module.graph.nodes if node.op == "output").args

    def run(*tensors: Any) -> tuple[Any, ...]:
        return (tensors[0],) * len(outputs)

    return run


def handed_on(self: ReadyModel, tensors: Sequence[Any], **_: Any) -> list[Any]:
    """In place of running a captured model."""
    return [tensors[0]] * len(self.graph.outputs)


def known_calls(report: script.Report, model: nn.Module, x: torch.Tensor) -> dict[str, Timing]:
    """Seconds of a call that is known."""
    compiled = torch.compile(copy.deepcopy(model), backend=nothing, fullgraph=True)
    limited = ooc.limit(copy.deepcopy(model), LIMIT)
    calls = {"dispatch": partial(limited, x), "dispatch, torch.compile": partial(compiled, x)}
    with mock.patch.object(ReadyModel, "__call__", handed_on):
        return interleave(
            calls, report.synchronize, repeats=20 if report.quick else 2000, warmup=10
        )


def captures(report: script.Report, model: nn.Module, x: torch.Tensor) -> dict[str, Timing]:
    """Seconds of a first call, without planning."""
    samples: dict[str, list[float]] = {"capture": [], "capture, torch.compile": []}
    with mock.patch.object(ReadyModel, "__call__", handed_on):
        for repeat in range(-1, 1 if report.quick else 5):  # the first imports and is not counted
            torch._dynamo.reset()
            limited = ooc.limit(copy.deepcopy(model), LIMIT)
            compiled = torch.compile(copy.deepcopy(model), backend=nothing, fullgraph=True)
            for name, call in zip(samples, (limited, compiled), strict=True):
                gc.collect()  # else one of the two has to collect what the other has left
                begin = time.perf_counter()
                call(x)
                if repeat >= 0:
                    samples[name].append(time.perf_counter() - begin)
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def contents(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Whether what is dispatched here computes what PyTorch does, both in strict float32."""
    limited = ooc.limit(copy.deepcopy(model).eval(), LIMIT)
    with torch.no_grad(), ooc_cudnn.settings(allow_tf32=False), strict_float32():
        expected = copy.deepcopy(model).eval()(x)
        result = [limited(x).to(expected.device) for _ in range(2)][-1]
    error = float((result - expected).abs().max() / expected.abs().max())
    return {"ok": error <= TOLERANCE, "error": error}


def body(report: script.Report) -> None:
    torch.manual_seed(0)
    place = "cuda" if report.arguments.cuda else "cpu"
    small = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model = (small if report.quick else models.ResNet50(10, 1.0)).to(place).train()
    x = torch.randn((2, 3, 64, 64), device=place)
    report.check("contents", contents(model, x))
    medians = {}
    for name, timing in (known_calls(report, model, x) | captures(report, model, x)).items():
        report.measure(name, timing)
        medians[name] = timing.median
    report.claim("seconds of a known call", medians["dispatch"], "<=", DISPATCH, "s")
    known, capture = (
        medians[name] / medians[f"{name}, torch.compile"] for name in ("dispatch", "capture")
    )
    report.claim("known call / torch.compile's", known)
    report.claim("capture / torch.compile's", capture, "<=", CAPTURE)


main = partial(script.run, NAME, body, __doc__, needs_card=False)

if __name__ == "__main__":
    sys.exit(main())
