"""Calls that are not legal: each must raise ValueError or TypeError, and change nothing."""

from __future__ import annotations

import numpy as np

from tests.support.function_cases import DTYPES

#: What is done to a legal call, and the error that must follow.
FAULTS = {
    "beta without out": ValueError,
    "out of another shape": ValueError,
    "out of another dtype": TypeError,
    "out is read-only": ValueError,
    "out is broadcast": ValueError,
    "out is an operand": ValueError,
    "an operand of another dtype": TypeError,
    "an operand of no extent": ValueError,
    "alpha is infinite": ValueError,
}


def spoiled(fault, problem, arrays, options):
    """The arrays and options of a call with that fault; None if it does not apply."""
    arrays, options = dict(arrays), dict(options)
    single = len(problem.results) == 1 and problem.has_scaling
    shape, dtype = next(iter(problem.results.values()), ((1,), "float32"))
    if fault == "beta without out":
        if not problem.has_scaling:
            return None
        options["beta"] = 0.5
        options.pop("out", None)
    elif fault == "alpha is infinite":
        options["alpha"] = float("inf")
    elif fault.startswith("out"):
        if not single:
            return None
        out = np.zeros(shape, DTYPES[dtype])
        if fault == "out of another shape":
            out = np.zeros((*shape[:-1], shape[-1] + 1), out.dtype)
        elif fault == "out of another dtype":
            out = np.zeros(shape, "f4" if out.dtype == "f8" else "f8")
        elif fault == "out is read-only":
            out.flags.writeable = False
        elif fault == "out is broadcast":
            if max(shape) == 1:
                return None
            out = np.lib.stride_tricks.as_strided(out, shape, (0,) * len(shape))
        else:
            read = {"dy": arrays["dy"]} if "dy" in arrays else arrays  # not all need y and x
            alike = [a for a in read.values() if tuple(a.shape) == shape]
            alike = [a for a in alike if str(a.dtype).removeprefix("torch.") == dtype]
            if not alike:
                return None
            out = alike[0]
        options["out"] = out
    else:
        name = next(iter(arrays))
        shape = tuple(arrays[name].shape)
        if fault == "an operand of no extent":
            arrays[name] = np.zeros((0, *shape[1:]), DTYPES[problem.dtype])
        else:
            arrays[name] = np.zeros(shape, "i4")
    return arrays, options
