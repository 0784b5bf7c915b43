"""Forward passes of the networks of `benchmarks.layouts`, in any sequence of layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.layout_cases import Operation
from benchmarks.layout_rates import JUDGED_BATCHES, TOLERANCE, Rates
from benchmarks.layout_ways import ORDERS, Run
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.pricing.layouts import Rule, Step, cheapest, throughout

#: Steps of a network that only leave a map in NCHW.
LEFT = ("flatten", "result")


class Forward:
    """A network's forward pass: operations, bias and ReLU, and a result that is left in NCHW.

    So is what linear layers read: they are convolutions of one site.
    """

    def __init__(self, rates: Rates, operations: Sequence[Operation]) -> None:
        self.rates, self.operations = rates, operations
        self.steps: list[Step] = []
        shape, last = operations[0].x_shape, operations[-1]
        for at, operation in enumerate(operations):
            if operation.x_shape != shape:
                self.steps.append(self._left("flatten", shape, operation.dtype))
            self.steps.append(rates.step(str(at), operation, relu=True))
            shape = operation.output_shape
        self.steps.append(self._left("result", shape, last.dtype))
        ways = rates.ways
        self.x = ways.tensor(operations[0].x_shape, "NCHW", last.dtype, fill=True)
        self.parameters = [ways.operands(each, "NCHW", self.x) for each in operations]

    def _left(self, name: str, shape: tuple[int, ...], dtype: str) -> Step:
        return Step(name, {"NCHW": 0.0}, self.rates.entering(shape, dtype))

    def sequence(self, layout_of: Callable[[Operation], str]) -> tuple[str, ...]:
        """A layout for each step, by those of the operations."""
        free = iter(self.operations)
        return tuple("NCHW" if step.name in LEFT else layout_of(next(free)) for step in self.steps)

    def by_rule(self, rule: Rule) -> tuple[str, ...]:
        """Pooling is in CHWN, convolutions as the rule says where they can be."""

        def layout_of(operation: Operation) -> str:
            if not isinstance(operation, Convolution):
                return "CHWN"
            n, c = operation.x_shape[:2]
            asked = rule.layout(images=n, channels=c)
            return asked if self.rates.kept(operation, asked) else "NCHW"

        return self.sequence(layout_of)

    def runs(self, layouts: Sequence[str]) -> tuple[list[Run], Any]:
        """The launches in these layouts, and the result."""
        ways, made, now = self.rates.ways, list[Run](), self.x
        left = iter(zip(self.operations, self.parameters, strict=True))
        for step, layout in zip(self.steps, layouts, strict=True):
            moving, now = ways.brought(now, layout)
            made += moving
            if step.name in LEFT:
                now = now.flatten(1)[:, :, None, None] if step.name == "flatten" else now
                continue
            operation, given = next(left)
            y = ways.tensor(operation.output_shape, layout, operation.dtype)
            on = given._replace(x=now, y=y)
            if isinstance(operation, Convolution) and self.rates.is_fused(operation, layout):
                made.append(ways.fused(operation, on))
            else:
                choice = next(iter(self.rates.kept(operation, layout)))
                made.append(ways.by(operation, layout, on, choice))
                if isinstance(operation, Convolution):
                    made.append(ways.bias_relu(on))
            now = y
        return made, now


def network(
    rates: Rates, name: str, operations: Sequence[Operation], rule: Rule, precision: str
) -> dict[str, Any]:
    """Forward passes of a network: chosen, by the rule, and one layout throughout."""
    forward = Forward(rates, operations)
    path, uniform = cheapest(forward.steps, "NCHW"), throughout(forward.steps, "NCHW")
    ours = cheapest([step.only(ORDERS) for step in forward.steps], "NCHW")
    sequences = {"chosen": path.layouts, "library": ours.layouts, "rule": forward.by_rule(rule)}
    for layout in uniform:
        sequences[layout] = forward.sequence(dict.fromkeys(operations, layout).__getitem__)
    ways, results = {}, {}
    for each, layouts in sequences.items():
        ways[each], results[each] = forward.runs(layouts)
        for run in ways[each]:
            run()
    rates.report.synchronize()
    expected = results["NCHW"]
    most = float(expected.abs().max())
    for each, found in results.items():
        error = float((found - expected).abs().max()) / most
        ok = error <= 4 * TOLERANCE[precision]
        rates.report.check(f"{name} {precision}, {each}: contents", {"ok": ok, "error": error})
    took = rates.timer.medians(ways, 2 if rates.report.quick else JUDGED_BATCHES)
    best = min(took[layout] for layout in uniform)
    return {
        "layouts": {each: list(layouts) for each, layouts in sequences.items()},
        "predicted": {"chosen": path.seconds, **uniform},
        "took": took,
        "over the best throughout": took["chosen"] / best,
    }
