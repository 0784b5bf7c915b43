"""Run a fallback subgraph in PyTorch, batch slice by batch slice; backward recomputes it.

Forward runs them. Backward runs them again under PyTorch's autograd, and keeps nothing between.
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from ooc_cudnn.devices.recording import needs_of_recording
from ooc_cudnn.operations.external.calls import Cost, ExternalRun, RandomSource
from ooc_cudnn.operations.external.tiles import PartOfComputation, Spans
from ooc_cudnn.settings import current
from ooc_cudnn.torch.errors import UnsupportedOperationError
from ooc_cudnn.torch.lowering.block_parts import part_in_block
from ooc_cudnn.torch.lowering.fallback_subgraph import FallbackSubgraph
from ooc_cudnn.torch.lowering.precision import strict_float32
from ooc_cudnn.torch.tracing.autocast import without_autocast
from ooc_cudnn.torch.tracing.image_axes import MOVES

#: In what PyTorch says of tensors on two devices.
_ELSEWHERE = re.compile(r"is not on the expected device|on the same device|found two different dev")


@dataclass(frozen=True)
class _Told:
    """The identity of a region: a plan depends on no more.

    Attributes
    ----------
    name : str
        Its operations, but for those that move elements alone.
    text : str
        All that it computes.
    """

    name: str
    text: str


class FallbackRunner(_Told):
    """A part of a model as what the library has computed outside of it."""

    why: str
    #: Whether all are ATen's operations, which look at no data on the host. A user's own may do
    #: anything in Python. FFT's plans, cuDNN's recurrences and solvers have memory of their own,
    #: which may be gone when a graph is launched.
    may_be_recorded: bool
    _part: FallbackSubgraph
    _found: dict[tuple[int, tuple[int, ...] | None, tuple[int, ...]], tuple[Cost, frozenset[int]]]

    def __init__(self, part: FallbackSubgraph, why: str = "") -> None:
        super().__init__(_said(part), part.text)
        object.__setattr__(self, "why", why)
        object.__setattr__(self, "_part", part)
        object.__setattr__(self, "_found", {})
        recorded = all(_is_launched_alone(each.function) for each in part.operations)
        object.__setattr__(self, "may_be_recorded", recorded)

    def forward(self, inputs: Sequence[Any], ys: Sequence[Any], how: ExternalRun) -> None:
        """Compute the results, and write them."""
        tensors = [tensor_on(each) for each in inputs]
        targets = [tensor_on(each) for each in ys]
        images = self._images(targets[0], 0)
        with on_stream(targets[0].device, how.stream), torch.no_grad():
            for own, parts, span in self._shares(tensors, targets, images, how.at_once):
                _copy(self._run(own, len(span), _from(how.drawn, span.start)), parts)

    def backward(
        self,
        inputs: Sequence[Any],
        dys: Mapping[int, Any],
        gradients: Mapping[int, Any],
        how: ExternalRun,
    ) -> None:
        """Compute it again, and gradients of inputs; those of what images share add up."""
        given = {at: tensor_on(each) for at, each in dys.items()}
        on_card = any(each.is_cuda for each in given.values())
        if takes_up_nodes() and on_card:  # on the host a thread for computing runs this
            with ThreadPoolExecutor(1) as pool:
                settings = copy_context()
                pool.submit(settings.run, self._backward, inputs, given, gradients, how).result()
        else:
            self._backward(inputs, given, gradients, how)

    def _backward(
        self,
        inputs: Sequence[Any],
        dys: Mapping[int, torch.Tensor],
        gradients: Mapping[int, Any],
        how: ExternalRun,
    ) -> None:
        lead, dy = next(iter(dys.items()))
        images = self._images(dy, lead)
        with on_stream(dy.device, how.stream):
            tensors = [tensor_on(each) for each in inputs]
            targets = {at: tensor_on(each) for at, each in gradients.items()}
            shared = [at for at in targets if self._part.orders[at] is None]
            sums: dict[int, torch.Tensor] = {}
            apart = [at for at in targets if at not in shared]
            beside = [*dys.values(), *(targets[at] for at in apart)]
            for share, parts, span in self._shares(tensors, beside, images, how.at_once):
                own = dict(zip(dys, parts, strict=False))
                drawn = _from(how.drawn, span.start)
                dxs = dict(
                    zip(
                        targets,
                        self._gradients(share, own, len(span), tuple(targets), drawn),
                        strict=True,
                    )
                )
                for index, target in zip(apart, parts[len(dys) :], strict=True):
                    _write(target, dxs.pop(index), adds=how.adds)
                for index in shared:
                    _sum(sums, index, dxs.pop(index))  # the next share has room only without these
            for index in shared:
                _write(targets[index], sums.get(index), adds=how.adds)

    def _shares(
        self,
        tensors: Sequence[torch.Tensor],
        beside: Sequence[torch.Tensor],
        images: int,
        at_once: int,
    ) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor], range]]:
        """Shares of a batch of inputs, and of others that are of images; and which."""

        def part(tensor: torch.Tensor, first: int, last: int) -> torch.Tensor:
            each = tensor.shape[0] // images
            return tensor[first * each : last * each]

        for first in range(0, images, at_once):
            last = min(first + at_once, images)
            share = [
                tensor if order is None else part(tensor, first, last)
                for tensor, order in zip(tensors, self._part.orders, strict=True)
            ]
            yield share, [part(each, first, last) for each in beside], range(first, last)

    def cost(self, images: int, wanted: tuple[int, ...] | None) -> Cost:
        """Estimate the cost on tensors without memory; of many images in proportion."""
        if images > 2:
            one, two = self.cost(1, wanted), self.cost(2, wanted)
            return Cost(*(a + (images - 1) * (b - a) for a, b in zip(one, two, strict=True)))
        return self._measured(images, wanted, tuple(range(len(self._part.results))))[0]

    def reached(self, wanted: tuple[int, ...], result: int) -> frozenset[int]:
        """Return the inputs that have a gradient of a result: of others autograd says None."""
        return self._measured(1, wanted, (result,))[1]

    def part(self, result: Spans, lasting: Collection[int]) -> PartOfComputation:
        """The same for a part of the result, where its operations have rules for that."""
        made, inputs = part_in_block(self._part, result, lasting)
        return PartOfComputation(FallbackRunner(made, self.why), inputs)

    def _run(
        self, tensors: Sequence[torch.Tensor], images: int, drawn: RandomSource | None
    ) -> list[torch.Tensor]:
        """Compute images; where random numbers are drawn, each by itself, of a seed of its own."""
        if drawn is None:
            return self._part.run(tensors, images)
        seed, step = (int(word) for word in tensor_on(drawn.state).tolist())
        results = []
        for image in range(images):
            share = [
                tensor if order is None else tensor.tensor_split(images)[image]
                for tensor, order in zip(tensors, self._part.orders, strict=True)
            ]
            with draw_from_seed((seed, step, drawn.first + image), tensors[0].device):
                results.append(self._part.run(share, 1, is_drawn=True))
        return [torch.cat(parts) for parts in zip(*results, strict=True)]

    def _images(self, array: torch.Tensor, at: int) -> int:
        """The images that the array of a result is of."""
        return array.shape[0] * self._part.count // self._part.results[at].shape[0]

    def _gradients(
        self,
        tensors: Sequence[torch.Tensor],
        dys: Mapping[int, torch.Tensor],
        images: int,
        wanted: Sequence[int],
        drawn: RandomSource | None = None,
    ) -> Sequence[torch.Tensor | None]:
        leaves = [tensor.detach().requires_grad_(at in wanted) for at, tensor in enumerate(tensors)]
        with torch.enable_grad(), kept_as_they_are():
            ys = self._run(leaves, images, drawn)
        # of several results, some depend on none of them
        pairs = [(ys[at], dy.to(ys[at].dtype)) for at, dy in dys.items() if ys[at].requires_grad]
        if not pairs:
            return [None for _ in wanted]
        outputs, gradients = zip(*pairs, strict=True)
        return torch.autograd.grad(
            outputs, [leaves[at] for at in wanted], gradients, allow_unused=True
        )

    def _measured(
        self, images: int, wanted: tuple[int, ...] | None, results: tuple[int, ...]
    ) -> tuple[Cost, frozenset[int]]:
        """The cost, and which inputs have a gradient of some results."""
        told = images, wanted, results
        if told not in self._found:
            self._found[told] = self._measured_anew(*told)
        return self._found[told]

    def _measured_anew(
        self, images: int, wanted: tuple[int, ...] | None, results: tuple[int, ...]
    ) -> tuple[Cost, frozenset[int]]:
        part, kind = self._part, self._kind
        try:
            if kind == "meta":
                with contextlib.suppress(NotImplementedError):  # fake ones may do without a form
                    return self._counted(part, kind, images, wanted, results)
            with FakeTensorMode():
                kind = "cpu" if kind == "meta" else kind
                return self._counted(part, kind, images, wanted, results)
        except UnsupportedOperationError:
            raise
        except RuntimeError as error:  # NotImplementedError among them, on tensors without memory
            text = str(error).partition(chr(10))[0]
            lacks = re.fullmatch(r"derivative for aten::(\w+) is not implemented", text)
            by_data = isinstance(error, DynamicOutputShapeException)
            elsewhere = _ELSEWHERE.search(text) is not None
            known = lacks is not None or by_data or elsewhere
            if not known and not isinstance(error, NotImplementedError):
                raise
            named = [each for each in part.operations if lacks and each.name == lacks[1]]
            last = (named or part.operations)[-1]
            why = f"PyTorch cannot say what it takes: {text}"
            if by_data:
                why = "the shape of its gradient depends on data: take torch.where for a mask that "
                why += "is an index, or give it what has no gradient, v.detach()"
            if elsewhere:
                why = "forward or backward of an operator makes a tensor on the default device, "
                why += "and reads others elsewhere: write torch.full(..., device=gradient.device)"
            if lacks:
                why = "PyTorch has no derivative of it: give it y.detach()"
            raise UnsupportedOperationError(last.said, last.where, why) from None

    @property
    def _kind(self) -> str:
        """The device type that cost is found on: autocast looks at it, and what makes tensors."""
        operations = self._part.operations
        under = (getattr(each.function, "entered", ()) for each in operations)
        candidates = [kind for kinds in under for kind, _ in kinds]
        devices = (each.arguments.get("device") for each in operations if not each.reads)
        candidates += [torch.device(device).type for device in devices if device is not None]
        return next(iter(candidates), "meta")

    def _counted(
        self,
        part: FallbackSubgraph,
        kind: str,
        images: int,
        wanted: tuple[int, ...] | None,
        results: tuple[int, ...],
    ) -> tuple[Cost, frozenset[int]]:
        tensors = []
        for value, order in zip(part.inputs, part.orders, strict=True):
            shape = part.shape(value, images)
            if order is not None:
                inverse = sorted(range(len(order)), key=order.__getitem__)
                shape = tuple(shape[axis] for axis in inverse)
            tensors.append(torch.empty(shape, dtype=value.dtype, device=kind))
        dys = {}
        for at in results:
            value, order = part.results[at]
            extents = part.shape(value, images)
            shape = tuple(extents[axis] for axis in order)
            dys[at] = torch.empty(shape, dtype=value.dtype, device=kind)
        reached = frozenset[int]()
        # what a user looks for with it is in the call itself, and this has no numbers
        with (
            torch.autograd.set_detect_anomaly(False),
            _Counted((*tensors, *dys.values())) as counted,
        ):
            if wanted is None:
                with torch.no_grad():
                    part.run(tensors, images)
            else:
                made = self._gradients(tensors, dys, images, wanted)
                reached = frozenset(
                    at for at, each in zip(wanted, made, strict=True) if each is not None
                )
        return Cost(counted.most, counted.moved, counted.flops), reached


#: Tags of operations that the host has a part in, and beginnings of names of others.
_NOT_RECORDED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape,
                 torch.Tag.nondeterministic_seeded}  # fmt: skip
_WITH_STATE = ("_fft", "linalg", "_linalg", "_cudnn", "_thnn", "lstm", "gru", "rnn", "cholesky")


def _is_launched_alone(function: Any) -> bool:
    is_of_aten = isinstance(function, torch._ops.OpOverload) and function.namespace == "aten"
    return (
        is_of_aten
        and _NOT_RECORDED.isdisjoint(function.tags)
        and not function._opname.startswith(_WITH_STATE)
    )


def _said(part: FallbackSubgraph) -> str:
    """The names of what computes, in order, each once; of what moves if there is no other."""
    names = dict.fromkeys(each.name for each in part.operations if each.name not in MOVES)
    names = names or dict.fromkeys(each.name for each in part.operations) or {"permute": None}
    shown = list(names)
    return "+".join(shown[:3]) + f"+{len(shown) - 3} more" * (len(shown) > 3)


#: What sums of half precision are held in.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _from(drawn: RandomSource | None, first: int) -> RandomSource | None:
    """The same, for images from a later one on."""
    return None if drawn is None else drawn._replace(first=drawn.first + first)


def _sum(sums: dict[int, torch.Tensor], at: int, more: torch.Tensor | None) -> None:
    """Add to a sum, of a wide type."""
    if more is not None:
        wide = more.to(_WIDER.get(more.dtype, more.dtype))
        sums[at] = sums[at] + wide if at in sums else wide


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy tensors, and keep none of them: the next share has room only without these."""
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


def _write(target: torch.Tensor, gradient: torch.Tensor | None, *, adds: bool) -> None:
    """Write a gradient, or add it; that of what nothing depends on is 0."""
    if adds:
        if gradient is not None:
            target.add_(gradient)
    elif gradient is None:
        target.zero_()
    else:
        target.copy_(gradient)


class _Counted(_python_dispatch.TorchDispatchMode):
    """Counts operations, what they read and write, and the most that is held at once.

    PyTorch's own `FlopCounterMode` puts hooks on all modules of the process, other threads' too.

    Parameters
    ----------
    given : sequence of Tensor
        What is there before: it does not count.
    """

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.most = self.moved = self.flops = 0
        self._given = {each.untyped_storage()._cdata for each in given}
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        counts = flop_registry.get(func._overloadpacket)
        if counts is not None:
            self.flops += int(counts(*args, **kwargs, out_val=result))
        self._held = {key: each for key, each in self._held.items() if not each[0].expired()}
        fresh = []
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._held and storage._cdata not in self._given:
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                fresh.append(tensor)
        self.most = max(self.most, sum(nbytes for _, nbytes in self._held.values()))
        if fresh:
            self.moved += sum(each.numel() * each.element_size() for each in _tensors(args))
            self.moved += sum(each.numel() * each.element_size() for each in fresh)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def tensor_on(array: Any) -> torch.Tensor:
    """A tensor on the memory of a device's array."""
    if isinstance(array, np.ndarray):
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array.view(np.ndarray))
    tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor


def kept_as_they_are() -> contextlib.AbstractContextManager[None]:
    """Keep what autograd saves of ours from a caller's hooks: a checkpoint counts it.

    Without such hooks there are none of ours: `torch.func` refuses to work under any.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def takes_up_nodes() -> bool:
    """True if this thread, where it waits for gradients on a card, runs other nodes of autograd's.

    So does one that called `backward`: among them may be the next call of a model, which is not to
    begin before this one has ended. Autograd's own threads, which Python did not begin, take first
    what is waited for.
    """
    return not isinstance(threading.current_thread(), threading._DummyThread)


@contextlib.contextmanager
def draw_from_seed(words: tuple[int, ...], device: torch.device) -> Iterator[None]:
    """Let PyTorch draw from numbers of these words, and go on afterwards where it was."""
    (seed,) = np.random.SeedSequence(words).generate_state(1, np.uint64)
    cards = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(cards):
        torch.manual_seed(int(seed >> np.uint64(1)))
        yield


@contextlib.contextmanager
def on_stream(device: torch.device, stream: Any) -> Iterator[None]:
    """Run in the order of a card's stream, or on the host; types are the operations'."""
    if device.type != "cuda":
        with without_autocast():
            yield
        return
    pointer = 0 if stream is None else int(stream.ptr)
    index = device.index
    torch_stream = (
        torch.cuda.ExternalStream(pointer, index) if pointer else torch.cuda.default_stream(index)
    )
    precision = contextlib.nullcontext() if current().allow_tf32 else strict_float32()
    with torch.cuda.device(index), torch.cuda.stream(torch_stream), without_autocast(), precision:
        needs = needs_of_recording()
        with contextlib.nullcontext() if needs is None else _memory_of_recording(index, needs):
            yield


#: Of a card the memory that recorded runs take beside the library's: of one after the other.
_pools: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def _memory_of_recording(index: int, needs: list[Any]) -> Iterator[None]:
    """Let what is recorded on the current stream take memory that stays its own.

    Recorded runs follow each other, and keep nothing there: all share it.
    """
    pool = _pools.get(index)
    if pool is None:
        pool = _pools[index] = torch.cuda.MemPool()
    needs.append(pool)
    torch._C._cuda_beginAllocateCurrentStreamToPool(index, pool.id)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(index, pool.id)
        torch._C._cuda_releasePool(index, pool.id)
