"""Copies by `copy.copy` and `copy.deepcopy`: TorchDynamo copies attributes alone since 2.13.

Of a list, a dictionary or a number of a derived class it makes an empty one, and it asks no
`__getstate__` and no `__reduce__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase

from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.places import traced_line
from ooc_cudnn.torch.thread_patches import patched_in_this_thread

#: What a class may say of how it is copied.
_OF_COPIES = ("__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__", "__slots__")


def _has_attributes_alone(kind: type) -> bool:
    """True if instances of a class have nothing but attributes, and are copied by these."""
    users = [base for base in kind.__mro__ if base is not object]
    of_python = any(not base.__flags__ & _HEAP for base in users)
    return not of_python and not any(name in vars(base) for base in users for name in _OF_COPIES)


#: The flag of a class that Python code has made.
_HEAP = 1 << 9


@contextmanager
def copies_followed() -> Iterator[None]:
    """Refuse copies that TorchDynamo makes otherwise than Python."""
    if torch.__version__ < "2.13":  # a TorchVersion, which compares so: it refuses them itself
        yield
        return
    import torch._dynamo.polyfills.copy as polyfills

    polyfill: Any = polyfills.reduce_ex_user_defined_object
    in_its_place = polyfill.__torch_dynamo_polyfill__

    def inlined(was: Any, self: Any, function: Any, args: Any, *others: Any, **how: Any) -> Any:
        """Function that TorchDynamo follows in the place of `object.__reduce_ex__`."""
        if getattr(function, "fn", None) is in_its_place:
            kind = args[0].python_type()
            if not _has_attributes_alone(kind):
                raise UnsupportedModelError(
                    f"forward copies a {kind.__name__} by copy.copy or copy.deepcopy, and "
                    "TorchDynamo would copy its attributes alone: call a method of its own, as "
                    f"d.copy(), or make a new one of what is in it\n  {traced_line()}"
                )
        return was(self, function, args, *others, **how)

    with patched_in_this_thread(
        (InstructionTranslatorBase, "inline_user_function_return", inlined)
    ):
        yield
