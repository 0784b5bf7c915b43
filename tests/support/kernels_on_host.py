"""The host device, whose launches kernels run, on the CPU: calls and networks are cut, planned and
scheduled as ever, and each piece goes the way that a piece goes on a card.

So every test of the host device tests kernels, too. Convolutions are those that stand in for cuDNN.
"""

from __future__ import annotations

from ooc_cudnn.devices.host.device import HostDevice
from ooc_cudnn.devices.kernels import convolution_direct
from ooc_cudnn.devices.kernels.launch import Call
from ooc_cudnn.devices.kernels.runners import RUNNERS, WORKSPACE
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.devices.worker import WorkerRun
from ooc_cudnn.memory.arena import Arena
from ooc_cudnn.operations.convolution.fused_forward import FusedConvolution
from ooc_cudnn.operations.convolution.gradients import AddedBackwardData, AnyConvolution
from ooc_cudnn.tensor import packed_strides
from tests.support.card import run_on_cpu
from tests.support.cuda_on_cpu import memory


class Block:
    """What the device allocates: between pages that no kernel may touch."""

    def __init__(self, nbytes):
        self.array = memory.empty(nbytes, "u1")
        self.pointer, self.nbytes = self.array.data.ptr, nbytes


def run(device, launch, views, workspace, stream):
    """What `HostDevice.run` does, by kernels."""
    operation, output = launch.operation, views[launch.output]
    if 0 in output.shape:
        return
    inputs = tuple(views[name] if name else None for name in launch.inputs)
    if isinstance(operation, FusedConvolution):
        x, w, b = inputs
        convolution_direct.run(operation.forward, Call((x, w), output, workspace, None))
        operation, inputs = operation.after, (output, None, b, None)
    if isinstance(operation, AddedBackwardData):
        added(operation, inputs, output, workspace)
        return
    if isinstance(operation, AnyConvolution):
        runner = convolution_direct.run
    else:
        runner = RUNNERS[type(operation)]
    runner(operation, Call(inputs, output, workspace, None))


def added(operation, inputs, output, workspace):
    """A gradient in the workspace, and a pass that adds it."""
    *operands, addend = inputs
    strides = packed_strides(output.shape, operation.forward.layout)
    dx = DeviceView(workspace[0], operation.alone.result_dtype, output.shape, strides)
    convolution_direct.run(operation.alone, Call(tuple(operands), dx, workspace, None))
    pointwise = RUNNERS[type(operation.after)]
    pointwise(operation.after, Call((dx, None, None, addend), output, workspace, None))


def workspace(device, launches, budget_bytes, *, sparing=0):
    """What the kernels need; they cannot do with less."""
    operations = [launch.operation for launch, _ in launches]
    asks = [(WORKSPACE.get(type(operation)), operation) for operation in operations]
    needed = max((ask(operation) for ask, operation in asks if ask is not None), default=0)
    beside = [each.alone_bytes for each in operations if isinstance(each, AddedBackwardData)]
    needed = max([needed, *beside])
    if budget_bytes is not None and -(-needed // 256) * 256 > budget_bytes:
        return None
    return needed, ("kernels",)


def install(monkeypatch, device, test):
    """Make the host device so, until `monkeypatch` ends."""
    run_on_cpu(monkeypatch, test)
    monkeypatch.setattr(device, "arena", Arena(Block, device.free_bytes))
    monkeypatch.setattr(HostDevice, "run", run)
    monkeypatch.setattr(HostDevice, "workspace", workspace)
    # a kernel runs twice, on memory that nobody else may change meanwhile
    monkeypatch.setattr(
        HostDevice, "start", lambda device, *, overlap, staged, timed: WorkerRun(overlap=False)
    )
