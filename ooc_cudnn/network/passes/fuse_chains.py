"""Fusing: chains that follow each other become one, and what lies between is never whole.

A rewrite of a step: a map that one chain makes and one other alone reads, a convolution's that goes
into its ReLU, stays on the device piece by piece.
"""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.operations.chain.chain import Chain


def fuse_chains(step: Step) -> Step:
    """Rewrite a step with chains as long as can be."""
    uses = step.uses
    wanted = {step.base(name) for name in (*step.outputs, *step.gradients.values())}
    phases: list[Phase | None] = list(step.phases)
    for index, later in enumerate(step.phases):
        if not isinstance(later.call, Chain):
            continue
        between = later.binds["x"]
        used = uses[step.base(between)].phases
        earlier = phases[used[0]]
        if (
            len(used) == 2
            and used[1] == index
            and earlier is not None
            and isinstance(earlier.call, Chain)
            and earlier.is_backward == later.is_backward
            and earlier.binds["y"] == between == step.base(between)
            and between not in wanted
            and (earlier.call.alpha, earlier.call.beta) == (1, 0)
            and earlier.call.row_axis == later.call.row_axis
            # read once, whether as itself or as a view of it
            and [step.base(name) for name in later.binds.values()].count(between) == 1
        ):
            phases[used[0]], phases[index] = None, _joined(earlier, earlier.call, later, later.call)
    return replace(step, phases=tuple(phase for phase in phases if phase is not None))


def _joined(earlier: Phase, first: Chain, later: Phase, second: Chain) -> Phase:
    call = replace(second, operations=(*first.operations, *second.operations))
    binds = {"x": earlier.binds["x"], "y": later.binds["y"]}
    parameters = [earlier.binds[name] for names in first.parameter_names for name in names] + [
        later.binds[name] for names in second.parameter_names for name in names
    ]
    names = [name for names in call.parameter_names for name in names]
    return replace(later, call=call, binds={**binds, **dict(zip(names, parameters, strict=True))},
                   name=f"{earlier.name}, {later.name}", node=earlier.node)  # fmt: skip
