"""cuDNN's engines, measured before a call is timed."""

from __future__ import annotations

import time
from typing import Any

from ooc_cudnn.engines.workload import Effort
from ooc_cudnn.functions.tune.tune import NothingToTuneError, tune

#: For how long they are measured.
TUNE_SECONDS = 20.0


def tune_call(function: str, **arguments: Any) -> dict[str, Any]:
    """Measure the engines of a call, as a user does once by `ooc-cudnn tune`; what came of that.

    What is known already is not measured again.
    """
    begin = time.perf_counter()
    effort = Effort(seconds=TUNE_SECONDS, again=False, compiled=False)
    try:
        measurements = tune(function, effort=effort, **arguments)
    except NothingToTuneError as error:
        return {"reason": str(error)}
    return {"seconds": time.perf_counter() - begin, "convolutions": len(measurements)}
