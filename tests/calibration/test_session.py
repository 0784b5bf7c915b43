"""What a calibration keeps of what it measured, and how host memory is gone through."""

import numpy as np

from ooc_cudnn.calibration.session import Measurement, Session
from ooc_cudnn.devices.measuring import HostMemory, Timing


def test_no_part_of_host_memory_is_taken_again_before_all_others():
    memory = HostMemory(np.ones(100, "f4"))
    starts = [memory.next(4 * 30).ctypes.data - memory.array.ctypes.data for _ in range(5)]
    assert starts == [0, 120, 240, 0, 120]
    assert memory.round == 1
    assert memory.next(4 * 100).size == 100


def test_samples_are_kept_by_group_and_key(host_device):
    session = Session(host_device, 2**20, quick=True)

    def measure():
        session.record("pointwise/float32", Timing(1.0, 0.1), 2.0, {"taps": 3.0})
        session.record("pointwise/float32", Timing(0.5, 0.3))
        session.record("pointwise/float32", Timing(0.7, 0.2))

    found = session.taken_by(measure)["pointwise/float32"]
    assert session.taken_by(lambda: None) == {}
    assert found.spread == 0.2
    assert found.by_work() == {1.0: 0.6, 2.0: 1.0}
    samples = found.samples()
    assert (samples.work, samples.seconds) == ((2.0, 1.0, 1.0), (1.0, 0.5, 0.7))
    assert samples.features == {"taps": (3.0, 0.0, 0.0)}
    joined = Measurement()
    joined += found
    joined += found
    assert joined.seconds == 2 * found.seconds
