"""Questions of forward that no guard of TorchDynamo's compares: asked again at each call.

Whether two names are one object: guards compare each of them with what is like it. And the order of
an `OrderedDict`, which `move_to_end` changes: guards compare that of the dictionary beneath.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from ooc_cudnn.torch.capture.guards.comparisons import Compared
from ooc_cudnn.torch.places import source_name

#: What guards compare by value, or by what it is.
_COMPARED = (type(None), bool, int, float, complex, str, bytes, type, enum.Enum, ModuleType)


class Questions:
    """Expressions of TorchDynamo's names, with what they were when forward was captured.

    Parameters
    ----------
    expressions : sequence of str
        Those of a name that is not there are left out.
    given : mapping
        What names of one call begin with: its arguments.
    lasting : mapping
        What names of all calls begin with, and functions in them.

    Examples
    --------
    >>> asked = Questions(["L['a'] is L['b']", "L['c']"], {"L": {"a": [], "b": []}})
    >>> asked.have_their_answers({"L": {"a": [1], "b": [1]}})
    True
    >>> asked.have_their_answers({"L": dict.fromkeys("ab", [])})
    False
    """

    def __init__(
        self,
        expressions: Sequence[str] = (),
        given: Mapping[str, Any] = MappingProxyType({}),
        lasting: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._lasting = {**lasting, "same_of": _same_of, "order_of": _order_of}
        known = [
            each
            for each in dict.fromkeys(expressions)
            if _value(each, given, self._lasting) is not _Nothing
        ]
        text = "".join(f"{each}, " for each in known)
        self._code = compile(f"({text})", "<what is asked again>", "eval") if known else None
        self._answers = self._asked(given)

    def have_their_answers(self, given: Mapping[str, Any]) -> bool:
        """True if all is as it was, of what a call is given."""
        return self._code is None or bool(self._asked(given) == self._answers)

    def _asked(self, given: Mapping[str, Any]) -> Any:
        return None if self._code is None else _value(self._code, given, self._lasting)


class _Nothing:
    """The value of a name that is not there."""


def _value(expression: Any, given: Mapping[str, Any], lasting: dict[str, Any]) -> Any:
    try:
        return eval(expression, lasting, given)
    except (AttributeError, LookupError, NameError, TypeError):
        return _Nothing


def _same_of(*objects: Any) -> list[int]:
    """Return for each of them the place of the first one that is the same."""
    first = dict[int, int]()
    return [first.setdefault(id(each), at) for at, each in enumerate(objects)]


def _order_of(held: Any) -> list[Any]:
    """The keys of a dictionary in their order; of objects, which may be tensors, the `id`."""
    return [each if isinstance(each, _COMPARED) else id(each) for each in held]


def look_at_questions(compared: Compared) -> Questions:
    """Look at what is to be asked again, as TorchDynamo ends its trace."""
    output = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output
    functions: dict[str, Any] = torch._dynamo.guards._get_closure_vars()
    given, lasting = {"L": output.local_scope}, {**functions, "G": output.global_scope}
    asked, alike = list[str](), dict[type, list[str]]()
    for name in compared.names():
        held = _value(name, given, lasting)
        if not isinstance(held, _COMPARED):
            alike.setdefault(type(held), []).append(name)
    # two that are not of one type are one only where a guard of types does not hold
    asked += [f"same_of({', '.join(names)})" for names in alike.values() if len(names) > 1]
    for name in filter(None, map(source_name, output.guard_on_key_order)):
        held = _value(name, given, lasting)
        if isinstance(held, OrderedDict) and len(held) > 1:
            asked.append(f"order_of({name})")
    return Questions(asked, given, lasting)
