"""`public`: a public function is declared once; its call, its plan and its help come from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from ooc_cudnn.functions.call import call
from ooc_cudnn.functions.description import Description

#: Every public function that can be planned: what describes its call.
FUNCTIONS: dict[str, Callable[..., Description]] = {}

#: What every function may raise; stands in the docstring of each, before its notes.
RAISES = """\
Raises
------
TypeError, ValueError
    Naming the argument, its value and the rule.
PlanInfeasibleError
    If the memory limit admits no plan, with the smallest that would.
DeviceOutOfMemoryError
    If the driver has less memory than the limit promised.

"""

P = ParamSpec("P")


def public(describe: Callable[P, Description]) -> Callable[P, Any]:
    """Make a public function of what describes its call.

    Its name, signature, defaults and docstring are those of `describe` (with what all raise, unless
    it says that itself). Its body says what is asked for: which arrays, what is built of them, and
    what of that the plan depends on. `plan`, the command line and the tests find it in `FUNCTIONS`.
    """
    FUNCTIONS[describe.__name__] = describe
    text = inspect.getdoc(describe)
    if text and "Raises\n" not in text:  # none under python -OO
        describe.__doc__ = text.replace("Notes\n-----", f"{RAISES}Notes\n-----")

    @wraps(describe)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return call(describe.__name__, describe(*args, **kwargs))

    # A user gets the results, not the description of the call.
    describe.__annotations__["return"] = run.__annotations__["return"] = Any
    return run
