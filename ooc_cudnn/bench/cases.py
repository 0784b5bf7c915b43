"""The suite's cases."""

from __future__ import annotations

from ooc_cudnn.bench.case import Case

CASES: dict[str, Case] = {}
