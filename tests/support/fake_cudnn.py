"""A `cudnn` whose engines are what a test says: how long they take, where they fail, how they err.

It computes on host memory, by the float64 reference, and moves the test's clock. What of
cudnn-frontend 1.28 the library uses is here; an engine that a graph deselected is not built.
"""

import ctypes
import time
from dataclasses import dataclass, field, replace
from enum import Enum
from types import SimpleNamespace

import numpy as np

from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)

NumericalNote = Enum(
    "NumericalNote",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC",
)
BehaviorNote = Enum("BehaviorNote", "RUNTIME_COMPILATION")
KnobType = Enum("KnobType", "TILE_SIZE SPLIT_K NOT_SET KERNEL_CFG SPLIT_K_SLC")
HeurMode = Enum("HeurMode", "A B FALLBACK")
DataType = Enum("DataType", "HALF BFLOAT16 FLOAT DOUBLE")
NUMPY = {DataType.HALF: "f2", DataType.FLOAT: "f4", DataType.DOUBLE: "f8"}
NAMES = {DataType.HALF: "float16", DataType.FLOAT: "float32", DataType.DOUBLE: "float64"}


class GraphNotSupportedError(Exception):
    """What the frontend raises."""


@dataclass
class FakeEngine:
    """An engine: seconds of a launch of so many results, and what is wrong with it."""

    number: int
    seconds: float
    workspace: int = 0
    workspace_of_image: int = 0
    workspace_of_row: int = 0
    error: float = 1e-8
    uneven_error: float = 0.0  # where padding is more on one side
    is_ranked: bool = True
    notes: tuple = ()
    behavior: tuple = ()
    build_seconds: float = 0.0
    load_seconds: float = 0.0  # of its first launch
    least_images: int = 0
    channels: int = 1  # it takes multiples of so many
    fails: bool = False
    knobs: dict = field(default_factory=dict)
    ranges: dict = field(default_factory=dict)  # the largest choice of each knob that it has
    seconds_by_default: float | None = None  # where a knob without a name is not set
    launched: int = 0
    built: int = 0
    plan_name: str = ""  # of one that is not cuDNN's

    @property
    def name(self):
        if self.plan_name:
            return self.plan_name
        return "_".join([f"eng{self.number}", *(f"k{k.value}={v}" for k, v in self.knobs.items())])

    @property
    def settable_knobs(self):
        return {knob: v for knob, v in self.knobs.items() if knob is not KnobType.NOT_SET}


class Tensor:
    def __init__(self, dim, stride, data_type):
        self.dim, self.stride, self.data_type = dim, stride, data_type

    def set_output(self, output):
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    def set_data_type(self, data_type):
        self.data_type = data_type
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def at(self, address):
        """The array there."""
        dtype = np.dtype(NUMPY[self.data_type])
        reach = 1 + sum((e - 1) * s for e, s in zip(self.dim, self.stride, strict=True))
        raw = (ctypes.c_char * (reach * dtype.itemsize)).from_address(address)
        strides = [stride * dtype.itemsize for stride in self.stride]
        return np.ndarray(self.dim, dtype, raw, strides=strides)


class Graph:
    """`cudnn.pygraph`, for one convolution on two spatial axes."""

    def __init__(self, cudnn):
        self.cudnn, self.plans, self.barred, self.most = cudnn, [], set(), None
        self.asked_for = set()
        self.added, self.is_rectified = None, False

    def tensor(self, *, dim, stride, data_type, name, uid):
        return Tensor(dim, stride, data_type)

    def _convolve(self, kind, inputs, windows):
        self.kind, self.inputs, self.windows = kind, inputs, windows
        self.result = Tensor(None, None, None)
        return self.result

    def bias(self, *, input, bias):  # noqa: A002  # the frontend's name
        self.added = bias
        return input

    def add(self, *, a, b):
        self.added = b
        self.result = Tensor(None, None, None)
        return self.result

    def relu(self, *, input):  # noqa: A002
        self.is_rectified = True
        return input

    def conv_fprop(self, image, weight, **windows):
        return self._convolve(Convolution, (image, weight), windows)

    def conv_dgrad(self, *, loss, **windows):
        return self._convolve(ConvolutionBackwardData, (windows.pop("filter"), loss), windows)

    def conv_wgrad(self, image, loss, **windows):
        return self._convolve(ConvolutionBackwardFilter, (image, loss), windows)

    def validate(self):
        pass

    build_operation_graph = validate

    def check_support(self):
        if not any(self.is_selected(engine) for engine in self.plans):
            raise GraphNotSupportedError("no engine")

    def is_selected(self, engine):
        too_large = self.most is not None and self.workspace(engine) > self.most
        barred = self.barred & set(engine.notes) or self.asked_for - set(engine.notes)
        takes_channels = all(extent % engine.channels == 0 for extent in self.channels)
        return takes_channels and not (barred or too_large)

    def get_engine_count(self):
        return 1 + max((engine.number for engine in self.cudnn.engines), default=-1)

    def create_execution_plans(self, modes):
        self.plans += [engine for engine in self.cudnn.engines if engine.is_ranked]
        if not self.plans or (self.added is not None and not self.cudnn.fuses):
            raise GraphNotSupportedError("no engine")

    def create_execution_plan(self, number, knobs):
        found = [
            e for e in self.cudnn.engines
            if e.number == number and (not knobs or knobs == e.settable_knobs)
        ]  # fmt: skip
        if not found:
            raise RuntimeError(f"engine {number} is not supported")
        (engine, *_) = found
        if engine.seconds_by_default is not None:
            engine = replace(engine, seconds=engine.seconds_by_default)
        self.plans.append(engine)

    def get_knobs_for_engine(self, number):
        engine = next(each for each in self.cudnn.engines if each.number == number)
        return [SimpleNamespace(type=knob, max_value=most) for knob, most in engine.ranges.items()]

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_plan_name_at_index(self, index):
        return self.plans[index].name

    def get_engine_and_knobs_at_index(self, index):
        return self.plans[index].number, self.plans[index].knobs

    def get_behavior_notes_for_plan_at_index(self, index):
        return list(self.plans[index].behavior)

    def get_workspace_size_plan_at_index(self, index):
        return self.workspace(self.plans[index])

    @property
    def extents(self):
        return self.inputs[1 if self.kind is ConvolutionBackwardData else 0].dim

    @property
    def images(self):
        return self.extents[0]

    @property
    def channels(self):
        """Those of x and of y."""
        if self.kind is ConvolutionBackwardFilter:
            return [each.dim[1] for each in self.inputs]
        return self.inputs[self.kind is Convolution].dim[:2]

    def workspace(self, engine):
        of_image = engine.workspace_of_image + self.extents[2] * engine.workspace_of_row
        return engine.workspace + self.images * of_image

    def deselect_numeric_notes(self, notes):
        assert self.plans, "the backend marks the plans that there are"
        self.barred |= set(notes)

    def select_numeric_notes(self, notes):
        self.asked_for |= set(notes)

    def deselect_workspace_greater_than(self, most):
        self.most = most

    def build_plan_at_index(self, index):
        engine = self.plans[index]
        if not self.is_selected(engine):
            raise RuntimeError("deselected")
        if self.images < engine.least_images:
            raise RuntimeError("not supported")
        engine.built += 1
        time.sleep(engine.build_seconds)

    def operation(self):
        padding = zip(self.windows["pre_padding"], self.windows["post_padding"], strict=True)
        a, b = (tuple(tensor.dim) for tensor in self.inputs)
        made = tuple(self.result.dim)
        x, w = {
            Convolution: (a, b),
            ConvolutionBackwardData: (made, a),
            ConvolutionBackwardFilter: (a, made),
        }[self.kind]
        forward = Convolution(
            x, w, tuple(padding), tuple(self.windows["stride"]), tuple(self.windows["dilation"]),
            x[1] // w[1], NAMES[self.inputs[0].data_type],
        )  # fmt: skip
        result = NAMES[self.result.data_type]
        return forward if self.kind is Convolution else self.kind(forward, result)

    def execute_plan_at_index(self, addresses, workspace, index, handle):
        engine = self.plans[index]
        if engine.fails:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        if not engine.launched:
            time.sleep(engine.load_seconds)
        engine.launched += 1
        time.sleep(engine.seconds * np.prod(self.result.dim))
        nbytes = self.workspace(engine)
        scratch = (ctypes.c_char * nbytes).from_address(workspace)
        ctypes.memset(scratch, 0xFF, nbytes)
        found = self.operation().reference(
            *(tensor.at(addresses[uid]) for uid, tensor in zip((1, 2), self.inputs, strict=True))
        )
        uneven = self.windows["pre_padding"] != self.windows["post_padding"]
        error = max(engine.error, engine.uneven_error) if uneven else engine.error
        found.flat[0] += error * np.abs(found).max()
        if self.added is not None:
            found = found + self.added.at(addresses[4])
        if self.is_rectified:
            found = np.maximum(found, 0)
        self.result.at(addresses[3])[...] = found


def fake_cudnn(engines, *, fuses=True, version=91900):
    """A module `cudnn` with these engines, all or none of which add a bias."""
    cudnn = SimpleNamespace(
        engines=engines,
        fuses=fuses,
        cudnnGraphNotSupportedError=GraphNotSupportedError,
        data_type=DataType,
        heur_mode=HeurMode,
        numerical_note=NumericalNote,
        behavior_note=BehaviorNote,
        knob_type=KnobType,
        create_handle=object,
        set_stream=lambda handle, stream: None,
        backend_version=lambda: version,
    )
    cudnn.pygraph = lambda **options: Graph(cudnn)
    return cudnn
