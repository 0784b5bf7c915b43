"""Runs one operation by a module of kernel runners, in the workspace it asks for and no more."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.runners import WORKSPACE
from tests.support.card import cupy
from tests.support.device_operand import GUARD_BYTES


def run(module, operation, inputs, output, beside=()):
    """Run it twice: the second time must give the same bits; the workspace's guard must stand.

    `beside` are inputs that are written, too; with one that is also read it runs once.
    """
    needed = WORKSPACE.get(type(operation), lambda _: 0)(operation)
    memory = cupy.full(needed + GUARD_BYTES, 0xFF, np.uint8)  # NaN to whoever reads it unwritten
    views = tuple(operand and operand.view for operand in inputs)
    written = (output, *beside)
    in_place = len({id(operand) for operand in written}) < sum(
        any(operand is each for each in written) for operand in (*inputs, output)
    )
    results = []
    for _ in range(1 if in_place else 2):
        module.RUNNERS[type(operation)](
            operation, Call(views, output.view, (memory.data.ptr, needed))
        )
        results.append(output.result())
    assert bool((memory[needed:] == 0xFF).all()), "wrote past the workspace"
    for operand in inputs:
        if operand is not None and not any(operand is each for each in written):
            operand.result()  # what is around it stands
            now = cupy.asnumpy(operand.device)
            assert np.array_equal(now, operand.memory.view(np.uint8)), "wrote an input"
    first = np.ascontiguousarray(results[0]).view(np.uint8)
    assert np.array_equal(first, np.ascontiguousarray(results[-1]).view(np.uint8)), "not repeatable"
    return results[0]
