"""Every legal split of small shapes gives the same result, whatever the ring and memory order."""

from __future__ import annotations

import inspect
import itertools

import calls
import chains
import normalization
import numpy as np
import pytest
from calls import POOLING_MODES, ConvolutionCase, FusedCase, PoolingCase
from chains import act, bias, conv, norm, pool, tensor
from forced import Forced, legal_splits
from function_cases import channels_last

from ooc_cudnn.functions.plan import FUNCTIONS
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import TensorSpec

pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
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
        (1, 2, 16, 8),
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
    "pooling twice": ((2, 2, 12, 5), (pool(3, stride=2, padding=1), pool(2, stride=1))),
    "one convolution and pooling": ((2, 3, 8, 4), (conv(3, 3, padding=1), bias(), act(), pool(2))),
}  # fmt: skip
SCALE = {"alpha": 2.0, "beta": -0.25}


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
        scale = ("float32", 2.0, -0.25) if at % 2 else ()
        found[f"chain: {name}"] = (chains.make_call, shape, recipe, *scale)
    x, scale = (2, 3, 5, 4), ("float32", 2.0, -0.25)
    for algorithm, mode in itertools.product(("accurate", "log"), ("channel", "instance")):
        way = (x, algorithm, mode)
        found[f"softmax: {algorithm} {mode}"] = (calls.softmax_forward_call, *way, *scale)
        found[f"softmax backward: {algorithm} {mode}"] = (calls.softmax_backward_call, *way)
    for mode in ("relu", "gelu"):
        found[f"{mode}"] = (calls.activation_forward_call, x, mode, None, *scale)
        found[f"{mode} backward"] = (calls.activation_backward_call, x, mode, None, *scale)
    for b in ((1, 3, 1, 1), (2, 1, 5, 1), x, (1, 1, 1, 4)):
        found[f"add_tensor of {b}"] = (calls.add_tensor_call, b, x, *scale)
    for dtype in ("float32", "float16"):
        more = (x, dtype, 2.0, -0.25)
        found[f"training: {dtype}"] = (normalization.training_call, *more)
        found[f"inference: {dtype}"] = (normalization.inference_call, *more)
        found[f"normalization backward: {dtype}"] = (normalization.backward_call, *more)
    found["normalization backward anew"] = (anew, x)
    half = ConvolutionCase("half", (2, 4, 5, 3), (3, 4, 3, 3), {"padding": 1}, "bfloat16", **SCALE)
    for which in ("data", "filter", "bias"):
        found[f"gradient of {which}: bfloat16"] = (calls.gradient_call, half, which)
    return found


def anew(shape):
    return normalization.backward_call(shape, saved=False)


MAKERS = makers()


class Split:
    """A call's splittable object and its operands, to be run under splits of the test's choice."""

    def __init__(self, call, lay=lambda name, array: array):
        self.call = call
        public, describe = FUNCTIONS[call.function]
        self.kept = {name: lay(name, array) for name, array in call.copies().items()}
        bound = inspect.signature(public).bind(**{**call.options, **self.kept})
        bound.apply_defaults()
        del bound.arguments["out"]
        self.description = describe(**bound.arguments)
        arrays = dict(self.description.arrays)
        specs = {name: TensorSpec(a.shape, a.dtype.name, "pageable") for name, a in arrays.items()}
        self.splittable = self.description.build(specs, current())
        self.results = {}
        for name, result in zip(self.splittable.results, call.results, strict=False):
            old = call.old.get(result)
            if old is None:
                operand = self.splittable.operands[name]
                old = np.full(operand.shape, np.nan, operand.dtype)
            self.results[result] = arrays[name] = lay(result, old.copy())
        self.forced = Forced(self.splittable, arrays)

    def run(self, split, **options):
        """Run one split on results as they were before, and check."""
        for name, array in self.results.items():
            array[...] = self.call.old.get(name, np.nan)
        for name in self.call.changed:
            self.kept[name][...] = self.call.arrays[name]
        self.forced.run(split, **options)
        self.call.check(self.results, f"{split} {options}", self.kept)


@pytest.mark.parametrize("name", MAKERS)
def test_every_split(name):
    make, *arguments = MAKERS[name]
    made = Split(make(*arguments))
    ways = list(itertools.product(RINGS, LAYOUTS))
    count = 0
    for at, split in enumerate(legal_splits(made.splittable)):
        (depth, whole), layout = ways[at % len(ways)]
        made.run(split, depth=depth, whole=whole, layout=layout, overlap=at % 4 == 0)
        count += 1
    assert count >= 4


@pytest.mark.parametrize("name", MAKERS)
def test_splits_with_some_operands_channels_last(name):
    """Operands in two memory orders are brought to one on the way."""
    make, *arguments = MAKERS[name]
    call = make(*arguments)
    names = [*call.arrays, *call.outs]
    for last in names:
        made = Split(
            call, lambda n, a, last=last: channels_last(a) if n == last and a.ndim > 2 else a
        )
        splits = list(legal_splits(made.splittable))
        for at, split in enumerate(splits[:: max(1, len(splits) // 6)]):
            made.run(split, layout=LAYOUTS[at % 2], overlap=False)
