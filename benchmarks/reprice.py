"""What the model as it is now predicts for calls that were measured before: no card needed.

`model_accuracy` keeps of every call its problem, its plan, its seconds and the machine model. Here
each is priced again, in the very split that ran, so that a change of the model is judged by all
measurements there are:

    python -m benchmarks.reprice benchmarks/results/model_accuracy_cuda_calls.json ...

Trials do not count: they would need the device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ooc_cudnn
from benchmarks.accuracy_draw import Drawn, Operand
from benchmarks.accuracy_operands import Bound, stored_shape
from benchmarks.common import table
from ooc_cudnn.functions.plan import planned_call
from ooc_cudnn.pipeline.pricing import SplitProblem
from ooc_cudnn.tensor import TensorSpec, packed_strides
from perfmodel import MachineModel, Split

#: Deepest ring that is looked for in what was measured.
DEEPEST = 129


class Repriced(NamedTuple):
    """A measured call, and what is predicted for it then and now, over what it took."""

    index: int
    placement: str
    then: float
    now: float
    description: str


class Described(Bound):
    """A drawn call whose operands are specs."""

    def __init__(self, drawn: Drawn) -> None:
        specs: dict[str, Any] = {operand.name: spec_of(operand) for operand in drawn.operands}
        self.drawn, self.arrays = drawn, specs


def spec_of(operand: Operand) -> TensorSpec:
    """Shape, dtype, placement and strides of an operand."""
    order = "channels_first" if operand.order == "rows_apart" else operand.order
    strides = packed_strides(stored_shape(operand), order)
    return TensorSpec(operand.shape, operand.dtype, operand.placement, strides)


def repriced(record: dict[str, Any]) -> Iterator[Repriced]:
    """Price the calls of a record again; those that are cut into several runs are left out."""
    machine = MachineModel.from_json(record["measurements"]["machine model"])
    for call in record["measurements"]["calls"]:
        seconds = seconds_now(call, machine) if call["parts"] == 1 else None
        if seconds is not None:
            yield Repriced(
                call["drawn"]["index"], call["placement"], call["predicted/measured"],
                seconds / call["seconds"], call["description"],
            )  # fmt: skip


def seconds_now(call: dict[str, Any], machine: MachineModel) -> float | None:
    """Predicted seconds of the split that ran; None where today's plan is of another kind."""
    drawn, ran = Drawn.from_json(call["drawn"]), call["profile"]
    asked = {"machine": machine, "memory_limit": call["memory_limit"]}
    with ooc_cudnn.settings(device="host", allow_tf32=drawn.allow_tf32):
        parts = planned_call(drawn.function, **asked, **Described(drawn).arguments()).parts
    if len(parts) > 1:
        return None
    problem = SplitProblem(parts[0].request, ran["layout"], 0)
    counted = problem.counted(Split(**ran["split"]), tuple(ran["order"]))
    for depth in range(1, DEEPEST):
        for whole in (True, False):
            priced = counted.priced(depth, whole)
            if dict(priced.rings) == ran["rings"]:
                return priced.price.seconds
    return None


def main(argv: list[str] | None = None) -> int:
    """Print errors then and now, and the calls that are furthest off now."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "records", nargs="+", type=Path, help="written by benchmarks.model_accuracy"
    )
    parser.add_argument("--worst", type=int, default=10, help="calls to name (%(default)s)")
    arguments = parser.parse_args(argv)
    rows, found = [], list[Repriced]()
    for path in arguments.records:
        calls = list(repriced(json.loads(path.read_text(encoding="utf-8"))))
        found += calls
        without = [call for call in calls if call.placement != "disk"]
        for label, chosen in (("all", calls), ("no file", without)):
            if chosen:
                errors = [[abs(getattr(c, when) - 1.0) for c in chosen] for when in ("then", "now")]
                figures = [f"{np.percentile(e, q):.3f}" for e in errors for q in (50, 90)]
                rows.append((path.name, label, str(len(chosen)), *figures))
    print(table(("record", "calls", "", "median then", "p90 then", "median now", "p90 now"), rows))
    found.sort(key=lambda call: -abs(call.now - 1.0))
    for call in found[: arguments.worst]:
        print(f"{call.now:.2f} (then {call.then:.2f})  {call.placement:8}  {call.description[:90]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
