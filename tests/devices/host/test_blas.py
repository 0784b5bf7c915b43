import threading

import numpy as np
import pytest

from ooc_cudnn.devices.host import blas

functions = blas._functions()
pytestmark = pytest.mark.skipif(functions is None, reason="NumPy here is not built on OpenBLAS")


@pytest.fixture
def two_threads():
    get, set_ = functions
    before = get()
    set_(2)
    yield get
    set_(before)


def test_the_number_of_threads_is_put_back(two_threads):
    with blas.one_thread():
        assert two_threads() == 1
        with blas.one_thread():
            assert two_threads() == 1
        assert two_threads() == 1
    assert two_threads() == 2


def test_it_is_put_back_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), blas.one_thread():
        raise ZeroDivisionError
    assert two_threads() == 2


def test_the_last_of_several_threads_to_leave_puts_it_back(two_threads):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with blas.one_thread():
            inside.set()
            leave.wait(600)

    thread = threading.Thread(target=other)
    with blas.one_thread():
        thread.start()
        assert inside.wait(600)
    assert two_threads() == 1
    leave.set()
    thread.join()
    assert two_threads() == 2


def test_without_openblas_nothing_happens(monkeypatch):
    monkeypatch.setattr(blas, "_functions", lambda: None)
    with blas.one_thread():
        assert (np.eye(3) @ np.eye(3)).trace() == 3
