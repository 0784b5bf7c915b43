"""`benchmarks.networks`: a step is tuned before it is timed."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np

import ooc_cudnn
from benchmarks import networks
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import engines_maker


def test_a_step_is_tuned_and_what_was_found_is_kept(monkeypatch, tmp_path, random):
    net = ooc_cudnn.Network(seed=1)
    h = net.convolution(net.input("images", (2, 3, 8, 8)), 4, window=3, padding=1)
    step = net.training_step(net.mean_squared_error(h, net.input("labels", h.shape)))
    given = {name: random.standard_normal(s, np.float32) for name, s in (
        ("images", (2, 3, 8, 8)), ("labels", h.shape)
    )}  # fmt: skip
    kept, notes = {}, []
    report = SimpleNamespace(
        arguments=SimpleNamespace(tune_seconds=60.0),
        measure=lambda name, value, **more: kept.update({name: value}),
        note=notes.append,
    )
    measure = partial(step.tune, **given)
    networks.tune(report, "without engines", measure)
    assert (kept, len(notes)) == ({}, 1)
    engines_maker(monkeypatch, tmp_path)(FakeEngine(100, 3e-7), FakeEngine(101, 1e-7))
    networks.tune(report, "net", measure)
    tables = json.loads(json.dumps(kept["net: engines"]))
    assert {table[0][0] for table in tables.values()} == {"eng101"}
    assert len(tables) == 2
    assert kept["net: tuning, with its plans"] > 0
