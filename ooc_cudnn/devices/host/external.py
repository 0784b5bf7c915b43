"""External functions, called on the host's arrays."""

from __future__ import annotations

from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.operations.external.calls import ExternalLaunch


def outside(operation: ExternalLaunch, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Hand the arrays over."""
    operation.run(inputs, output)


RUNNERS: dict[type, Runner] = {ExternalLaunch: outside}
