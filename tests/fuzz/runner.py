"""Run one case, and say everything that is wrong with it."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from function_cases import DTYPES

import ooc_cudnn
import perfmodel
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import DeviceOutOfMemoryError, PlanInfeasibleError
from tests.fuzz.comparing import difference
from tests.fuzz.operands import Operand, on_host

AMPLE = 2**28
MACHINES = {"host": "host", "cuda": "h200"}
#: Warnings that a call may give: of a plan in very many pieces, of a device without calibration.
EXPECTED_WARNINGS = ("pieces by the memory limit", "calibrat")


def run(case, *, rounded_twice=False):
    """Run a case; what is wrong, a line each, and how many calls were made.

    `rounded_twice` allows half types to be rounded before alpha and beta as well as after.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder, ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(
            ooc_cudnn.settings(
                device=case.device, machine=perfmodel.shipped(MACHINES[case.device]),
                progress=False, memory_limit=AMPLE, **case.settings,
            )
        )  # fmt: skip
        made = None
        try:
            made = Run(case, Path(folder), rounded_twice)
            found = made.findings()
        except Exception as error:  # whatever is raised that no rule allows is a finding
            found = [raised(error)]
        for warning in caught:
            if not any(part in str(warning.message) for part in EXPECTED_WARNINGS):
                found.append(f"warns: {warning.category.__name__}: {warning.message}")
        return found, made.calls if made else 0


def raised(error):
    """An exception in one line, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "fuzz" not in f.filename]
    text = str(error).replace("\n", " ")
    return f"raises {type(error).__name__}: {text[:300]} (at {' '.join(where[-3:])})"


class Run:
    """The operands of a case in memory, and its calls."""

    def __init__(self, case, folder, rounded_twice):
        self.calls = 0
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
        limit, found = self.limit()
        if limit is not None:
            first = self.call(limit, found)
            if self.case.again and not found:
                for name in (*self.case.given, *self.problem.updated):
                    self.operands[name].refill()
                second = self.call(limit, found)
                if self.case.settings.get("deterministic"):
                    found += [
                        f"{name} differs in a second, deterministic call"
                        for name in first
                        if first[name].tobytes() != second[name].tobytes()
                    ]
        return found

    def limit(self):
        """The memory limit, and what is wrong with how the least one is told."""
        if self.case.room is None:
            return AMPLE, []
        found = []
        try:
            self.call(1, found)
        except (PlanInfeasibleError, DeviceOutOfMemoryError) as error:
            # The second where no plan is needed: the user's own arrays are beyond the limit.
            least = getattr(error, "smallest_bytes", None)
            if least is None:
                least = error.held_bytes + error.requested_bytes
            found += [
                f"a call without a plan changed {name}"
                for name, operand in self.operands.items()
                if operand.changed(inside=True) or operand.changed(inside=False)
            ]
            data = sum(operand.before.nbytes for operand in self.operands.values())
            return least + int(self.case.room * data), found
        return None, found  # it needs no memory at all

    def call(self, limit, found):
        """Call under a limit, append what is wrong to `found`; the results on the host."""
        case, arena = self.case, self.device.arena
        arena.reset_peak()
        self.calls += 1
        with ExitStack() as stack:
            stack.enter_context(ooc_cudnn.settings(memory_limit=limit))
            recorded = stack.enter_context(ooc_cudnn.profile()) if case.profiled else None
            made = self.invoke()
        if arena.peak_bytes > limit:
            found.append(f"used {arena.peak_bytes} bytes under a limit of {limit}")
        if recorded is not None:
            (done,) = recorded.calls
            if done.peak_device_bytes > limit:
                found.append(f"a peak of {done.peak_device_bytes} under a limit of {limit}")
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
                found.append(f"{name}: {wrong} (limit {limit})")
        for name, operand in self.operands.items():
            if around := operand.changed(inside=False):
                found.append(f"{around} elements around {name} were changed")
            written = name in case.given or name in self.problem.updated
            if not written and (changed := operand.changed(inside=True)):
                found.append(f"{changed} elements of {name} were changed")
        return {name: np.ascontiguousarray(array) for name, array in hosted.items()}

    def invoke(self):
        """The call itself."""
        problem, case = self.problem, self.case
        arrays = {
            name: self.operands[name].view for name in problem.tensors if name in self.operands
        }
        options = dict(problem.options)
        if problem.has_scaling:
            options |= {"alpha": case.alpha, "beta": case.beta}
        if case.given:
            outs = tuple(
                self.operands[n].view if n in case.given else None for n in problem.results
            )
            options["out"] = outs if len(outs) > 1 else outs[0]
        if problem.invoke is not None:
            return problem.invoke(arrays, options)
        options |= {name: arrays.pop(name) for name in problem.keyword}
        return getattr(ooc_cudnn, problem.function)(*arrays.values(), **options)
