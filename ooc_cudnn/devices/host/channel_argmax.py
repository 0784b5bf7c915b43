"""Labels of sites on the host: boxes of sites, each with all its channels."""

from __future__ import annotations

import numpy as np

from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.devices.host.softmax import boxes_of_sites
from ooc_cudnn.operations.softmax.channel_argmax import ChannelArgmax


def channel_argmax(
    operation: ChannelArgmax, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """y = the first of the largest channels."""
    (x,) = inputs
    for sites in boxes_of_sites(x):
        box = (sites[0], slice(None), *sites[2:])
        found = x[box].argmax(axis=1)[:, None]
        np.copyto(output[sites], found, casting="unsafe")


RUNNERS: dict[type, Runner] = {ChannelArgmax: channel_argmax}
