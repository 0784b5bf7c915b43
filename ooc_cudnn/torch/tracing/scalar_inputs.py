"""Scalar inputs of a graph: counters of forward, and flags that hang on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_SYMBOLIC = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
#: What to do about an index that depends on data.
BY_INDEX = (
    "An index may be one: q[:, t], q[:, (t + torch.arange(n)) % k] = v; for q[:, t:t + n] write "
    "q.narrow(1, t, n)"
)
#: What is said of a number that nobody knows before the call; its line comes behind.
BY_DATA = (
    "a number that depends on data (item(), tolist()) is used in forward: keep it a tensor. "
    f"{BY_INDEX}. One of NumPy's is a tensor, too: make it a number of Python outside of "
    "forward, float(a), or take Python's own function, math.prod(shape) for np.prod\n  "
)


@dataclass(frozen=True, eq=False)
class Number:
    """A number that a graph returns: an expression of those that it is given.

    Attributes
    ----------
    kind : type
        int, float or bool.
    expression : sympy.Expr or sympy relation
    places : mapping
        Of each of its symbols, where in what the graph is given it stands.
    """

    kind: type
    expression: Any
    places: Mapping[Any, int]

    def of(self, given: Sequence[Any]) -> int | float | bool:
        """Return its value in a call."""
        put = {symbol: given[at] for symbol, at in self.places.items()}
        made: int | float | bool = self.kind(self.expression.xreplace(put))
        return made


class Numbers:
    """The numbers that a graph is given."""

    def __init__(self, given: Sequence[Any]) -> None:
        kinds: Any = tuple(_SYMBOLIC)
        self._places = {
            each.node.expr: at for at, each in enumerate(given) if isinstance(each, kinds)
        }

    def known(self, number: Any) -> Any:
        """A number, or what it is made of in each call."""
        kind = _SYMBOLIC.get(type(number))
        if kind is None:
            return number
        expression = number.node.expr
        if not expression.free_symbols <= self._places.keys():
            return specialize(number)
        return Number(kind, expression, {s: self._places[s] for s in expression.free_symbols})


def specialize(number: Any) -> int | float | bool:
    """A symbolic number as the constant that it is now: guards compare it from then on."""
    kind = _SYMBOLIC.get(type(number))
    made: int | float | bool = number if kind is None else kind(number)
    return made


def hint_of(number: Any) -> int | float | bool:
    """The value that a number has in this call; guards do not compare it."""
    made: int | float | bool = number.node.hint if type(number) in _SYMBOLIC else number
    return made


def only_counts(node: Any) -> bool:
    """True if nothing but other numbers is made of what a node of a graph is."""
    return all(
        user.op == "output"
        or (not _is_of_tensors(user.meta.get("example_value")) and only_counts(user))
        for user in node.users
    )


def _is_of_tensors(example: Any) -> bool:
    return not isinstance(example, (*_SYMBOLIC, int, float))


def is_unknown(number: Any) -> bool:
    """True if it is a number that hangs on data."""
    is_symbol = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return is_symbol and not number.node.has_hint()
