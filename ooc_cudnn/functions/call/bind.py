"""A described call and its arrays as they lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from ooc_cudnn.arrays.making import array_on
from ooc_cudnn.arrays.operands import ArrayRef, check_apart, check_writable
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES
from ooc_cudnn.functions.call.plan import PlannedCall, Target, plan_call
from ooc_cudnn.functions.call.spec import Description
from ooc_cudnn.memory.files import reserve_file
from ooc_cudnn.memory.loans import Lease
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import dtype_name

#: Makes an `ArrayRef` of an array, on a device; its `name` and whether it is `written` are told.
Take = Callable[..., ArrayRef]


class Bound(NamedTuple):
    """A described call and its arrays; `results` gains those that are made for it.

    `given` are the results as the user gave them, `beside` arrays that are not read.
    """

    function: str
    description: Description
    operands: Mapping[str, ArrayRef]
    given: Mapping[str, Any]
    results: dict[str, ArrayRef]
    beside: Mapping[str, ArrayRef]

    def key(self, settings: Settings) -> Hashable:
        """Key of the plan; by their text, 1, 1.0 and True, which are equal, differ."""
        found = [settings, self.function, repr(self.description.parameters), *self.results]
        for each in (*self.operands.values(), *self.results.values(), *self.beside.values()):
            found += each.spec, each.pointer % WIDEST_ACCESS_BYTES
        return tuple(found)

    def build(self, settings: Settings) -> TiledCall:
        """Make what is to be cut.

        Raises
        ------
        TypeError, ValueError
            On bad arguments.
        """
        updated = {name: self.results[name] for name in self.description.updated}
        arrays = {**self.operands, **self.beside, **updated}
        return self.description.build({n: each.spec for n, each in arrays.items()}, settings)

    def plan(self, splittable: TiledCall, target: Target, share: float = 1.0) -> PlannedCall:
        """Plan it, with a `share` of the memory that is available."""
        known = {**self.operands, **self.results}
        return plan_call(
            self.function,
            splittable,
            {name: each.spec for name, each in self.operands.items()},
            {name: each.spec for name, each in self.results.items()},
            target,
            aligned={n: each.pointer % WIDEST_ACCESS_BYTES == 0 for n, each in known.items()},
            share=share,
        )

    def check_results(self) -> None:
        """Raise before any copy starts if a result that was given cannot be written."""
        said = {self.description.said(name): self.results[name] for name in self.given}
        check_results(self.operands, said)

    def returned(self, lead: str, device: Device) -> Any:
        """The results as the user gets them: what was given, or new ones of the lead's framework.

        `lead` names the operand whose framework that is: x, or dy.
        """
        restore = (self.operands.get(lead) or self.results[lead]).restore
        returned = []
        for name in self.description.results:
            if name in self.given:
                returned.append(self.given[name])
            else:
                array, spec, *_ = self.results[name]
                if isinstance(array, Lease):
                    array = array_on(device, array, spec)
                returned.append(restore(array) if restore else array)
        return tuple(returned) if len(returned) > 1 else returned[0]


def check_results(operands: Mapping[str, ArrayRef], results: Mapping[str, ArrayRef]) -> None:
    """Raise if a result cannot be written, or shares memory with an operand or another result."""
    for name, result in results.items():
        check_writable(result, name=name)
        others = {other: each for other, each in results.items() if other != name}
        check_apart({**operands, **others}, result, name=name)
        if result.spec.placement == "disk":
            reserve_file(result.array, name=name)


def bind(function: str, description: Description, take: Take, device: Device | None) -> Bound:
    """Take the arrays of a described call.

    Raises
    ------
    TypeError, ValueError
        If one is no array, or not one that is supported; for `out`, as `given_results`.
    """
    operands = {name: take(array, device, name=name) for name, array in description.arrays.items()}
    outs = description.given_results()
    results = {
        name: take(array, device, name=description.said(name), written=True)
        for name, array in outs.items()
    }
    beside = {name: take(array, device, name=name) for name, array in description.beside.items()}
    for name, operand in (*operands.items(), *beside.items()):
        dtype_name(operand.spec.dtype, name=f"{name}: dtype", integers=name in description.integers)
    return Bound(function, description, operands, outs, results, beside)
