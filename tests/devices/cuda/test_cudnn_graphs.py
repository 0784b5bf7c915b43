"""Graphs of cuDNN, as far as they can be looked at without a card."""

import gc
import weakref

from ooc_cudnn.devices.cuda.cudnn_graphs import forget_frames


class Array:
    """What a user holds."""


class Graph:
    """Keeps why its backend declined it, as cudnn-frontend 1.28 does."""

    def __init__(self):
        self.declined = None

    def build(self):
        try:
            try:
                raise RuntimeError("no engine")
            except RuntimeError as error:
                raise ValueError("declined") from error
        except ValueError as error:
            self.declined = error


def call(array, *, forget):
    """A call of a user: the array is in a frame above the one that builds the graph."""
    graph = build(forget)
    return graph, array is not None


def build(forget):
    graph = Graph()
    graph.build()
    if forget:
        forget_frames(graph)
    return graph


def is_kept(*, forget):
    array = Array()
    seen = weakref.ref(array)
    graph, _ = call(array, forget=forget)
    del array
    assert str(graph.declined) == "declined"
    return seen() is not None


def test_a_graph_keeps_no_array_of_its_callers():
    gc.disable()
    try:
        assert is_kept(forget=False), "an error keeps the frames that it has passed"
        assert not is_kept(forget=True)
    finally:
        gc.enable()
        gc.collect()


def test_a_graph_without_attributes_keeps_nothing():
    forget_frames(object())
