"""From a planned launch to the card, with a compiler and a card that only write down."""

from __future__ import annotations

import numpy as np
import pytest

from ooc_cudnn.devices.kernels import compiling, launch
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch
from ooc_cudnn.devices.kernels.runners import RUNNERS
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.pointwise import Pointwise

SHAPE, STRIDES = (2, 3, 8), (24, 8, 1)
STRUCT = fill_struct("image_softmax.cu", "ImageParts", images=1, parts=2)


class Card:
    """Remembers what was compiled and launched."""

    def __init__(self):
        self.compiled, self.launched, self.current = [], [], 0

    def function(self, device, source, expression, struct_bytes):
        self.compiled.append((device, source, expression))

        def run(grid, block, arguments, *, stream):
            assert arguments[0].nbytes == struct_bytes
            self.launched.append((grid, block, arguments, stream))

        return run


@pytest.fixture
def card(monkeypatch):
    made = Card()
    monkeypatch.setattr(compiling, "function", made.function)
    monkeypatch.setattr(compiling, "current_device", lambda: made.current)
    monkeypatch.setattr(launch, "_prepared", {})
    return made


def view(pointer, shape=SHAPE, strides=STRIDES):
    return DeviceView(pointer, "float32", shape, strides)


def plan(made):
    made.append(1)
    return Launch("some.cu", "kernel<4>", (7,), STRUCT)


def test_views_alike_are_planned_and_compiled_once(card):
    planned = []
    for pointer in (4096, 8192):
        launch.launch("twice", (view(pointer), None), lambda: plan(planned), (2.5,), "stream")
    assert len(planned) == 1
    assert card.compiled == [(0, "some.cu", "kernel<4>")]
    assert [(grid, block, stream) for grid, block, _, stream in card.launched] == [
        ((7,), (256, 1), "stream")
    ] * 2
    assert [arguments[1:] for _, _, arguments, _ in card.launched] == [
        (4096, 0, 2.5),
        (8192, 0, 2.5),
    ]


@pytest.mark.parametrize(
    "other",
    [view(4100), view(4096, (2, 3, 4)), view(4096, strides=(48, 16, 2)), None],
    ids=["alignment", "shape", "strides", "absent"],
)
def test_what_a_kernel_depends_on_is_planned_again(card, other):
    planned = []
    for given in (view(4096), other, view(4096)):
        launch.launch("operation", (given,), lambda: plan(planned), (), None)
    assert len(planned) == 2


def test_each_card_and_operation_has_its_own(card):
    planned = []
    for card.current, operation in ((0, "a"), (1, "a"), (0, "b"), (1, "a")):
        launch.launch(operation, (view(4096),), lambda: plan(planned), (), None)
    assert [device for device, *_ in card.compiled] == [0, 1, 0]
    assert len(planned) == 3


def test_nothing_to_do_is_remembered_too(card):
    planned = []
    for _ in range(2):
        launch.launch("nothing", (view(4096),), lambda: planned.append(1), (), None)
    assert (len(planned), card.compiled, card.launched) == (1, [], [])


def test_a_process_that_meets_too_many_shapes_starts_over(card, monkeypatch):
    monkeypatch.setattr(launch, "MOST_LAUNCHES", 2)
    planned = []
    for operation in "aabbcca":
        launch.launch(operation, (view(4096),), lambda: plan(planned), (), None)
    assert len(planned) == 4


def test_a_runner_hands_on_pointers_scalars_and_stream(card):
    operation = Pointwise(SHAPE, "float32", "float32", "relu", 0.0, 2.0, 0.5)
    bias = DeviceView(512, "float32", (3,), (1,))
    call = Call((view(4096), None, bias, view(8192)), view(8192), stream="stream")
    RUNNERS[Pointwise](operation, call)
    ((_, _, arguments, stream),) = card.launched
    assert arguments[1:] == (8192, 4096, 0, 0, 512, 8192, 2.0, 0.5, 0.0)
    assert {type(scalar) for scalar in arguments[-3:]} == {np.float32}
    assert stream == "stream"
