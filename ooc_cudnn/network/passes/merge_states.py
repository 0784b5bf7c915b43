"""Statistics of all of a map from those of its parts: slices of the batch, or bands of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.normalization.batch_two_phase import MergePartsCall


def merge_states(phase: Phase, kind: str, state: Tensor, parts: Sequence[str], of: str) -> Phase:
    """Return the phase that merges states of parts, which copies of a phase make.

    Parameters
    ----------
    phase : Phase
        It makes the state of the whole.
    kind : str
        Of `STATES`: the operand that is the state.
    state : Tensor
        State of the whole.
    parts : sequence of str
        States of the parts, in order.
    of : str
        Name of the parts, for the name of the phase.
    """
    call = MergePartsCall(state.shape[1], kind, len(parts))
    binds = {f"x{at}": part for at, part in enumerate(parts)}
    name = f"{phase.name}, of {of}"
    return replace(phase, name=name, call=call, binds={**binds, "y": state.name})
