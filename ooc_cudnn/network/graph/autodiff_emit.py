"""Emission of phases by nodes: forward ones, then backward ones with gradients that add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ooc_cudnn.network.ir.step import Phase
from ooc_cudnn.network.ir.tensor import (
    Origin,
    Place,
    Tensor,
    channels_of,
    extents,
    meet,
    place_of,
    same_but_for_ones,
    whole_region,
)
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.call import Operand, Region, TiledCall
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.elementwise.activation import Activation
from ooc_cudnn.operations.elementwise.binary import AdditionCall
from ooc_cudnn.settings_table import Settings


def identity(tensor: Tensor) -> Chain:
    """The call that copies a tensor."""
    return Chain((Activation(tensor.shape, "identity", 0.0, tensor.dtype),), tensor.dtype)


class _Emit:
    """Base of both directions: phases that become more, tensors that become known."""

    is_backward = False

    def __init__(self, settings: Settings, wanted: frozenset[str], *, is_training: bool) -> None:
        self.settings, self.is_training, self._wanted = settings, is_training, wanted
        self.tensors: dict[str, Tensor] = {}
        self.phases: list[Phase] = []
        self.node = ""

    def wants(self, tensor: Tensor) -> bool:
        """True if a gradient of a tensor will be made in this step."""
        return tensor.name in self._wanted

    def phase(self, what: str, call: TiledCall, **binds: Tensor) -> None:
        """Emit a phase that binds every operand of a call to a tensor, of its shape and dtype.

        A shape may differ in axes of extent 1: then a view of the tensor is bound.
        """
        names = {name: self._bound(operand, binds[name]) for name, operand in call.operands.items()}
        name = f"{self.node} {what}"
        if len(names) != len(binds):
            surplus = sorted(set(binds) - set(names))
            raise ValueError(f"{name}: the call has no operand {', '.join(surplus)}")
        self.phases.append(Phase(name, call, names, self.node, self.is_backward))

    def _bound(self, operand: Operand, tensor: Tensor) -> str:
        shape, dtype, _ = operand
        tensor = self.known(tensor)
        if tensor.dtype != dtype:
            raise TypeError(f"{self.node}: {tensor.name} is {tensor.dtype}, the call takes {dtype}")
        return tensor.name if tensor.shape == shape else self.view(tensor, shape).name

    def place(self, name: str) -> Place:
        """Return where a tensor lies, as far as that is known yet."""
        return place_of(name, self.tensors)

    def known(self, tensor: Tensor) -> Tensor:
        """The tensor as it is known in this step, where it may be a view of another one."""
        known = self.tensors.setdefault(tensor.name, tensor)
        if (known.kind, known.shape, known.dtype) != (tensor.kind, tensor.shape, tensor.dtype):
            raise ValueError(
                f"{self.node}: {tensor.name!r} names both a {known.kind} and a {tensor.kind}: give "
                "the node another name"
            )
        return known

    def view(self, tensor: Tensor, shape: Shape, region: Region = (), name: str = "") -> Tensor:
        """A region of a tensor (all of it when left out) as a tensor of its own.

        `shape` is the region's, with more or fewer axes of extent 1.
        """
        region = region or whole_region(tensor.shape)
        if not same_but_for_ones(extents(region), shape):
            raise ValueError(
                f"{self.node}: a region of {extents(region)} of {tensor.name} has not shape {shape}"
            )
        name = name or f"{tensor.name} as {'x'.join(map(str, shape))}"
        alias = Tensor(name, shape, tensor.dtype, tensor.kind, self.known(tensor).name, region)
        return self.known(alias)

    def copy(self, what: str, source: Tensor, target: Tensor) -> None:
        """Emit a phase that copies a tensor to another one of its shape."""
        self.phase(what, identity(source), x=source, y=target)


class Forward(_Emit):
    """Forward phases that nodes emit.

    Attributes
    ----------
    settings : Settings
        Those in force: `allow_tf32`, `deterministic`.
    is_training : bool
        Whether the step is one of training: batch statistics, dropout.
    """

    def saved(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """A small tensor that forward makes for backward: "mean" of "norm_1" is "norm_1.mean".

        Backward gets the same one by the same call.
        """
        return self.known(Tensor(f"{self.node}.{name}", shape, dtype, "statistics"))

    def alias(self, y: Tensor, x: Tensor, region: Region = ()) -> None:
        """Make y a view of x (or of a region of it), and emit nothing."""
        region = region or whole_region(x.shape)
        self.tensors[y.name] = replace(y, of=self.known(x).name, region=region)

    def lay_into(self, part: Tensor, target: Tensor, region: Region) -> bool:
        """Make a tensor a view of a region of another one; False if its maker cannot write there.

        A map can be laid into one other, and what is given or lives between steps into none.
        """
        base, inner = place_of(self.known(part).name, self.tensors)
        tensor = self.tensors[base]
        target_base = place_of(self.known(target).name, self.tensors).base
        if tensor.kind != "map" or inner != whole_region(tensor.shape) or base == target_base:
            return False
        self.tensors[base] = replace(tensor, of=target.name, region=region)
        return True


class Backward(_Emit):
    """Backward phases that nodes emit, and where each gradient goes.

    The first phase that makes a gradient writes it, later ones add to it in place (beta = 1). What
    nobody wants is not made. A gradient that is also another tensor's (both operands of a sum have
    its own) is never changed while somebody has yet to read it: whoever adds makes a new one.
    """

    is_backward = True

    def __init__(self, forward: Forward, seeds: Iterable[Tensor]) -> None:
        super().__init__(forward.settings, forward._wanted, is_training=forward.is_training)
        self.tensors = forward.tensors
        self.seeds: dict[str, str] = {}
        self._gradients: dict[str, Tensor] = {}
        #: Channels of a tensor that its gradient, made part by part, has nothing in yet.
        self._missing: dict[str, list[Range]] = {}
        self._zeros: dict[str, Tensor] = {}
        #: Of each tensor whose gradient somebody has yet to read, where that lies.
        self._unread: dict[str, Place] = {}
        for output in seeds:
            seed = self._new(output)
            self.seeds[output.name] = seed.name
            self._holds(output, seed)
            self._unread[f"given {seed.name}"] = Place(seed.name, whole_region(seed.shape))

    def saved(self, name: str, shape: Shape, dtype: str) -> Tensor:
        """Return what forward saved under that name."""
        return self.known(Tensor(f"{self.node}.{name}", shape, dtype, "statistics"))

    def gradient_of(self, tensor: Tensor) -> Tensor | None:
        """The gradient of a tensor as far as it is made; None if there is none."""
        self._fill(tensor)
        return self._gradients.get(tensor.name)

    def done_with(self, tensor: Tensor) -> None:
        """Nobody reads the gradient of a tensor any more."""
        self._unread.pop(tensor.name, None)

    def gradient(
        self, what: str, call: TiledCall, reads: Mapping[str, Tensor], **makes: Tensor
    ) -> None:
        """Emit a phase that makes gradients, or nothing if nobody wants any of them.

        Parameters
        ----------
        what : str
            What is done, for the phase's name: "filter gradient".
        call : TiledCall
            It must honour ``beta``, at least of its first result.
        reads : mapping
            The operands that the call reads, and the tensors they are; results that others read,
            too (sums that are made beside).
        makes : Tensor
            Of each result of the call (``dx=``, ``dw=``): the tensor whose gradient it is. A result
            that is not named, or not wanted, is thrown away.
        """
        wanted = {result: of for result, of in makes.items() if self.wants(of)}
        if not wanted:
            return
        for of in wanted.values():
            self._fill(of)
        adding = replace(call, beta=1.0)
        scaled = {result for result in call.results if adding.scaling(result)[1] == 1}
        apart = len({of.name for of in wanted.values()}) == len(wanted)
        adds = (
            bool(scaled)
            and apart
            and all(result in wanted and self._may_change(wanted[result]) for result in scaled)
        )
        binds, later = dict(reads), list[tuple[Tensor, Tensor]]()
        for result in call.results:
            if result in binds:
                continue
            if result not in wanted:
                shape, dtype, _ = call.operands[result]
                name = f"{self.node}.{what}.{result}"
                binds[result] = self.known(Tensor(self._free(name), shape, dtype, "gradient"))
            elif adds and result in scaled:
                binds[result] = self._gradients[wanted[result].name]
            elif wanted[result].name not in self._gradients:
                binds[result] = self._new(wanted[result])
                self._holds(wanted[result], binds[result])
            else:
                binds[result] = self._new(wanted[result])
                later.append((wanted[result], binds[result]))
        self.phase(what, adding if adds else call, **binds)
        for of, addend in later:
            self._add(of, addend, made_here=True)

    def hand_on(self, dy: Tensor, x: Tensor, region: Region = ()) -> None:
        """Make dy (or a region of it) the gradient of x without a copy, or add it to what x has."""
        if not self.wants(x):
            return
        if region or dy.shape != x.shape:
            dy = self.view(dy, x.shape, region, self._free(f"{x.name}.gradient"))
        self._fill(x)
        if x.name in self._gradients:
            self._add(x, dy)
        else:
            self._holds(x, dy)

    def hand_channels(self, dy: Tensor, x: Tensor, channels: Range, zero: Tensor) -> None:
        """Make dy the gradient of some channels of x, or add it to what these have.

        Whoever makes dy writes it there. Channels that nobody hands a gradient get `zero`, (1,).
        """
        if not self.wants(x):
            return
        if x.name not in self._gradients:
            self._holds(x, self._new(x))
            self._missing[x.name] = [(0, x.shape[1])]
            self._zeros[x.name] = zero
        missing = self._missing.get(x.name, [])
        around = next((r for r in missing if r[0] <= channels[0] and channels[1] <= r[1]), None)
        if around is not None:
            region = channels_of(x.shape, channels)
            if not self._lay(dy, self._gradients[x.name], region):
                self.copy(f"copy of {dy.name}", dy, self._part(x, region))
            missing.remove(around)
            rest = ((around[0], channels[0]), (channels[1], around[1]))
            missing += [(start, stop) for start, stop in rest if start < stop]
            return
        self.add_part(dy, x, channels_of(x.shape, channels))

    def add_part(self, dy: Tensor, x: Tensor, region: Region) -> None:
        """Add dy to a region of the gradient that x has."""
        if not self.wants(x):
            return
        self._fill(x)
        if not self._may_change(x):
            gradient = self._new(x)
            self.copy(f"copy of {x.name}.gradient", self._gradients[x.name], gradient)
            self._holds(x, gradient)
        call = AdditionCall(dy.shape, dy.shape, dy.dtype)
        part = self._part(x, region)
        self.phase(f"sum of {x.name}.gradient", call, y=part, b=dy)

    def _fill(self, x: Tensor) -> None:
        """Write zeros to the channels of a gradient that nobody has made a part of."""
        for channels in self._missing.pop(x.name, ()):
            part = self._part(x, channels_of(x.shape, channels))
            call = AdditionCall(part.shape, (1,) * len(part.shape), x.dtype, alpha_y=0.0)
            self.phase(f"zeros of {x.name}.gradient", call, y=part, b=self._zeros[x.name])

    def _part(self, x: Tensor, region: Region) -> Tensor:
        """A region of the gradient of x."""
        name = self._free(f"{x.name}.gradient")
        return self.view(self._gradients[x.name], extents(region), region, name)

    def _lay(self, part: Tensor, target: Tensor, region: Region) -> bool:
        """Make a gradient a view of a region of another one; False if it is its maker's own."""
        base, inner = place_of(part.name, self.tensors)
        tensor = self.tensors[base]
        if (
            tensor.kind != "gradient"
            or inner != whole_region(tensor.shape)
            or tensor.shape != part.shape
            or base in self.seeds.values()
            or base == place_of(target.name, self.tensors).base
        ):
            return False
        self.tensors[base] = replace(tensor, of=target.name, region=region)
        for name, gradient in self._gradients.items():
            if name in self._unread:
                self._unread[name] = place_of(gradient.name, self.tensors)
        return True

    def _add(self, of: Tensor, more: Tensor, *, made_here: bool = False) -> None:
        """Add `more` to the gradient of a tensor; in place on either, if that may change."""
        old = self._gradients[of.name]
        what = f"sum of {of.name}.gradient"
        if self._may_change(of):
            target, other, out = old, more, None
        elif made_here:
            target, other, out = more, old, None
        else:
            target, other, out = old, more, self._new(of)
        shape = of.shape if len(of.shape) > 1 else (1, *of.shape)
        call = AdditionCall(shape, shape, of.dtype, apart=out is not None)
        if out is None:
            self.phase(what, call, y=target, b=other)
        else:
            self.phase(what, call, y=target, b=other, out=out)
        self._holds(of, out or target)

    def _holds(self, of: Tensor, gradient: Tensor) -> None:
        self._gradients[of.name] = gradient
        self._unread[of.name] = place_of(gradient.name, self.tensors)

    def _may_change(self, of: Tensor) -> bool:
        """True if a tensor has a gradient, and that may be added to where it lies.

        It may not while the same bytes are another tensor's gradient, which somebody has yet to
        read.
        """
        if of.name not in self._gradients:
            return False
        base, region = place_of(self._gradients[of.name].name, self.tensors)
        return not any(
            place.base == base and meet(place.region, region)
            for name, place in self._unread.items()
            if name != of.name
        )

    def _new(self, of: Tensor) -> Tensor:
        name, origin = self._free(f"{of.name}.gradient"), Origin(gradient_of=of.name)
        return self.known(Tensor(name, of.shape, of.dtype, "gradient", origin=origin))

    def _free(self, name: str) -> str:
        """The name, or with the first number that makes it a new one."""
        if name not in self.tensors:
            return name
        return next(n for at in range(2, 2**30) if (n := f"{name}.{at}") not in self.tensors)
