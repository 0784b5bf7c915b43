"""A model made ready for calls of one kind: captured, lowered, planned at the first one."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ooc_cudnn import interrupts
from ooc_cudnn.arrays.operands import ArrayRef
from ooc_cudnn.arrays.stores import wrap_regional
from ooc_cudnn.devices import get_device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.runtime.inference import ForwardStep
from ooc_cudnn.network.runtime.inputs import check_given
from ooc_cudnn.network.runtime.larger_plans import LargerPlans
from ooc_cudnn.network.runtime.two_part import TwoPartStep
from ooc_cudnn.network.tiled.infer import TiledInference, TilingConstraints, plan_tiles
from ooc_cudnn.settings import current
from ooc_cudnn.torch.autograd.fixed_places import FixedPlaces, LentPlaces, bytes_of
from ooc_cudnn.torch.autograd.function import Request, hand_over, state_of, tensor_of
from ooc_cudnn.torch.autograd.late_state import LateState
from ooc_cudnn.torch.autograd.late_tensors import LateTensor, LateTensors
from ooc_cudnn.torch.autograd.nodes import differentiable_outputs
from ooc_cudnn.torch.autograd.reach import Reach
from ooc_cudnn.torch.autograd.tensor_refs import TensorRefs
from ooc_cudnn.torch.autograd.unhooked_alias import takes_hidden_gradients, unhooked_alias
from ooc_cudnn.torch.autograd.written_history import outcome, write_history
from ooc_cudnn.torch.cards import at, making_there
from ooc_cudnn.torch.errors import UnsupportedModelError
from ooc_cudnn.torch.lowering import rules  # noqa: F401  # the table is filled
from ooc_cudnn.torch.lowering.fallbacks import draws
from ooc_cudnn.torch.lowering.labels import compute_scores, label_scores
from ooc_cudnn.torch.lowering.lower import GivenInputs, LoweredGraph, LoweredValue, lower_graph
from ooc_cudnn.torch.lowering.plan_notes import notes
from ooc_cudnn.torch.lowering.targets import check_targets, targets_of
from ooc_cudnn.torch.options import Options
from ooc_cudnn.torch.runtime.casts import part_bytes
from ooc_cudnn.torch.runtime.input_independent import follows, leave, run_before
from ooc_cudnn.torch.runtime.ranks import bucket_bytes, over_ranks, unwrap_ddp
from ooc_cudnn.torch.tracing.autocast import without_autocast
from ooc_cudnn.torch.tracing.graph import Graph, Operation, Value, Write, run_operation
from ooc_cudnn.torch.tracing.overlaps import memory_of
from ooc_cudnn.torch.tracing.scalar_inputs import Number
from perfmodel.cached import cached_property


class ReadyModel:
    """Runs a captured graph.

    Parameters
    ----------
    graph : Graph
    examples : sequence of Tensor
        What it is given, in its order; fake ones for what is not there yet.
    options : Options
    model : Module, optional
        That it is of, where that is known.
    with_gradients : bool
        Whether there is a backward.
    larger : LargerPlans, optional
        Plans of the model for larger inputs.
    """

    def __init__(
        self,
        graph: Graph,
        examples: Sequence[Any],
        options: Options,
        model: torch.nn.Module | None,
        *,
        with_gradients: bool,
        larger: LargerPlans | None = None,
    ) -> None:
        memory_limit, statistics = options.memory_limit, options.statistics
        graph = compute_scores(graph) if options.labels else graph
        self.graph, self._memory_limit, self._larger = graph, memory_limit, larger
        model = torch.nn.Module() if model is None else unwrap_ddp(model)
        #: Where results are to be: with the parameters, or else with the first argument.
        self.device = _device_of(graph.given, examples)
        self.differentiable = _differentiable(graph) if with_gradients else frozenset[Value]()
        self.training = training = with_gradients or any(
            operation.arguments.get("training") or operation.arguments.get("train")
            for operation in self.graph.operations
        )
        self.lowered: LoweredGraph = lower_graph(
            graph,
            self.differentiable,
            training=training,
            strict=options.strict,
            over_ranks=over_ranks(model, statistics),
        )
        if options.labels:
            self.lowered = label_scores(self.lowered, options.labels)
        self._targets = targets_of(self.lowered)
        net, outputs = self.lowered.network, self.lowered.outputs
        #: What ran last, for gradients of the outputs that had one.
        self.pausing: TwoPartStep | None = None
        self._pause_bytes = bucket_bytes(model, statistics)
        self._steps: dict[frozenset[int], TwoPartStep] = {}
        self.forward: ForwardStep | None = None
        wanted = frozenset(net.wanted)
        alone = [net.pausing_phases(y) for y in outputs] if wanted else []
        #: Of each output what has a gradient that depends on that of the output, and what is read.
        self._reached = Reach(
            tuple(frozenset(each.gradients) for each in alone) or (frozenset(),) * len(outputs),
            tuple(wanted.intersection(each.tensors) for each in alone),
        )
        if self._reached.nodes:
            places = (at for of_node in self._reached.nodes for at in of_node)
            only = alone[0] if len(alone) == 1 else None
            self.pausing = self._pausing(frozenset(places), only)
        elif outputs:
            self.forward = net.forward_step(*outputs, memory_limit=memory_limit, training=training)
            self._count(self.forward)
        self._nodes_behind = self._nodes_of_what_is_before()
        self._read_further = self._outputs_of_outputs()
        self._read_first = self._handed_and_read_further()
        self._behind = self._in_order()
        #: Arguments that forward changes in place, and what the network makes of each then.
        self._changed = {
            write.target: self._made_of(write.value)
            for write in graph.writes
            if write.target.kind == "input"
        }
        after = self.lowered.after
        self._late = {
            place: LateTensor(_told(graph, place), *by) for place, by in graph.read_late.items()
        }
        self._hooked = {y for e in after if e.name == "register_hook" for y in e.results}
        self._copies_of_others = self._values_that_are_copies()
        #: Whether a call draws random numbers of PyTorch's.
        self.draws = bool(self.lowered.drawn) or any(
            map(draws, (*graph.before, *self.lowered.before))
        )
        self._places = FixedPlaces(self.device)
        self._wrapping = TensorRefs()
        #: Running statistics that the network holds in a wider type.
        self._held_as = {
            name: dtype
            for name, given in self.lowered.running.items()
            if (dtype := self._dtype_of(name)) != given.value.dtype
        }
        #: Copies of running statistics, which steps change: buffers change when all has succeeded.
        self._copies: dict[str, torch.Tensor] = {}
        #: How the last call in blocks lay, and what ran it.
        self._in_blocks: tuple[Hashable, TiledInference | None] | None = None

    def _pausing(self, seeded: frozenset[int], phases: Step | None = None) -> TwoPartStep:
        """The step in which these outputs have gradients; later calls take it, too."""
        step = self._steps.get(seeded)
        if step is None:
            step = self.lowered.network.pausing_step(
                *self.lowered.outputs,
                memory_limit=self._memory_limit,
                seeded=seeded,
                phases=phases,
            )
            step.pause_bytes = self._pause_bytes
            step.passed_on = self._passed_on()
            self._count(step, copies=2)  # gradients of outputs, too
            self._steps[seeded] = step
        self.pausing = step
        return step

    def _nodes_of_what_is_before(self) -> dict[Value, frozenset[int]]:
        """Find the nodes of outputs, of several, from which gradients reach what is made before."""
        to, nodes = self.lowered, self._reached.of_names
        found = dict[Value, frozenset[int]]()
        if len(self._reached.nodes) > 1:
            for name, given in to.given.items():
                found[given.value] = found.get(given.value, frozenset()).union(nodes.get(name, ()))
            for each in reversed((*self.graph.before, *to.before)):
                of_these = frozenset[int]().union(*(found.get(y, ()) for y in each.results if y))
                found |= {value: found.get(value, frozenset()) | of_these for value in each.reads}
        return found

    def _count(self, step: TwoPartStep | ForwardStep, copies: int = 1) -> None:
        """PyTorch's tensors on the card count, too; and plans of larger inputs may do."""
        step.counts_given = True
        step.larger = self._larger
        step.beside_bytes = copies * bytes_of(self.lowered.outputs, self.device)
        if self.device.type == "cuda":
            step.beside_bytes += self.cast_bytes

    @cached_property
    def cast_bytes(self) -> int:
        """Bytes of parameters and buffers that the network has copies of alone, with gradients.

        Autocast makes the copies before a call; what they are of stays, and its gradients are made
        of the network's, some at a time.
        """
        taken = {each.value for each in self.lowered.given.values()}
        held = [v for v in self.graph.given if v.kind in ("parameter", "buffer") and v not in taken]
        sizes = [math.prod(v.shape) * v.dtype.itemsize for v in held]
        of_gradients = [n for n, v in zip(sizes, held, strict=True) if v in self.differentiable]
        at_a_time = max([part_bytes(sum(of_gradients)), *of_gradients])
        return sum(sizes) + sum(of_gradients) + at_a_time

    def _passed_on(self) -> frozenset[str]:
        """Names of what has a gradient that autograd casts at once: casts before a call."""
        before = (*self.graph.before, *self.lowered.before)
        casts = {e.results[0]: e.args[0] for e in before if e.name == "_to_copy"}
        return frozenset(
            name
            for name, given in self.lowered.given.items()
            if (of := casts.get(given.value)) is not None and of.dtype != given.value.dtype
        )

    def _outputs_of_outputs(self) -> dict[int, frozenset[str]]:
        """Places of outputs that forward reads further: what the network makes of each."""
        further = {
            at: self._made_of(of)
            for at, of in enumerate(self.graph.outputs)
            if self.pausing is not None and isinstance(of, Value) and of.kind == "made"
        }
        return {at: later for at, later in further.items() if later}

    def _handed_and_read_further(self) -> dict[Value, tuple[Any, frozenset[str]]]:
        """Collect what others are made of, what holds it, and what the network makes of it.

        That are outputs that the network or PyTorch reads further, and what PyTorch is handed.
        """
        to, outputs = self.lowered, self.graph.outputs
        none = frozenset[str]()
        found: dict[Value, tuple[Any, frozenset[str]]]
        found = {of: (held, none) for of, held in to.handed.items()}
        behind = (value for each in to.after for value in each.results if value in outputs)
        found |= {of: (of, none) for of in behind if of is not None}
        found |= {outputs[at]: (to.results[at], names) for at, names in self._read_further.items()}
        return found

    def _in_order(self) -> tuple[Operation | Value | Write, ...]:
        """List PyTorch's results behind the network, and what others are made of, in order.

        So are arguments that are changed in place. One of them may be made of any before it.
        """
        to, graph = self.lowered, self.graph
        place = {each: at for at, each in enumerate(graph.operations)}
        made = {value: at for each, at in place.items() for value in each.results}
        last = len(place)  # effects make nothing
        steps = list[tuple[int, Operation | Value | Write]]()
        there = dict[Value | None, int]()  # what is made behind the network
        for each in to.after:
            makes = [made[value] for value in each.results if value in made]
            first = place.get(each, min(makes, default=last))  # a rewrite may have added it
            at_least = max([first, *(there[value] for value in each.reads if value in there)])
            there |= dict.fromkeys(each.results, at_least)
            steps.append((at_least, each))
        made |= there
        steps += [(made.get(of, -1), of) for of in self._read_first]
        if self.pausing is not None:
            writes = [write for write in graph.writes if write.target.kind == "input"]
            steps += [(made.get(write.value, -1), write) for write in writes]
        steps.sort(key=lambda step: step[0])  # of one place, what makes a value comes before it
        return tuple(step for _, step in steps)

    def _made_of(self, value: Value) -> frozenset[str]:
        """The outputs of the network whose gradients reach a value."""
        to, graph = self.lowered, self.graph
        held = [*zip(graph.outputs, to.results, strict=True), *to.handed.items()]
        names = {of: e.tensor.name for of, e in held if isinstance(e, LoweredValue)}
        # what PyTorch makes behind the network, the network makes, too, where it is read further
        return frozenset(names[each] for each in graph.made_of(value) if each in names)

    def _values_that_are_copies(self) -> set[Value]:
        """Those that are one tensor with others in the network, and lie apart in PyTorch."""
        to, memories = self.lowered, self.graph.memories
        first, copies = dict[str, Any](), set[Value]()
        for of, held in (*to.handed.items(), *zip(self.graph.outputs, to.results, strict=True)):
            if isinstance(held, LoweredValue):
                memory = memories.get(of, of)
                if first.setdefault(held.tensor.name, memory) != memory:
                    copies.add(of)
        return copies

    def _dtype_of(self, name: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.lowered.network.graph.tensors[name].dtype)
        return found

    @property
    def step(self) -> TwoPartStep | ForwardStep:
        """Step that runs the network.

        Raises
        ------
        UnsupportedModelError
            If there is none: the network computes no output.
        """
        found = self.pausing or self.forward
        if found is None:
            raise UnsupportedModelError(
                "there is nothing to plan: each output is an input, a view or a copy of one, or "
                "depends on none. limit and infer run the model as it is"
            )
        return found

    @property
    def plan(self) -> NetworkPlan | None:
        """Plan of the last call."""
        step = self.pausing or self.forward
        return None if step is None or step.plan is None else self.noted(step.plan)

    def noted(self, plan: NetworkPlan) -> NetworkPlan:
        """The plan with notes about memory the library does not own."""
        return replace(plan, notes=notes(self.graph, self.lowered, self.differentiable))

    def __call__(
        self, tensors: Sequence[Any], out: Any = None, late_state: LateState | None = None
    ) -> list[Any]:
        """Run a call.

        Parameters
        ----------
        tensors : sequence
            Tensors and arrays for what the graph is given, in order.
        out : array, optional
            Where the one output of forward alone is to be written.
        late_state : LateState, optional
            What backward reads by names.

        Returns
        -------
        list
            What the graph returns.
        """
        with without_autocast(), at(self.device):  # the graph has its casts
            if not self.draws:
                return self._called(tensors, out, late_state)
            states = torch.get_rng_state(), _state_of(self.device)
            try:
                return self._called(tensors, out, late_state)
            except PlanInfeasibleError:  # nothing has run: who tries again draws the same numbers
                torch.set_rng_state(states[0])
                if states[1] is not None:
                    torch.cuda.set_rng_state(states[1], self.device)
                raise

    def _called(self, tensors: Sequence[Any], out: Any, late_state: LateState | None) -> list[Any]:
        known = self._known(tensors)
        # DDP sends gradients while others are made: they come as they are final
        together = self._nodes_behind if self._pause_bytes is None else None
        values = run_before(self.graph, self.lowered.before, known, together=together)
        check_targets(self._targets, values)
        outputs, changed, request = self._run(values, out)
        made, read = dict[Value, Any](), dict[str, list[torch.Tensor]]()
        with_history = set[Write]()
        for value in self.graph.inputs if self.lowered.after else ():
            values[value] = tensor_of(values[value])
        with outcome() as of_this:
            for of in self._behind:
                if isinstance(of, Operation):
                    run_operation(of, values)
                    continue
                if isinstance(of, Write):
                    target = tensor_of(values[of.target])
                    if not follows(of, target):
                        continue
                    write_history(target, values[of.value], of_this)
                    with_history.add(of)
                    found, later = target, self._changed[of.target]
                else:
                    held, later = self._read_first[of]
                    # others are made of what a user gets: hooks see the gradients of both
                    found = values[of] = made[of] = self._result(held, of, values, outputs, read)
                    later = later if takes_hidden_gradients(found) else frozenset()
                for name in later:
                    read.setdefault(name, []).append(found)
            results: list[Any] = []
            asked = zip(self.graph.same, self.lowered.results, self.graph.outputs, strict=True)
            for first, lowered, of in asked:
                if first < len(results):  # what is one tensor is handed out as one
                    results.append(results[first])
                elif isinstance(lowered, Number):
                    results.append(lowered.of(tensors))
                elif isinstance(of, Value) and of in made:
                    results.append(made[of])
                else:
                    results.append(self._result(lowered, of, values, outputs, read))
                if isinstance(of, Value) and of in self.graph.without_history:
                    results[-1] = without_history(results[-1], is_a_view=of in self.graph.views)
            if request is not None:
                watched = [(results[at], later) for at, later in self._read_further.items()]
                watched += [(tensor_of(values[of]), later) for of, later in self._changed.items()]
                request.watch(watched)
                request.late_state = late_state
            with interrupts.defer_signals(), torch.no_grad():
                interrupts.hear()
                # the call has succeeded: from here on, nothing is left half done
                if changed:
                    torch._foreach_copy_([*changed.values()], [self._copies[n] for n in changed])
                leave(self.graph.writes, values, with_history)
                if request is not None and self._late:
                    request.late_tensors = LateTensors(self._read_late(values, results))
        return results

    def _read_late(
        self, values: Mapping[Value, Any], results: Sequence[Any]
    ) -> Iterator[tuple[LateTensor, torch.Tensor]]:
        for place, late in self._late.items():
            tensor = results[place] if isinstance(place, int) else values[place]
            if isinstance(tensor, torch.Tensor):
                yield late, tensor

    def lasting(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Inputs of the network that depend on no argument, by its names for them.

        Parameters
        ----------
        tensors : sequence
            As of a call; what is there for arguments is not read.
        """
        arguments = set(self.graph.inputs)
        known = {v: each for v, each in self._known(tensors).items() if v not in arguments}
        before = [each for each in self.lowered.before if arguments.isdisjoint(each.reads)]
        with without_autocast():
            values = run_before(self.graph, before, known)
        inputs = self.lowered.given.items()
        return self._arrays(values, {name: each for name, each in inputs if each.value in values})

    def _arrays(
        self, found: Mapping[Value, Any], wanted: Mapping[str, GivenInputs]
    ) -> dict[str, Any]:
        """The inputs, in the shapes and dtypes in which the network takes them."""
        arrays = {name: _as_given(found, given) for name, given in wanted.items()}
        for name, dtype in self._held_as.items():
            if name in arrays:
                arrays[name] = arrays[name].to(dtype)
        return arrays

    def in_blocks(self, tensors: Sequence[Any], out: Any) -> bool:
        """Run forward block by block, where that takes less time than as a whole.

        Parameters
        ----------
        tensors, out
            As of a call.

        Returns
        -------
        bool
            Whether it has run.
        """
        to = self.lowered
        with without_autocast():
            values = run_before(self.graph, to.before, self._known(tensors))
        (held, *others) = to.results or (None,)
        if (
            not isinstance(held, LoweredValue)
            or not held.is_plain
            or others
            or to.after
            or to.drawn
            or self.graph.writes
        ):
            return False
        if self.forward is None or self.forward.changed:
            return False
        arrays = self._arrays(values, to.given)
        with at(self.device):
            device = get_device(current().device)
            inputs = {name: arrays[name] for name in to.inputs}
            _, lasting = hand_over(arrays, to.inputs, self._wrapping)
            step = self.forward.phases
            for stored in (to.network.parameters, to.network.running):  # constants of operations
                lasting |= {n: stored[n] for n in stored if n in step.touched and n not in lasting}
            refs = {
                name: each if isinstance(each, ArrayRef) else wrap_regional(each, device, name=name)
                for name, each in {**inputs, **lasting}.items()
            }
            result = wrap_regional(out, device, name="out", written=True)
            check_given(to.outputs[0], result)
            blocks = self._blocks(step, refs, result)
            if blocks is not None:
                blocks.run(inputs, out, lasting, making_there(self.device, ()))
        return blocks is not None

    def _blocks(
        self, step: Step, refs: Mapping[str, ArrayRef], out: ArrayRef
    ) -> TiledInference | None:
        """The step planned in blocks; None where it is to run as a whole."""
        resident = [e.spec.nbytes for e in (*refs.values(), out) if e.spec.placement == "device"]
        under = TilingConstraints(self._memory_limit, refs, None, -sum(resident))
        lying = tuple((name, each.spec) for name, each in refs.items()), out.spec
        constraints = under.constraints(step)
        key = current(), constraints.target.room_bytes, lying
        if self._in_blocks is None or self._in_blocks[0] != key:
            plan = plan_tiles(step, under)
            blocks = TiledInference(step, plan.cuts, self._memory_limit, counts_given=True)
            self._in_blocks = key, blocks if plan.count > 1 else None
        return self._in_blocks[1]

    def _known(self, tensors: Sequence[Any]) -> dict[Value, Any]:
        """The tensors of a call, each by the value that it is given for."""
        return dict(zip(self.graph.given, tensors, strict=True))

    def _run(
        self, known: Mapping[Value, Any], out: Any = None
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Request | None]:
        """Run the network.

        Returns its outputs by name, the buffers that are to change, and what autograd runs.
        """
        to, net = self.lowered, self.lowered.network
        arrays = self._arrays(known, to.given)
        seeds = {
            name: int(torch.randint(2**53, (), dtype=torch.int64, device="cpu"))
            for name in to.drawn
        }
        step = self.pausing or self.forward
        running = {
            n: known[to.running[n].value] for n in (step.changed if step else ()) if n in to.running
        }
        arrays |= self._copied(running)
        # what changes when the call has succeeded is read again in backward, as it was
        targets = [*running.values(), *(known[write.target] for write in self.graph.writes)]
        memories = {memory_of(each) for each in targets}
        for name in (*to.inputs, *to.parameters) if memories else ():
            if memory_of(arrays[name]) in memories:
                arrays[name] = tensor_of(arrays[name]).clone()
        changing = (*to.drawn, *running)
        results: tuple[torch.Tensor, ...] = ()
        request: Request | None = None
        if self.pausing is not None:
            wanted = [name for name in net.wanted if name in arrays]
            tracked = [arrays.pop(name) for name in wanted]
            request = Request(
                self.pausing,
                self._pausing,
                wanted,
                arrays,
                to.inputs,
                self._places,
                self._wrapping,
                changing,
                seeds,
                self._reached,
                self._told,
            )
            results = differentiable_outputs(request, tracked)
        elif self.forward is not None:
            arrays |= {name: state_of(seed, self.device) for name, seed in seeds.items()}
            inputs, lasting = hand_over(arrays, to.inputs, self._wrapping)
            lent, outputs = LentPlaces(self._places), self.forward.outputs
            written = lent.results(outputs) if out is None else {outputs[0].name: out}
            making = making_there(self.device, changing)
            ran = self.forward.run(inputs, written, lasting, making)
            results = tuple(lent.apart(tensor_of(each)) for each in ran.outputs)
            lent.give_back()
        named = {y.name: each for y, each in zip(to.outputs, results, strict=True)}
        return named, running, request

    def _told(self, name: str) -> str:
        """Name to the user what the network is given by that name."""
        given = self.lowered.given.get(name)
        return name if given is None else self.graph.told_of(given.value)

    def _copied(self, running: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Running statistics in tensors of our own, which the step may change."""
        copies = self._copies
        with torch.inference_mode(False), torch.no_grad():
            for name, buffer in running.items():
                dtype = self._dtype_of(name)
                if name not in copies or not _alike(copies[name], buffer, dtype):
                    copies[name] = torch.empty_like(buffer, dtype=dtype)
            if running:
                torch._foreach_copy_([copies[name] for name in running], [*running.values()])
        return {name: copies[name] for name in running}

    def _result(
        self,
        held: Any,
        of: Any,
        values: Mapping[Value, Any],
        outputs: Mapping[str, Any],
        read: Mapping[str, Sequence[torch.Tensor]],
    ) -> Any:
        """A result of the model, made of the network's outputs, which gradients go through.

        By each of those outputs, `read` has the results that it is made of.
        """
        if isinstance(of, Value) and of in values:
            # what shows it is to show this very tensor, and its hooks come before a user's
            is_handed = of in self.lowered.handed or of in self._hooked or of in self._changed
            return values[of] if is_handed else _for_hooks(values[of])
        if not isinstance(held, LoweredValue):
            return _for_hooks(values[held]) if isinstance(held, Value) else held
        y, of_these = outputs[held.tensor.name], read.get(held.tensor.name, ())
        if of in self._copies_of_others:
            y = y.clone()
        if not held.axes:  # a loss: one number, of float64
            return unhooked_alias(y.reshape(()).to(of.dtype), of_these, of_ours=True)
        # a plan may choose another memory order than PyTorch, and `view` wants its own
        ordered = (y if held.is_plain else y.permute(held.axes)).contiguous()
        return unhooked_alias(ordered, of_these, of_ours=True)


def _state_of(device: torch.device) -> torch.Tensor | None:
    """The state of random numbers of a card; None of the host."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _told(graph: Graph, place: Value | int) -> str:
    """Name a tensor to the user: an output, or what forward keeps, has no name."""
    return "a tensor that forward made" if isinstance(place, int) else graph.told_of(place)


def without_history(tensor: torch.Tensor, *, is_a_view: bool = True) -> torch.Tensor:
    """The tensor as a view that `no_grad` made, or of one: it asks for a gradient, hands none on.

    >>> y = without_history(torch.ones(2))
    >>> y.requires_grad, y.is_leaf
    (True, True)
    """
    with torch.no_grad():
        view = tensor.detach().requires_grad_().view_as(tensor)
    if is_a_view:
        return view
    with torch.enable_grad():
        return view.view_as(view)


def _for_hooks(result: Any) -> Any:
    """A result whose hooks autograd calls where it has a gradient, and nowhere else."""
    return unhooked_alias(result) if isinstance(result, torch.Tensor) else result


def _as_given(found: Mapping[Value, Any], given: GivenInputs) -> Any:
    tensor = found[given.value]
    return tensor if tuple(tensor.shape) == given.shape else tensor.reshape(given.shape)


def _alike(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """True if one is as the other is, but of a dtype of its own."""
    return (one.shape, one.dtype, one.device) == (other.shape, dtype, other.device)


def _differentiable(graph: Graph) -> frozenset[Value]:
    """Values that are given or made before, which autograd follows."""
    made = (value for operation in graph.before for value in operation.results)
    return frozenset(v for v in (*graph.given, *made) if v is not None and v.requires_grad)


def _device_of(given: Sequence[Value], examples: Sequence[Any]) -> torch.device:
    pairs = sorted(zip(given, examples, strict=True), key=lambda pair: pair[0].kind == "input")
    found = (each.device for _, each in pairs if isinstance(each, torch.Tensor))
    return next(found, torch.device("cpu"))
