"""How records are written: JSON, with a line for what is read as one thing: a claim, a call."""

from __future__ import annotations

import json
from typing import Any

from ooc_cudnn.bench.environment import plain

#: Down to this depth whatever is longer than a line is laid open; below, what is very long.
OPEN_DEPTH, LINE, LONG_LINE = 2, 120, 4000


def written(value: Any, depth: int = 0) -> str:
    """Return a record as JSON.

    Examples
    --------
    >>> print(written({"samples": list(range(60)), "what": "a" * 60, "seconds": {"median": 1.5}}))
    {
     "samples": [0, 1, 2, ..., 59],
     "what": "aa...a",
     "seconds": {"median": 1.5}
    }
    """
    line = json.dumps(value, default=plain)
    if len(line) <= (LINE if depth < OPEN_DEPTH else LONG_LINE):
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {written(each, depth + 1)}" for key, each in value.items()]
    elif isinstance(value, list | tuple) and not all(
        isinstance(each, int | float) for each in value
    ):
        parts = [written(each, depth + 1) for each in value]
    else:
        return line
    indent = "\n" + " " * depth
    return f"{line[0]}{indent} {f',{indent} '.join(parts)}{indent}{line[-1]}"
