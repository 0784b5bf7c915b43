"""From what was measured to a machine model."""

import pytest

from ooc_cudnn.calibration.fit_model import latencies
from ooc_cudnn.calibration.session import Measurement, Sample
from ooc_cudnn.devices.measuring import Timing
from perfmodel import Line
from perfmodel.staging import STAGED_BYTES

MIB = 2**20


def measured(seconds):
    """Samples: bytes and seconds."""
    return Measurement(Sample(work, Timing(spent, 0.0)) for work, spent in seconds)


def test_a_single_copy_of_a_file_is_late_by_what_its_line_does_not_say():
    line, late = Line(1e-10, 1e-4), Line(2e-10, 5e-4)
    alone = [(size, line.seconds(size) + late.seconds(size)) for size in (MIB, STAGED_BYTES)]
    # of larger ones, several threads stage parts, and little shows in what they take
    alone += [(16 * MIB, line.seconds(16 * MIB)), (64 * MIB, 1.0)]
    copies = {way: {"disk": line} for way in ("copy_in", "copy_out")}
    found = latencies({"alone/copy_out/disk": measured(alone)}, copies)
    assert set(found) == {"copy_out/disk"}
    line = found["copy_out/disk"]
    assert (line.alpha, line.beta) == pytest.approx((late.alpha, late.beta), rel=1e-3)


def test_of_several_measurements_of_staging_the_median_counts_and_others_delay_files_too():
    line = Line(1e-10, 0.0)
    found = latencies(
        {
            "latency/copy_in/pageable": measured(
                [(0.0, 1e-3), (MIB, 2e-3), (0.0, 5e-3), (MIB, 3e-3), (0.0, 2e-3), (MIB, 9e-3)]
            ),
            "alone/copy_in/disk": measured([(MIB, line.seconds(MIB) + 4e-3)]),
            "others": measured([(1.0, 2e-4), (1.0, 1e-4), (1.0, 7e-4)]),
        },
        {"copy_in": {"disk": line}, "copy_out": {}},
    )
    plain, disk = found["copy_in/pageable"], found["copy_in/disk"]
    assert (plain.beta, plain.seconds(MIB)) == pytest.approx((2e-3, 3e-3), rel=1e-3)
    assert (disk.alpha, disk.beta) == pytest.approx((0.0, 4e-3), rel=1e-3)
    assert plain.terms == disk.terms == {"others": 2e-4}
