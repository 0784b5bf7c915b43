"""Engines are measured before a call is timed."""

import numpy as np

from ooc_cudnn.bench import tuned as bench_tuned
from ooc_cudnn.bench.tuned import tune_call
from ooc_cudnn.settings import settings

CALL = {
    "x": np.zeros((1, 2, 8, 8), np.float32),
    "w": np.zeros((2, 2, 3, 3), np.float32),
}


def test_a_device_without_engines_has_nothing_to_tune():
    with settings(device="host"):
        found = tune_call("convolution_forward", **CALL)
    assert found == {"reason": found["reason"]}
    assert "engine" in found["reason"]


def test_known_engines_are_not_measured_again_and_time_is_bounded(monkeypatch):
    asked = []
    monkeypatch.setattr(
        bench_tuned, "tune", lambda *given, **more: asked.append((given, more)) or [1]
    )
    found = tune_call("convolution_forward", **CALL)
    assert found["convolutions"] == 1
    ((function,), more) = asked[0]
    assert function == "convolution_forward"
    assert more["x"] is CALL["x"]
    assert not more["effort"].again
    assert more["effort"].seconds == bench_tuned.TUNE_SECONDS
