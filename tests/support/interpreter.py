"""Phases run plainly: one after the other, each whole, on host arrays, by the host's runners.

It shares nothing with what plans, schedules and executes, but for the calls.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ooc_cudnn.devices.host.device import RUNNERS, WORKSPACE
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.tensor import numpy_dtype

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
    """Run one phase, whole: what it launches, one after the other."""
    for operand, (shape, dtype, _) in phase.call.operands.items():
        bound = arrays[phase.binds[operand]]
        assert (bound.shape, bound.dtype.name) == (shape, dtype), (phase.name, operand)
    bound = {operand: arrays[name] for operand, name in phase.binds.items()}
    for result in phase.call.results:  # cut into pieces, it would read what it has written
        shared = {result}
        call = phase.call.call if isinstance(phase.call, SubCall) else phase.call
        if call.may_be_in_place:  # each element, or site, by itself
            shared |= {n for n, name in phase.binds.items() if name == phase.binds[result]}
        others = [array for operand, array in bound.items() if operand not in shared]
        assert not any(map(partial(np.shares_memory, bound[result]), others)), phase.name
    run_call(phase.call, bound)


@np.errstate(all="ignore")
def run_call(call, arrays):
    """Run a call as one piece a sweep, by the host device's runners, on packed copies."""
    slots, blocks = {}, {}
    for sweep in range(call.sweeps):
        piece = call.whole_piece(sweep)
        regions = {name: call.region(name, piece) for name in call.operands}
        parts = {
            name: arrays[name][tuple(slice(*each) for each in region)]
            for name, region in regions.items()
            if region is not None
        }
        for name, part in parts.items():
            if name not in slots or slots[name].shape != part.shape:
                is_read = name in call.loaded
                slots[name] = part.copy() if is_read else _filled(part.shape, part.dtype)
        orders = dict.fromkeys(call.operands, "channels_first")
        launches, buffers = call.launches(piece, layout="channels_first", orders=orders)
        views = dict(slots)
        for name, buffer in buffers.items():
            if name not in call.operands:
                views[name] = _view(name, buffer, blocks)
        for operation, inputs, output in launches:
            scratch = np.empty(WORKSPACE.get(type(operation), lambda _: 0)(operation), np.uint8)
            taken = tuple(views[name] if name else None for name in inputs)
            RUNNERS[type(operation)](operation, taken, views[output], scratch)
        for name in call.results:
            if name in parts:
                parts[name][...] = slots[name]


def _view(name, buffer, blocks):
    """A buffer, in a block that it may share, and that later sweeps may find as it is."""
    nbytes = buffer.nbytes
    block = blocks.get(buffer.block or name)
    if block is None or block.size < nbytes:
        block = blocks[buffer.block or name] = np.full(nbytes, 0xFF, np.uint8)
    whole = block[:nbytes].view(numpy_dtype(buffer.dtype))
    strides = [stride * whole.itemsize for stride in buffer.strides]
    return np.ndarray(buffer.shape, whole.dtype, block, buffer.offset_bytes, strides)


def _garbage(tensor):
    """What memory holds before somebody writes it: nothing that may count."""
    return _filled(tensor.shape, numpy_dtype(tensor.dtype))


def _filled(shape, dtype):
    made = np.empty(shape, dtype)
    made[...] = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else np.nan
    return made
