"""Keywords that a function has not: what it calls them, for those who come from elsewhere."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: As PyTorch, Keras, cuDNN and others say it, and as it may be called here.
SYNONYMS = {
    "strides": ("stride",),
    "paddings": ("padding",),
    "pad": ("padding",),
    "pads": ("padding",),
    "dilations": ("dilation",),
    "dilation_rate": ("dilation",),
    "group": ("groups",),
    "kernel_size": ("window",),
    "kernel": ("window",),
    "pool_size": ("window",),
    "filters": ("channels", "w"),
    "out_channels": ("channels",),
    "out_features": ("features",),
    "weight": ("w", "scale"),
    "weights": ("w", "scale"),
    "bias": ("b",),
    "gamma": ("scale",),
    "beta": ("bias",),
    "eps": ("epsilon",),
    "var": ("variance",),
    "running_var": ("running_variance", "variance"),
    "running_mean": ("mean",),
    "momentum": ("exponential_average_factor",),
    "input": ("x",),
    "output": ("out",),
    "limit": ("memory_limit", "memory_limits"),
    "max_memory": ("memory_limit",),
    "reduction": ("reduce",),
}
#: What no keyword of the function does, and what does it.
ELSEWHERE = {
    "bias": "convolution_add_activation_forward(x, w, b, activation='identity') adds one, and "
    "add_tensor(b, y)"
}
#: How like a name must be to one that the function has.
ALIKE = 0.75


def meant(name: str, parameters: Collection[str]) -> str:
    """The parameter that a keyword seems to mean; "" where none does.

    >>> meant("strides", ("x", "stride")), meant("memory_limt", ("memory_limit",))
    ('stride', 'memory_limit')
    >>> meant("colour", ("x", "stride"))
    ''
    """
    known = [each for each in SYNONYMS.get(name, ()) if each in parameters]
    found = known or difflib.get_close_matches(name, parameters, 1, ALIKE)
    return found[0] if found else ""


def explain_keyword(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Explain the first keyword that a function has not; "" if it has all."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return ""
    wrong = next((name for name in given if name not in parameters), None)
    if wrong is None:
        return ""
    said = f"{function.__name__}() has no argument {wrong!r}"
    match = meant(wrong, parameters.keys() - given.keys() - {"self"})
    if match:
        return f"{said}: it is called {match!r} here"
    more = f": {ELSEWHERE[wrong]}" if wrong in ELSEWHERE and "w" in parameters else ""
    return f"{said}{more}"


def renamed(**new_names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function take keywords by the names that they had before, too.

    >>> @renamed(limits="memory_limits")
    ... def swept(*, memory_limits=()): return memory_limits
    >>> swept(limits=(0.5,))
    (0.5,)
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            given: dict[str, Any] = kwargs
            for old in new_names.keys() & given.keys():
                if new_names[old] in given:
                    raise TypeError(f"{function.__name__}() got {new_names[old]!r} and {old!r}")
                given[new_names[old]] = given.pop(old)
            return function(*args, **kwargs)

        return called

    return decorate


def explaining(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function say what it calls a keyword that it has not. Other calls cost nothing more.

    >>> @explaining
    ... def limited(*, memory_limit=None): ...
    >>> limited(limit="8GiB")
    Traceback (most recent call last):
    ...
    TypeError: limited() has no argument 'limit': it is called 'memory_limit' here
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            said = explain_keyword(function, kwargs)
            if not said:
                raise
            raise TypeError(said) from error

    return called
