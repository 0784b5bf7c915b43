"""Two processes that calibrate, tune and plan at once, and store what they found."""

from __future__ import annotations

import multiprocessing
import os
import warnings

import pytest

import ooc_cudnn
from ooc_cudnn.devices import machines
from ooc_cudnn.devices.engines import Engine, Measurement, Option
from ooc_cudnn.devices.machines import cache_directory, machine_path
from ooc_cudnn.devices.tuning_database import forget_tables, save_tables, tables_of
from ooc_cudnn.network.runtime import plan_cache
from ooc_cudnn.network.runtime.plan_cache import plans_folder
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.warnings_once import forget_warnings
from perfmodel import shipped
from tests.support.fake_cudnn import FakeEngine
from tests.support.tuned import engines_maker

ROUNDS = 6


def fitted(device, number):
    """What a calibration of one of the processes finds."""
    told = {"name": f"fitted {number}", "identity": device.identity(), "calibrated": "2025-01-31"}
    return machines.MachineModel(**{**vars(shipped("h200")), **told})


def planned(limit):
    net = ooc_cudnn.Network()
    y = net.convolution(net.input("x", (2, 3, 8, 8)), 4, window=3)
    loss = net.softmax_cross_entropy(net.linear(y, 5), net.input("labels", (2,), "int64"))
    return net.plan(loss, memory_limit=limit, machine="h200", policy="keep")


def _stores(folder, number, barrier):
    """Calibrate, tune and plan again and again; warnings, as of what is half written, raise."""
    with pytest.MonkeyPatch.context() as patch:
        device = engines_maker(patch, folder)(FakeEngine(100, 1e-6))
        patch.setattr(plan_cache, "SHORTEST_SECONDS", 0.0)
        ooc_cudnn.settings(plan_cache=True)
        warnings.simplefilter("error")
        barrier.wait()
        for at in range(ROUNDS):
            fitted(device, number).save(machine_path(device.identity()))
            assert machines.machine_for(device, None).name.startswith("fitted")
            forget_tables()
            operation = Convolution.of((1 + number, 2, 16 + at, 16), (4, 2, 3, 3))
            option = Option(1e-6, 0, Engine(100), "eng100", 1e-7)
            tables_of(device).add(Measurement(operation.work(), (option,), operation))
            save_tables(device)
            planned(2**20 + at)


@pytest.mark.timeout(300)
def test_two_processes_that_store_at_once_lose_nothing_and_leave_nothing(tmp_path, monkeypatch):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [
        context.Process(target=_stores, args=(tmp_path, number, barrier)) for number in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]

    device = engines_maker(monkeypatch, tmp_path)(FakeEngine(100, 1e-6))
    forget_tables()
    assert len(list(tables_of(device))) == 2 * ROUNDS
    assert len(list(plans_folder().iterdir())) == ROUNDS
    forget_warnings()
    left = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(cache_directory())
        for name in names
        if not name.endswith((".json", ".lock"))
    ]
    assert left == []
