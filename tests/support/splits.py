"""Every way to cut every function: the table of tiny cases, and what runs one under one split.

The host tests and those on the card share both. A case is a `Call` (function_cases.py), which knows
what its results must be and by how much rounding may carry them from there.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np

from ooc_cudnn.functions.call.plan_api import describe_call
from ooc_cudnn.operations.core.call import SWEEP
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec
from tests.support import calls, chains, normalization
from tests.support.calls import POOLING_MODES, ConvolutionCase, FusedCase, PoolingCase
from tests.support.chains import (
    act,
    adapt,
    bias,
    conv,
    layer,
    norm,
    pool,
    resize,
    respond,
    surround,
    tensor,
    transposed,
)
from tests.support.forced import Forced

#: Depth of the rings, and whether parameters are kept whole.
RINGS = ((1, False), (2, True), (3, False))
LAYOUTS = ("channels_first", "channels_last")

GEOMETRIES = {
    "1d": ((2, 2, 7), (3, 2, 3), {"padding": ((2, 0),), "stride": 2}),
    "2d": ((2, 3, 6, 4), (2, 3, 3, 3), {"padding": 1}),
    "asymmetric": ((2, 2, 5, 4), (3, 2, 3, 2), {"padding": ((0, 2), (1, 0))}),
    "padding beyond window": ((2, 2, 3, 2), (2, 2, 2, 2), {"padding": ((4, 5), 3)}),
    "pieces of padding": ((2, 2, 2, 3), (2, 2, 1, 1), {"padding": 4, "stride": 3}),
    "stride": ((2, 2, 9, 5), (2, 2, 3, 3), {"padding": 1, "stride": (2, 3)}),
    "stride beyond window": ((2, 2, 11, 5), (3, 2, 2, 1),
                             {"padding": ((1, 0), 0), "stride": (4, 3)}),
    "ragged": ((2, 2, 9, 6), (2, 2, 3, 3), {"stride": (4, 2)}),
    "dilation": ((2, 2, 8, 6), (2, 2, 3, 2), {"padding": (3, 1), "dilation": (3, 2)}),
    "everything": ((2, 4, 9, 5), (4, 2, 2, 3),
                   {"padding": ((3, 1), (0, 2)), "stride": (2, 1), "dilation": (3, 2),
                    "groups": 2}),
    "groups": ((1, 6, 4, 3), (4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((2, 3, 5, 3), (6, 1, 3, 3), {"padding": 1, "groups": 3}),
    "3d": ((2, 2, 4, 3, 3), (2, 2, 2, 3, 2), {"padding": ((1, 0), 1, (0, 1)), "stride": (1, 2, 1)}),
}  # fmt: skip
POOLINGS = {
    "1d": ((2, 2, 9), {"window": 3, "stride": 2, "padding": ((2, 1),)}),
    "2d": ((2, 3, 8, 6), {"window": 2}),
    "overlapping": ((2, 2, 9, 6), {"window": 3, "stride": 2, "padding": 1}),
    "stride 1": ((2, 2, 6, 4), {"window": 3, "stride": 1, "padding": ((2, 0), (1, 2))}),
    "tall": ((2, 2, 9, 3), {"window": (7, 2), "stride": (1, 1), "padding": (3, 1)}),
    "ragged": ((2, 2, 11, 7), {"window": (3, 4)}),
    "stride beyond window": ((2, 2, 12, 5), {"window": (2, 1), "stride": (5, 3)}),
    "3d": ((1, 2, 5, 4, 3), {"window": 2, "stride": (2, 1, 1)}),
}
FUSED = {
    "2d": ((2, 3, 8, 4), (2, 3, 3, 3), {"padding": 1}, {"window": 2}),
    "overlapping": ((1, 2, 9, 5), (3, 2, 3, 3), {"padding": ((2, 0), 1)},
                    {"window": 3, "pooling_stride": 2, "pooling_padding": 1}),
    "average": ((1, 2, 9, 5), (2, 2, 3, 2), {"stride": 2, "padding": 2},
                {"window": 3, "pooling_stride": 1, "pooling_padding": 1,
                 "mode": "average_exclude_padding"}),
    "groups": ((1, 4, 6, 4), (4, 2, 3, 3), {"padding": 1, "groups": 2}, {"window": 2}),
}  # fmt: skip
CHAINS = {
    "conv-bias-relu-conv-pool-conv": (
        (2, 2, 10, 6),
        (conv(3, 3, padding=1), bias(), act(), conv(2, 3, padding=1), pool(2),
         conv(2, 3, padding=1)),
    ),
    "vgg of three blocks": (
        (1, 2, 32, 8),
        (conv(2, 3, padding=1), bias(), act(), pool(2), conv(3, 3, padding=1), bias(), act(),
         conv(3, 3, padding=1), bias(), act(), pool(2), conv(3, 3, padding=1), bias(), act(),
         pool(2)),
    ),
    "borders": (
        (2, 2, 6, 5),
        (conv(2, 3, padding=2), act("sigmoid"), conv(3, 5, padding=((4, 1), (0, 3))), bias(),
         conv(2, 3, padding=2)),
    ),
    "overlapping pooling": (
        (2, 2, 13, 5),
        (conv(2, 3, padding=1), act("leaky_relu", 3.0), pool(3, stride=2, padding=1),
         conv(2, 3, padding=1)),
    ),
    "strided and dilated": (
        (1, 2, 23, 7),
        (conv(2, 3, padding=1, stride=2), conv(2, 3, padding=3, dilation=3), act(),
         conv(2, (2, 3), stride=(3, 2), padding=((0, 1), 1)), conv(2, 2, dilation=2, padding=2)),
    ),
    "a halo above rows that are skipped": (
        (2, 2, 12, 4), (act("tanh"), conv(3, 3, padding=1), conv(2, 1, stride=2))
    ),
    "a halo above rows that pooling skips": (
        (2, 2, 13, 4), (conv(3, 3, padding=1), conv(2, 5, padding=2), pool(1, stride=(2, 1)))
    ),
    "windows that see padding alone": (
        (2, 2, 3, 4),
        (conv(3, 1, padding=5, stride=2), act("sigmoid"), conv(2, 1, padding=4), bias()),
    ),
    "elementwise": ((2, 3, 5, 4), (bias(), act("tanh"), norm(), tensor("multiply", "nh"))),
    "op tensors in a halo": (
        (2, 2, 7, 4),
        (conv(3, 3, padding=1), tensor("add", "nchw"), conv(3, 3, padding=1),
         tensor("maximum", "h"), conv(2, 3, padding=1), tensor("multiply", "cw")),
    ),
    "residual after one convolution": (
        (2, 3, 5, 4), (conv(3, 3, padding=1), norm(), tensor("add", "nchw"), act())
    ),
    "up and down": (
        (1, 2, 5, 4),
        (conv(3, 3, padding=1), resize(scale_factor=2, mode="linear"), act(),
         conv(2, 3, padding=1), transposed(3, 3, stride=2, padding=1, output_padding=1), bias(),
         resize((7, 5))),
    ),
    "transposed with gaps": (
        (2, 4, 4, 3),
        (act("tanh"), transposed(4, 2, stride=3, dilation=2, padding=1, groups=2),
         surround(((2, -1), (0, 3)), 0.5), transposed(2, 1, stride=2), conv(2, 3, stride=2)),
    ),
    "adaptive pooling": (
        (2, 3, 9, 5), (surround(((1, 0), (2, 2)), -1.0), adapt((4, 3)), bias(), adapt(2, "max"))
    ),
    "a response across channels": (
        (2, 3, 7, 4), (conv(4, 3, padding=1), act(), respond(3, alpha=0.2), pool(3, stride=2))
    ),
    "layer normalization of each site": (
        (2, 3, 7, 4), (conv(4, 3, padding=1), layer(), act("gelu"), conv(2, 3, padding=1), layer())
    ),
    "resized in three axes": (
        (1, 2, 3, 4, 3),
        (resize((6, 3, 5), mode="linear", align_corners=True), conv(2, 3, padding=1)),
    ),
    "pooling twice": ((2, 2, 12, 5), (pool(3, stride=2, padding=1), pool(2, stride=1))),
    "one convolution and pooling": ((2, 3, 8, 4), (conv(3, 3, padding=1), bias(), act(), pool(2))),
}  # fmt: skip
SCALE = {"alpha": 2.0, "beta": -0.25}
#: alpha and beta as the makers that take a dtype first have them.
SCALED = ("float32", 2.0, -0.25)


def makers():
    """Name -> maker of a call, in plain and in scaled form in turn."""
    found = {}
    for at, (name, (x, w, geometry)) in enumerate(GEOMETRIES.items()):
        case = ConvolutionCase(name, x, w, geometry, **(SCALE if at % 2 else {}))
        fused = FusedCase(name, x, w, geometry, **(SCALE if at % 2 else {}))
        for which in ("data", "filter", "bias"):
            found[f"gradient of {which}: {name}"] = (calls.gradient_call, case, which)
        found[f"gradients: {name}"] = (calls.fused_backward_call, fused)
    for at, (name, (x, geometry)) in enumerate(POOLINGS.items()):
        case = PoolingCase(name, x, geometry, **(SCALE if at % 2 else {}))
        for mode in POOLING_MODES:
            found[f"{mode}: {name}"] = (calls.pooling_forward_call, case, mode)
            found[f"{mode} backward: {name}"] = (calls.pooling_backward_call, case, mode)
    for at, (name, (x, w, geometry, pooling)) in enumerate(FUSED.items()):
        case = FusedCase(name, x, w, geometry, pooling, "tanh", **(SCALE if at % 2 else {}))
        found[f"fused with pooling: {name}"] = (calls.fused_pooling_call, case)
    for at, (name, (shape, recipe)) in enumerate(CHAINS.items()):
        scale = SCALED if at % 2 else ()
        found[f"chain: {name}"] = (chains.make_call, shape, recipe, *scale)
    x, scale = (2, 3, 5, 4), SCALED
    for algorithm, mode in itertools.product(("accurate", "log"), ("channel", "instance")):
        way = (x, algorithm, mode)
        found[f"softmax: {algorithm} {mode}"] = (calls.softmax_forward_call, *way, *scale)
        found[f"softmax backward: {algorithm} {mode}"] = (calls.softmax_backward_call, *way)
    for mode in ("relu", "gelu"):
        found[f"{mode}"] = (calls.activation_forward_call, x, mode, None, *scale)
        found[f"{mode} backward"] = (calls.activation_backward_call, x, mode, None, *scale)
    for b in ((1, 3, 1, 1), (2, 1, 5, 1), x, (1, 1, 1, 4)):
        found[f"add_tensor of {b}"] = (calls.add_tensor_call, b, x, *scale)
        found[f"add_tensor in place of {b}"] = (add_in_place_call, b, x, *scale)
    for dtype in ("float32", "float16"):
        more = (x, dtype, 2.0, -0.25)
        found[f"training: {dtype}"] = (normalization.training_call, *more)
        found[f"inference: {dtype}"] = (normalization.inference_call, *more)
        found[f"normalization backward: {dtype}"] = (normalization.backward_call, *more)
        anew = partial(normalization.backward_call, saved=False)
        found[f"normalization backward, statistics anew: {dtype}"] = (anew, *more)
    for shape in ((1, 5, 1, 1), (1, 4, 1), (1, 6)):
        found[f"one element a channel: training {shape}"] = (normalization.training_call, shape)
        found[f"one element a channel: backward {shape}"] = (normalization.backward_call, shape)
    found["one channel: softmax"] = (calls.softmax_forward_call, (3, 1, 4, 2), "log", "channel")
    half = ConvolutionCase("half", (2, 3, 4, 3), (2, 3, 3, 3), {"padding": 1}, "bfloat16", **SCALE)
    for which in ("data", "filter", "bias"):
        found[f"gradient of {which}: bfloat16"] = (calls.gradient_call, half, which)
    return found


def row_axes(name):
    """The axes that rows of a case of the table may lie along, but for the first."""
    return Split(make(name)).splittable.row_axes[1:]


def add_in_place_call(b, y, dtype, alpha, beta):
    """`add_tensor` without out: y is changed."""
    call = calls.add_tensor_call(b, y, dtype, alpha, beta)
    return replace(call, results={}, outs=(), old={}, changed={"y": call.results["y"]})


MAKERS = makers()


def make(name):
    """The call of that name in the table."""
    maker, *arguments = MAKERS[name]
    call = maker(*arguments)
    call.name = name
    return call


def describe(call, arrays):
    """Describe the call as the public function does, on these arrays."""
    out = call.old[call.outs[0]] if len(call.outs) == 1 else None
    return describe_call(call.function, {**call.options, **arrays, "out": out})


def loop_orders(splittable):
    """Every legal order of the loops: in each part around the sweeps, sums innermost."""
    order, reduced = splittable.loop_order, splittable.reduced
    at = order.index(SWEEP) if SWEEP in order else 0
    parts = (order[:at], order[at + 1 :] if SWEEP in order else order)
    sweep = (SWEEP,) if SWEEP in order else ()

    def orders(part):
        free = [axis for axis in part if axis not in reduced]
        summed = [axis for axis in part if axis in reduced]
        for outer, inner in itertools.product(
            itertools.permutations(free), itertools.permutations(summed)
        ):
            yield (*outer, *inner)

    return [(*a, *sweep, *b) for a, b in itertools.product(*map(orders, parts))]


class Split:
    """A call's splittable object and its operands, to be run under splits of the test's choice.

    `lay` brings each operand and result, given its name, to the memory that the test wants.
    """

    def __init__(self, call, lay=lambda name, array: array, *, device="host", row_axis=2):
        self.call = call
        self.kept = {name: lay(name, array) for name, array in call.copies().items()}
        description = describe(call, self.kept)
        arrays = dict(description.arrays)
        known = {**arrays, **description.beside, **description.updated}
        specs = {
            name: TensorSpec(tuple(a.shape), a.dtype.name, "pageable") for name, a in known.items()
        }
        self.splittable = description.build(specs, current()).along(row_axis)
        self.results = {}
        # The description's names of the results, in the order of the call's.
        for name, result in zip(description.results, call.results, strict=bool(call.results)):
            old = call.old.get(result)
            if old is None:
                operand = self.splittable.operands[name]
                old = np.full(operand.shape, np.nan, operand.dtype)
            self.results[result] = arrays[name] = lay(result, old.copy())
        self.forced = Forced(self.splittable, arrays | dict(description.updated), device=device)

    def run(self, split, **options):
        """Run one split on results as they were before, and check."""
        self.restore()
        self.forced.run(split, **options)
        self.call.check(self.results, f"{split} {options}", self.kept)

    def restore(self):
        """Give every array what it holds before a call: NaN where that must not be read."""
        for name, array in self.results.items():
            array[...] = self.call.old.get(name, np.nan)
        for name in self.call.changed:
            self.kept[name][...] = self.call.arrays[name]

    def content(self):
        """Copies of all that the call has written."""
        written = self.results | {name: self.kept[name] for name in self.call.changed}
        return {name: np.array(array) for name, array in written.items()}


def some(splits, count):
    """An even share of the splits, with the first and the last."""
    at = np.linspace(0, len(splits) - 1, min(count, len(splits))).astype(int)
    return [splits[i] for i in at]
