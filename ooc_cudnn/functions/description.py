"""What a public function is asked to do, before it is known whether to run or only to plan it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ooc_cudnn.operations.splittable import Splittable
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec

#: Makes what is to be cut from the operands' specs and the settings; raises on bad arguments.
Build = Callable[[Mapping[str, TensorSpec], Settings], Splittable]


class Description(NamedTuple):
    """What a public function is asked to do, before it is known whether to run or only to plan it.

    Attributes
    ----------
    function : str
        The public function's name.
    build : callable
        Makes what is to be cut.
    arrays : mapping
        The operands in the call's order, without the results: arrays, or specs to plan.
    parameters : hashable
        All arguments that shape the call: with the specs and the settings, what a plan depends on.
    beta : float
        Whether the results' old content counts; then `out` is required.
    results : tuple of str
        Names of the results that the function returns.
    updated : mapping
        Results that the user gave beside `out`, to be changed in place: running averages. What is
        to be cut is made knowing their specs, too.
    beside : mapping
        Arrays that are not read, but whose shape and dtype count: y, where x tells the slope.
    scaled : tuple of str, optional
        The results that alpha and beta are for; all of them when left out.
    """

    function: str
    build: Build
    arrays: Mapping[str, Any]
    parameters: Hashable
    beta: float = 0.0
    results: tuple[str, ...] = ("y",)
    updated: Mapping[str, Any] = MappingProxyType({})
    scaled: tuple[str, ...] | None = None
    beside: Mapping[str, Any] = MappingProxyType({})


def given_results(description: Description, out: Any) -> dict[str, Any]:
    """Return the results that the user gave, by name.

    Raises
    ------
    TypeError, ValueError
        If `out` is no tuple for a function of several results, or there is nothing for beta to
        scale.
    """
    names = description.results
    outs: tuple[Any, ...] = (None,) * len(names)
    if len(names) == 1:
        outs = (out,)
    elif isinstance(out, tuple | list) and len(out) == len(names):
        outs = tuple(out)
    elif out is not None and description.scaled == names[:1]:
        outs = (out, *outs[1:])  # of one tensor and vectors beside it, the tensor
    elif out is not None:
        raise TypeError(f"out must be a tuple ({', '.join(names)}), with None where none is given")
    given = {name: array for name, array in zip(names, outs, strict=True) if array is not None}
    scaled = description.scaled or names
    if description.beta and not all(name in given for name in scaled):
        missing = "out" if len(names) == 1 else f"out for {' and '.join(scaled)}"
        raise ValueError(f"beta={description.beta} needs {missing}, whose content it scales")
    return {**given, **description.updated}
