"""What tests on dask arrays share."""

import pytest

from tests.fuzz.cases import DRAWING

#: Device memory of a worker.
LIMIT = "512KiB"


@pytest.fixture(scope="module")
def client():
    """Two workers with the host device."""
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    import ooc_cudnn.dask as ooc

    with (
        ooc.cluster(
            2, device="host", machine="host", memory_limit=LIMIT, dashboard_address=":0",
            threads_per_worker=1,
        ) as local,
        distributed.Client(local) as connected,
    ):  # fmt: skip
        yield connected


@pytest.fixture
def in_float64(monkeypatch):
    """Drawn calls are of float64."""
    for module in DRAWING:
        if hasattr(module, "draw_dtype"):
            monkeypatch.setattr(module, "draw_dtype", lambda stream: "float64")
