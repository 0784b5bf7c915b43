"""Cache of a program's steps as they were bound in the run before.

A step that computes takes the host as long to bind as to issue. Of a network's hundreds all work in
the block, on parameters that stay, and on inputs: few of them touch what has moved since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.pipeline.instructions import Instruction
from ooc_cudnn.pipeline.program import Move, Program, Task
from ooc_cudnn.pipeline.views import Source, drop_unit_axes, region_of

Action = Callable[[Any], None]

#: Of longer programs no step is kept: theirs are large, and what it would hold is not.
MOST_STEPS = 1 << 14


class BoundSteps:
    """Tensors' addresses and steps bound to them, kept from run to run.

    It holds addresses alone: arrays of the host are let go of when a run is over, and steps that
    touch one are bound anew.

    Parameters
    ----------
    program : Program
    steps : sequence of Instruction
        Of its schedule.
    """

    def __init__(self, program: Program, steps: Sequence[Instruction]) -> None:
        bindings = program.bindings
        self._bindings, self._base = bindings, -1
        self._device: Device | None = None
        self.sources: dict[str, Source] = {}
        #: What is handed in, and its views, each behind what it is a view of.
        self._views: dict[str, list[str]] = {
            name: []
            for name, binding in bindings.items()
            if binding.offset is None and not binding.of
        }
        roots = {name: name for name in self._views}
        for name, binding in bindings.items():
            if binding.of:
                roots[name] = roots[binding.of]
                self._views[roots[name]].append(name)
        self._on_host = [name for name in self._views if bindings[name].spec.placement != "device"]
        self._actions: list[Action | None] = [None] * len(steps)
        self._lasts: list[bool] = [False] * len(steps)
        self._touching = defaultdict[str, list[int]](list)
        if len(steps) > MOST_STEPS:
            return
        for index, step in enumerate(steps):
            touched = {roots[name] for name in _outside(program, step) if name in roots}
            self._lasts[index] = touched.isdisjoint(self._on_host)
            for root in touched:
                self._touching[root].append(index)

    def begin(self, device: Device, arrays: Mapping[str, Source], base: int) -> None:
        """Take in where everything is: what is handed in, and the address of the block."""
        if device is not self._device or base != self._base:
            self._device, self._base, self.sources = device, base, {}
            self._actions = [None] * len(self._actions)
            for name, (spec, offset, *_) in self._bindings.items():
                if offset is not None:
                    address = base + offset
                    self.sources[name] = DeviceView(address, spec.dtype, spec.shape, spec.strides)
        for root, views in self._views.items():
            array, before = arrays[root], self.sources.get(root)
            if isinstance(array, DeviceView) and (before is array or before == array):
                continue
            for index in self._touching[root]:
                self._actions[index] = None
            self.sources[root] = array
            for name in views:
                spec, _, of, region, _ = self._bindings[name]
                self.sources[name] = drop_unit_axes(region_of(self.sources[of], region), spec)

    def action(self, index: int, make: Callable[[], Action]) -> Action:
        """Return a step's action: as it was bound before, or as it is bound now."""
        action = self._actions[index]
        if action is None:
            action = make()
            if self._lasts[index]:
                self._actions[index] = action
        return action

    def end(self) -> None:
        """Let go of the arrays of the host."""
        for root in self._on_host:
            for name in (root, *self._views[root]):
                self.sources.pop(name, None)


def _outside(program: Program, step: Instruction) -> Sequence[str]:
    """The tensors of a program that a step touches beside its task's own rings."""
    item = program.items[step.item]
    if isinstance(item, Move):
        return item.ends
    assert isinstance(item, Task)
    return [item.binds[place.operand] for place in step.places if place.slot < 0 or step.copies]
