"""Numbers of Python that a graph is given: counters of forward, which go up in each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, eq=False)
class Number:
    """A number that a graph returns: an expression of those that it is given.

    Attributes
    ----------
    expression : sympy.Expr
    places : mapping
        Of each of its symbols, where in what the graph is given it stands.
    """

    expression: Any
    places: Mapping[Any, int]

    def of(self, given: Sequence[Any]) -> int | float:
        """What it is in a call."""
        put = {symbol: given[at] for symbol, at in self.places.items()}
        found = self.expression.xreplace(put)
        return int(found) if found.is_integer else float(found)


class Numbers:
    """The numbers that a graph is given."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._places = {
            each.node.expr: at for at, each in enumerate(given) if isinstance(each, _SYMBOLIC)
        }

    def known(self, number: Any) -> Any:
        """A number, or what it is made of in each call."""
        if not isinstance(number, _SYMBOLIC):
            return number
        expression = number.node.expr
        if not expression.free_symbols <= self._places.keys():
            return known(number)
        return Number(expression, {s: self._places[s] for s in expression.free_symbols})


def known(number: Any) -> int | float:
    """A symbolic number as the constant that it is now: guards compare it from then on."""
    return int(number) if isinstance(number, torch.SymInt | int) else float(number)


def only_counts(node: Any) -> bool:
    """Whether nothing but other numbers is made of what a node of a graph is."""
    return all(
        user.op == "output"
        or (not _is_of_tensors(user.meta.get("example_value")) and only_counts(user))
        for user in node.users
    )


def _is_of_tensors(example: Any) -> bool:
    return not isinstance(example, (*_SYMBOLIC, int, float))
