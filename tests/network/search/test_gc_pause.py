"""Planning does not look for garbage, and leaves Python's switch as it was."""

import gc

import pytest

from ooc_cudnn.network.search.gc_pause import no_garbage_collection


@pytest.fixture(autouse=True)
def switch():
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_switch_is_as_before(enabled):
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(RuntimeError), no_garbage_collection():  # noqa: PT012
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled() == enabled
