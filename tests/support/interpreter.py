"""Phases run plainly: one after the other, each whole, on host arrays through the host device.

It shares nothing with the engine that plans and runs steps, but for the calls.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ooc_cudnn.tensor import numpy_dtype
from tests.support.forced import Forced

LASTING = ("input", "parameter", "running")


def run_step(step, given, seeds=None):
    """Run a step; return every tensor's array by name.

    Parameters
    ----------
    given : mapping
        Arrays of inputs, parameters and running statistics; the last are changed in place.
    seeds : mapping, optional
        Gradients of the step's outputs; ones when left out.
    """
    arrays = {}
    for name, tensor in step.tensors.items():
        if not tensor.of:
            arrays[name] = given[name] if tensor.kind in LASTING else _garbage(tensor)
            assert arrays[name].shape == tensor.shape, name
    for name, tensor in step.tensors.items():
        if tensor.of:
            base, region = step.place(name)
            part = arrays[base][tuple(slice(*each) for each in region)]
            arrays[name] = part.reshape(tensor.shape)
            assert np.shares_memory(arrays[name], arrays[base]), name
    for output, name in step.seeds.items():
        arrays[name][...] = 1 if seeds is None else seeds[output]
    for phase in step.phases:
        run_phase(phase, arrays)
    return arrays


def run_phase(phase, arrays):
    """Run one phase, whole."""
    for operand, (shape, dtype, _) in phase.call.operands.items():
        bound = arrays[phase.binds[operand]]
        assert (bound.shape, bound.dtype.name) == (shape, dtype), (phase.name, operand)
    bound = {operand: arrays[name] for operand, name in phase.binds.items()}
    for result in phase.call.results:  # cut into pieces, it would read what it has written
        others = [array for operand, array in bound.items() if operand != result]
        assert not any(map(partial(np.shares_memory, bound[result]), others)), phase.name
    Forced(phase.call, bound).run(phase.call.extents)


def _garbage(tensor):
    """What memory holds before somebody writes it: nothing that may count."""
    made = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
    made[...] = np.nan if tensor.is_floating else np.iinfo(made.dtype).max
    return made
