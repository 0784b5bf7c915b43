"""What runs on a simulated device is timed by that device's clock, which is not the host's."""

import pytest

from ooc_cudnn.calibration import files
from ooc_cudnn.devices.measuring import Bench


@pytest.fixture(autouse=True)
def clock_of_the_device(monkeypatch):
    on_host = Bench.seconds_to_rest

    def seconds_to_rest(bench, actions, *, staged):
        if bench.device.kind != "simulated":
            return on_host(bench, actions, staged=staged)
        return max(float(span[-1, 1]) for span in bench.spans(actions, staged=staged).values())

    monkeypatch.setattr(Bench, "seconds_to_rest", seconds_to_rest)


@pytest.fixture(autouse=True)
def files_are_small(monkeypatch):
    """A simulated device copies nothing; of large files tests would wait for the disk."""
    small = tuple(tuple(size // 8 for size in sizes) for sizes in files.GPU_SIZES)
    monkeypatch.setattr(files, "GPU_SIZES", small)
