"""The fake `cudnn` as versions of the frontend differ: what they refuse, and what they lack."""

from types import SimpleNamespace

from tests.support.fake_cudnn import Graph, fake_cudnn

VERSIONS = "1.16", "1.28", "1.32"


class Handle:
    """Version 1.32's handle, which is no number; the stream that it was given last."""

    def __init__(self):
        self.stream = 0


class OldGraph(Graph):
    """Version 1.16's: no plan says which engine it has."""

    def __getattribute__(self, name):
        if name == "get_engine_and_knobs_at_index":
            raise AttributeError(name)
        return super().__getattribute__(name)


class NewGraph(Graph):
    """Version 1.32's: an object of Python, whose plans may be of other engines than cuDNN's.

    It has a backend's graph once it is validated, plans once, and raises other errors for what is
    not cuDNN's. Every refusal is one of the frontend's own (`cudnn/_pygraph.py`).
    """

    def __init__(self, cudnn, handle):
        super().__init__(cudnn)
        self.handle, self.is_lowered, self.is_planned = handle, False, False

    def tensor(self, *, dim, stride, data_type, name, uid):
        if self.is_lowered:
            raise RuntimeError("cannot add a tensor after lowering/planning — the graph is frozen")
        return super().tensor(dim=dim, stride=stride, data_type=data_type, name=name, uid=uid)

    def validate(self):
        if self.handle is None:  # it looks for the device of the thread
            raise ModuleNotFoundError("No module named 'cuda'")
        if not isinstance(self.handle, Handle):
            raise TypeError("expected a cudnn.Handle (from cudnn.create_handle()) or None")
        self.is_lowered = True

    def get_engine_count(self):
        if not self.is_lowered:
            raise AttributeError("'pygraph' object has no attribute 'get_engine_count'")
        return 1 + max((e.number for e in self.cudnn.engines if not e.plan_name), default=-1)

    def create_execution_plans(self, modes):
        if self.is_planned:
            raise RuntimeError("create_execution_plans() was already called on this graph")
        super().create_execution_plans(modes)
        self.is_planned = True

    def create_execution_plan(self, number, knobs):
        super().create_execution_plan(number, knobs)
        self.is_planned = True

    def _cudnns(self, index):
        if not 0 <= index < len(self.plans):
            raise IndexError(f"plan index {index} out of range for {len(self.plans)} plan(s)")
        if self.plans[index].plan_name:
            raise ValueError(f"plan {index} is excluded by a note filter")

    def get_engine_and_knobs_at_index(self, index):
        if self.plans[index].plan_name:
            raise NotImplementedError(f"plan {index} delegates to the backend's own choice")
        return super().get_engine_and_knobs_at_index(index)

    def build_plan_at_index(self, index):
        self._cudnns(index)
        super().build_plan_at_index(index)

    def execute_plan_at_index(self, addresses, workspace, index, handle):
        self._cudnns(index)
        if not isinstance(handle, Handle):
            raise TypeError("expected a cudnn.Handle (from cudnn.create_handle()) or None")
        super().execute_plan_at_index(addresses, workspace, index, handle)


def frontend(version, engines) -> SimpleNamespace:
    """A module `cudnn` of one of `VERSIONS`, with these engines."""
    cudnn = fake_cudnn(engines)
    if version == "1.16":
        cudnn.pygraph = lambda **options: OldGraph(cudnn)
    if version == "1.32":
        cudnn.create_handle = Handle
        cudnn.set_stream = _set_stream
        cudnn.pygraph = lambda handle=None, **options: NewGraph(cudnn, handle)
    return cudnn


def _set_stream(handle, stream):
    if not isinstance(handle, Handle):
        raise TypeError("cudnn.set_stream expects a cudnn.Handle (from cudnn.create_handle())")
    handle.stream = stream
