"""`public`: a public function is declared once; its call, its plan and its help come from there.

The way of every call, one direction: operands -> chain -> plan -> schedule -> executor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.operands import array_ref
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceOutOfMemoryError
from ooc_cudnn.functions.call.arguments import check_scaling
from ooc_cudnn.functions.call.bind import bind
from ooc_cudnn.functions.call.call_cache import prepare, recall_call
from ooc_cudnn.functions.call.run import run
from ooc_cudnn.functions.call.spec import Description
from ooc_cudnn.keywords import explaining
from ooc_cudnn.memory.limit import forget_limits
from ooc_cudnn.settings import current

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

    described = explaining(describe)

    @wraps(describe)
    def called(*args: P.args, **kwargs: P.kwargs) -> Any:
        check_scaling(kwargs)
        return call(describe.__name__, described(*args, **kwargs))

    # A user gets the results, not the description of the call.
    describe.__annotations__["return"] = called.__annotations__["return"] = Any
    return called


def call(function: str, description: Description) -> Any:
    """Run a function on its operands and return its results, written to `out` if that is given."""
    settings = current()
    device = get_device(settings.device)
    bound = bind(function, description, array_ref, device)
    key = bound.key(settings)
    with device.arena.lock:
        prepared = recall_call(key, device, settings) or prepare(key, bound, device, settings)
        # From here on Ctrl-C is heard between two pieces, and where the run waits.
        with interrupts.defer_signals():
            try:
                run(prepared, bound, device, settings)
            except DeviceOutOfMemoryError:
                # The driver has less than the limit promised. Nothing has been copied yet.
                device.release_caches()
                forget_limits()
                try:
                    run(prepared, bound, device, settings)
                except DeviceOutOfMemoryError:
                    prepared = prepare(key, bound, device, settings, share=0.5)
                    run(prepared, bound, device, settings)
    return bound.returned(prepared.chain.lead, device)
