"""Description of a call to a public function, before it is run or only planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec

#: Specs of a call's operands, by name.
Specs = Mapping[str, TensorSpec]
#: Makes what is to be cut from the operands' specs and the settings; raises on bad arguments.
Build = Callable[[Specs, Settings], TiledCall]


class Description(NamedTuple):
    """Description of a call to a public function.

    Attributes
    ----------
    build : callable
        Makes what is to be cut.
    arrays : mapping
        The operands in the call's order, without the results: arrays, or specs to plan.
    parameters : tuple
        All arguments that shape the call: with the specs and the settings, what a plan depends on.
    out : array, or tuple of arrays and None
        For each of the results; a single one is not in a tuple.
    beta : float
        Whether the results' old content counts; then `out` is required.
    results : tuple of str
        Names of the results that the function returns.
    scaled : tuple of str, optional
        The results that alpha and beta are for; all of them when left out.
    updated : mapping
        Results that the user gave beside `out`, to be changed in place: running averages. What is
        to be cut is made knowing their specs, too.
    beside : mapping
        Arrays that are not read, but whose shape and dtype count: y, where x tells the slope.
    integers : tuple of str
        The operands that may hold integers: labels, images.
    """

    build: Build
    arrays: Mapping[str, Any]
    parameters: tuple[Any, ...]
    out: Any = None
    beta: float = 0.0
    results: tuple[str, ...] = ("y",)
    scaled: tuple[str, ...] | None = None
    updated: Mapping[str, Any] = MappingProxyType({})
    beside: Mapping[str, Any] = MappingProxyType({})
    integers: tuple[str, ...] = ()

    def given_results(self) -> dict[str, Any]:
        """Return the results that the user gave, by name.

        Raises
        ------
        TypeError, ValueError
            If `out` is no tuple for a function of several results, or there is nothing for beta to
            scale.
        """
        names, out = self.results, self.out
        outs: tuple[Any, ...] = (None,) * len(names)
        if len(names) == 1:
            outs = (out,)
        elif isinstance(out, tuple | list) and len(out) == len(names):
            outs = tuple(out)
        elif out is not None and self.scaled == names[:1]:
            outs = (out, *outs[1:])  # of one tensor and vectors beside it, the tensor
        elif out is not None:
            raise TypeError(
                f"out must be a tuple ({', '.join(names)}), with None where none is given"
            )
        arrays = {name: array for name, array in zip(names, outs, strict=True) if array is not None}
        scaled = self.scaled or names
        if self.beta and not all(name in arrays for name in scaled):
            missing = "out" if len(names) == 1 else f"out for {' and '.join(scaled)}"
            raise ValueError(f"beta={self.beta} needs {missing}, whose content it scales")
        return {**arrays, **self.updated}

    def said(self, result: str) -> str:
        """The user's name of a result: `out`, or its own where it changes in place."""
        if result in self.updated:
            return result
        return "out" if len(self.results) == 1 else f"out ({result})"
