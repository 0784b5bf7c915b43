"""Run one case, and say everything that is wrong with it."""

from __future__ import annotations

import gc
import importlib
import inspect
import re
import tempfile
import traceback
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import numpy as np

import ooc_cudnn
import perfmodel
from ooc_cudnn.devices import get_device
from ooc_cudnn.engines.workload import Effort
from ooc_cudnn.errors import DeviceOutOfMemoryError, PlanInfeasibleError
from ooc_cudnn.functions.tune.tune import NothingToTuneError, tune
from tests.fuzz.comparing import difference
from tests.fuzz.faults import FAULTS, spoiled
from tests.fuzz.operands import BITS, Operand, on_host
from tests.support.function_cases import DTYPES

# The module, not the function of the same name.
prepared_calls = importlib.import_module("ooc_cudnn.functions.call.call_cache")

AMPLE = 2**28
MACHINES = {"host": "host", "cuda": "h200"}
#: A call in more pieces takes seconds, of which nothing new is learnt: it gets more room.
MOST_PIECES = 1500
OF_MANY_PIECES = ".*pieces by the memory limit"
#: For engines that take long to build there is no time.
EFFORT, NO_TIME = Effort(seconds=2.0, compiled=False), ".*not measured in the time there was"


def run(case, *, rounded_twice=False, tuned=False):
    """Run a case; what is wrong, a line each, and how many calls were made.

    `rounded_twice` allows half types to be rounded before alpha and beta as well as after. A call
    that is to be `tuned` runs with the engines that are the fastest.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder, ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        warnings.filterwarnings("error", OF_MANY_PIECES)
        stack.enter_context(patch.object(prepared_calls, "MANY_PIECES", MOST_PIECES))
        machine = perfmodel.shipped(MACHINES[case.device])
        settings = {"machine": machine, "progress": False, "memory_limit": AMPLE}
        settings |= case.settings
        stack.enter_context(ooc_cudnn.settings(device=case.device, **settings))
        arena = get_device(case.device).arena
        made, before = None, arena.array_bytes
        gc.disable()  # what is freed counts at once: no cycle may keep an array
        try:
            made = Run(case, Path(folder), rounded_twice, tuned)
            found = made.findings()
        except Exception as error:  # whatever is raised that no rule allows is a finding
            found = [raised(error)]
        calls, made = made.calls if made else 0, None
        if arena.array_bytes > before and not found:
            found = [f"{arena.array_bytes - before} bytes of arrays are kept {kept_by()}"]
        gc.enable()
        for warning in caught:
            if "calibrat" not in str(warning.message):  # there is no model of this machine
                found.append(f"warns: {warning.category.__name__}: {warning.message}")
        return found, calls


def kept_by():
    """What keeps the arrays of a call that has ended: the frames and exceptions among garbage."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    names = {
        each.f_code.co_qualname if isinstance(each, FrameType) else repr(each)[:120]
        for each in gc.garbage
        if isinstance(each, FrameType | BaseException)
    }
    gc.garbage.clear()
    return f"after the call by cycles; frames and exceptions in them: {sorted(names)}"


def raised(error):
    """An exception in one line, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [
        f"{Path(f.filename).name}:{f.lineno}" for f in frames if "tests/fuzz" not in f.filename
    ]
    text = str(error).replace("\n", " ")
    return f"raises {type(error).__name__}: {text[:300]} (at {' '.join(where[-3:])})"


class Run:
    """The operands of a case in memory, and its calls."""

    def __init__(self, case, folder, rounded_twice, tuned):
        self.calls, self.tuned = 0, tuned
        self.case, self.problem = case, case.problem
        self.device = get_device(case.device)
        self.values, self.old = case.values(), case.old()
        self.operands = {
            name: Operand(
                name, {**self.values, **self.old}[name], case.layouts[name], place, folder,
                case.device,
            )
            for name, place in case.places.items()
        }  # fmt: skip
        self.expected = self.problem.finished(
            self.values,
            self.old,
            case.alpha,
            case.beta,
            self.tf32,
            case.special,
            rounded_twice=rounded_twice,
        )

    @property
    def tf32(self):
        settings, problem = self.case.settings, self.problem
        allowed = settings.get("allow_tf32", True) and self.case.device != "host"
        return allowed and problem.uses_tf32 and problem.dtype == "float32"

    def findings(self):
        """What is wrong, a line each."""
        if self.case.fault:
            return self.refused()
        found = []
        limit, first = self.within_limits(found)
        if found or not self.case.again:
            return found
        for name in (*self.case.given, *self.problem.updated):
            self.operands[name].refill()
        self.tuned = False  # another engine may be the fastest the next time, with other bits
        second = self.call(limit, found)
        if self.case.settings.get("deterministic"):
            found += [
                f"{name} differs in a second, deterministic call ({told})"
                for name in first
                if (told := differing(first[name], second[name]))
            ]
        return found

    def refused(self):
        """What is wrong with how a call that is not legal is refused."""
        made = spoiled(self.case.fault, self.problem, *self.arguments())
        if made is None:
            return []
        kind = FAULTS[self.case.fault]
        self.calls += 1
        try:
            self.invoke(*made)
        except kind as error:
            return self.touched() if str(error) else [f"{kind.__name__} says nothing"]
        return [f"{self.case.fault}: no {kind.__name__} is raised", *self.touched()]

    def touched(self):
        """Operands and results that a call without success has changed."""
        return [
            f"a call that failed changed {name}"
            for name, operand in self.operands.items()
            if operand.changed(inside=True) or operand.changed(inside=False)
        ]

    def within_limits(self, found):
        """Call under the limit that is drawn; (that limit, the results on the host).

        The least is told by the error that a limit of one byte raises, and must work. Of several
        calls in a row each tells the least for itself.
        """
        room, data = self.case.room, sum(each.before.nbytes for each in self.operands.values())
        limit, refusals = (AMPLE, 0) if room is None else (1, 0)
        while True:
            try:
                return limit, self.call(limit, found)
            except UserWarning as warning:
                if not re.match(OF_MANY_PIECES, str(warning)):
                    raise
                limit += data // 8 + 1024
            except (PlanInfeasibleError, DeviceOutOfMemoryError) as error:
                refusals += 1
                if room is None or refusals > (1 if self.problem.most_calls == 1 else 40):
                    raise
                if self.problem.most_calls == 1:
                    found += self.touched()
                limit = least_told(error) + int(room * data)

    def call(self, limit, found):
        """Call under a limit, append what is wrong to `found`; the results on the host."""
        case, arena = self.case, self.device.arena
        arena.reset_peak()
        self.calls += 1
        with ExitStack() as stack:
            stack.enter_context(ooc_cudnn.settings(memory_limit=limit))
            if self.tuned:
                self.tune(*self.arguments())
            recorded = stack.enter_context(ooc_cudnn.profile()) if case.profiled else None
            made = self.invoke(*self.arguments())
        for what, nbytes in (("used", arena.peak_bytes), ("holds", arena.held_bytes)):
            if nbytes > limit:
                found.append(f"{what} {nbytes} bytes under a limit of {limit}")
        if recorded is not None:
            found += [
                f"a peak of {done.peak_device_bytes} bytes under a limit of {limit}"
                for done in recorded.calls
                if done.peak_device_bytes > limit
            ]
        made = made if isinstance(made, tuple) else (made,) if self.problem.results else ()
        results = dict(zip(self.problem.results, made, strict=True))
        hosted = {}
        for name, result in results.items():
            dtype = DTYPES[self.problem.results[name][1]]
            if name in case.given:
                operand = self.operands[name]
                if result is not operand.view:
                    found.append(f"{name} is not the array that was given as out")
                hosted[name] = operand.content()[operand.index]
            else:
                hosted[name] = on_host(result, dtype)
        hosted |= {n: self.operands[n].content()[self.operands[n].index]
                   for n in self.problem.updated}  # fmt: skip
        for name, array in hosted.items():
            wrong = difference(self.expected[name], array, exact_special=self.problem.exact_special)
            if wrong:
                found.append(f"{name}: {wrong} (limit {limit}, call {self.calls})")
        for name, operand in self.operands.items():
            if around := operand.changed(inside=False):
                found.append(f"{around} elements around {name} were changed")
            written = name in case.given or name in self.problem.updated
            if not written and (changed := operand.changed(inside=True)):
                found.append(f"{changed} elements of {name} were changed")
        return {name: np.ascontiguousarray(array) for name, array in hosted.items()}

    def arguments(self):
        """Arrays and options of the call."""
        problem, case = self.problem, self.case
        arrays = {name: self.operands[name].view for name in problem.tensors if name in case.places}
        options = dict(problem.options)
        if problem.has_scaling:
            options |= {"alpha": case.alpha, "beta": case.beta}
        if case.given:
            outs = tuple(
                self.operands[n].view if n in case.given else None for n in problem.results
            )
            options["out"] = outs if len(outs) > 1 else outs[0]
            if case.seed % 2 and not case.fault:
                options.pop(problem.shape_option, None)
        return arrays, options

    def tune(self, arrays, options):
        """Measure the engines of the call, if it is one call and has any."""
        problem = self.problem
        if problem.invoke is not None:
            return
        options |= {name: arrays.pop(name) for name in problem.keyword}
        signature = inspect.signature(getattr(ooc_cudnn, problem.function))
        arguments = signature.bind(*arrays.values(), **options).arguments
        with suppress(NothingToTuneError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", NO_TIME)
            tune(problem.function, **arguments, effort=EFFORT)

    def invoke(self, arrays, options):
        """The call itself."""
        if self.problem.invoke is not None:
            return self.problem.invoke(arrays, options)
        options |= {name: arrays.pop(name) for name in self.problem.keyword}
        return getattr(ooc_cudnn, self.problem.function)(*arrays.values(), **options)


def differing(first, second):
    """How two results differ, bit for bit; nothing if they do not."""
    bits = BITS[first.dtype.itemsize]
    differ = first.view(bits) != second.view(bits)
    if not differ.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(differ)[0])
    return f"{int(differ.sum())} of {differ.size}, first at {at}: {first[at]!r}, {second[at]!r}"


def least_told(error):
    """The least limit that an error names."""
    if isinstance(error, PlanInfeasibleError):
        return error.smallest_bytes
    # Where no plan is needed: the user's own arrays are beyond the limit.
    return error.held_bytes + error.requested_bytes
