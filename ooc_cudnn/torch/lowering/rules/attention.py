"""Attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.operations.attention.launches import is_on_chip
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.torch.lowering.lower import (
    GraphLowering,
    LoweredValue,
    UnsupportedPatternError,
    rule,
)
from ooc_cudnn.torch.tracing.graph import Operation, Value
from ooc_cudnn.torch.tracing.image_axes import RESHAPES
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation

#: The axes of a value (n, heads, queries, depth), or (n, queries, depth): depth is of channels.
AXES = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
#: Whether scores that a bias or a mask is added to are ours where a card has no room for them on
#: its chip, too. Of Swin-T on an H200 (n=256, bfloat16, a quarter of eager's memory) a step took
#: 344 ms so, 160 where PyTorch computed them, and 138 by attention_small.cu.
TAKES_BIASES = False
_HALF = (torch.float16, torch.bfloat16)
#: The same numbers, but for a cast.
_SAME = ("_to_copy", "alias", "contiguous", "to")


def is_taken(to: GraphLowering, operation: Operation, computed: Collection[Value]) -> bool:
    """True if the rule has an attention of these arguments, wherever its queries and keys lie.

    Not by a mask that PyTorch computes of the inputs, or is given as booleans.
    """
    told = operation.arguments
    query, key, value = (told[name] for name in ("query", "key", "value"))
    mask = told.get("attn_mask")
    if mask is not None:
        given = mask.kind == "input" and not mask.dtype.is_floating_point
        if given or mask in computed or not _takes_bias(query, key, value):
            return False
    return _are_rows((query, key, value)) and not told.get("dropout_p")


def _takes_bias(query: Value, key: Value, value: Value) -> bool:
    """True if scores of these are ours where a bias or a mask is added to them."""
    dtype = str(value.dtype).removeprefix("torch.")
    rows, depths = (query.shape[-2], key.shape[-2]), (query.shape[-1], value.shape[-1])
    return TAKES_BIASES or is_on_chip(dtype, rows, depths)


def _are_rows(values: Sequence[Value]) -> bool:
    """True if queries, keys and values have axes, and as many images each, that nodes take."""
    shapes = [each.shape for each in values]
    return (
        len({len(shape) for shape in shapes}) == 1
        and len(shapes[0]) in AXES
        and len({shape[0] for shape in shapes}) == 1
        and not any(0 in shape for shape in shapes)
    )


@rule("scaled_dot_product_attention", gathers=is_taken)
def attention(
    to: GraphLowering,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> LoweredValue:
    if dropout_p:
        raise UnsupportedPatternError("with dropout")
    return _attend(to, (query, key, value), attn_mask, scale=scale, causal=bool(is_causal))


class _Products(NamedTuple):
    """Attention written out: softmax(scale * query @ key + bias + mask) @ value.

    The mask is of so many windows of an image, which follow each other on the first axis.
    """

    query: Value
    key: Value
    value: Value
    scale: float
    bias: Value | None
    mask: Value | None
    windows: int


def is_attention(to: GraphLowering, operation: Operation, computed: Collection[Value]) -> bool:
    """True if a product is the last one of attention."""
    return _products(to, operation) is not None


@rule("matmul", "bmm", gathers=is_attention)
def product(to: GraphLowering, **arguments: Any) -> LoweredValue:
    found = None if to.operation is None else _products(to, to.operation)
    if found is None:
        raise UnsupportedPatternError("the library has no such operation")
    values = [to.argument(each) for each in (found.query, found.key, found.value)]
    if found.mask is not None:
        return _attend_in_windows(to, found, found.mask, values)
    bias = found.bias
    if bias is not None and not bias.requires_grad:
        bias = to.made_before("bias", _with_nan, bias)
    return _attend(to, values, bias, scale=found.scale)


def _products(to: GraphLowering, operation: Operation) -> _Products | None:
    """Match the last one of a chain of products, where nobody else reads what leads to it.

    Of half types the softmax may be in float32, as autocast has it: scores are kept in that.
    """
    if len(operation.reads) != 2:
        return None
    weights, value = operation.reads
    chain = _Chain(to, value.dtype)
    softmax = chain.maker(weights, "softmax", "softmax_under_autocast")
    if softmax is None or softmax.arguments["dim"] not in (-1, len(weights.shape) - 1):
        return None
    scores, mask, windows = chain.in_windows(softmax.reads[0])
    scores, bias = chain.added(scores)
    scores, scale = chain.scaled(scores)
    first_product = chain.maker(scores, "matmul", "bmm")
    if first_product is None or len(first_product.reads) != 2:
        return None
    (query, of_query), (turned, of_key) = (chain.scaled(each) for each in first_product.reads)
    transposed = chain.maker(turned, *PERMUTES)
    if transposed is None:
        return None
    count = len(turned.shape)
    is_turned = permutation(transposed, count) == [*range(count - 2), count - 1, count - 2]
    key, of_key_too = chain.scaled(transposed.reads[0])
    values = (query, key, value)
    if (bias is not None or mask is not None) and not _takes_bias(*values):
        return None
    dtypes = {each.dtype for each in (*values, *first_product.reads)}
    if not is_turned or len(dtypes) > 1 or not _are_rows(values):
        return None
    return _Products(*values, scale * of_query * of_key * of_key_too, bias, mask, windows)


class _Chain:
    """Chain of nodes to a value that PyTorch would compute, each of one reader."""

    def __init__(self, to: GraphLowering, dtype: torch.dtype) -> None:
        self._fallbacks = to.fallbacks
        #: Dtypes on the way: casts from one to another of them round less than products do.
        self.dtypes = {dtype, torch.float32} if dtype in _HALF else {dtype}

    def maker(self, value: Any, *names: str) -> Operation | None:
        """Return the node that makes a value, if it is one of these."""
        while (
            isinstance(value, Value)
            and value in self._fallbacks
            and self._fallbacks.is_read_once(value)
            and value.dtype in self.dtypes
        ):
            operation = self._fallbacks.maker(value)
            if operation.name in names:
                dtype = operation.arguments.get("dtype")
                is_of_bits = dtype is not None and operation.name in RESHAPES
                is_taken = dtype is None or (dtype in self.dtypes and not is_of_bits)
                return operation if is_taken else None
            if operation.name not in _SAME or operation.reads[0].dtype not in self.dtypes:
                return None
            value = operation.reads[0]
        return None

    def added(self, value: Value) -> tuple[Value, Value | None]:
        """Match a sum: return a value that is added to what depends on no input, and that."""
        operation = self.maker(value, "add")
        if operation is None or operation.arguments.get("alpha", 1) != 1:
            return value, None
        first, second = operation.arguments["self"], operation.arguments["other"]
        is_taken = (
            isinstance(second, Value)
            and second not in self._fallbacks
            and second.kind != "input"
            and second.dtype in self.dtypes
        )
        return (first, second) if is_taken else (value, None)

    def in_windows(self, value: Value) -> tuple[Value, Value | None, int]:
        """Scores that a mask was added to, one of each window of an image; the mask, and windows.

        The first axis is split into images and windows for it: (n, windows, heads, queries, keys).
        """
        joined = self.maker(value, *RESHAPES)
        if joined is None:
            return value, None, 1
        split_scores, mask = self.added(joined.reads[0])
        split = self.maker(split_scores, *RESHAPES)
        if mask is None or split is None or len(split_scores.shape) != 5:
            return value, None, 1
        (_, windows, *_), wide = split_scores.shape, (1,) * (5 - len(mask.shape)) + mask.shape
        is_one = wide[0] == 1 and split_scores.shape[2:] == value.shape[1:]
        if not is_one or split.reads[0].shape != value.shape:
            return value, None, 1
        return split.reads[0], mask, windows

    def scaled(self, value: Value) -> tuple[Value, float]:
        """Match a multiple: return what a value is a number times of, and the number."""
        operation = self.maker(value, "mul", "div")
        if operation is None or operation.arguments.get("rounding_mode") is not None:
            return value, 1.0
        first, second = operation.arguments["self"], operation.arguments["other"]
        if not isinstance(first, Value) or not isinstance(second, int | float):
            return value, 1.0
        if operation.name == "div" and second == 0:
            return value, 1.0
        return first, float(second) if operation.name == "mul" else 1 / second


def _attend(
    to: GraphLowering,
    values: Sequence[Any],
    mask: Any,
    *,
    scale: float | None,
    causal: bool = False,
) -> LoweredValue:
    """Attention of queries, keys and values, packed where they are thirds of channels."""
    told: dict[str, Any] = {"scale": scale, "causal": causal}
    batch = next((each.shape[0] for each in to.graph.inputs if each.shape), 1)
    axes = AXES[len(values[0].shape)]
    if mask is not None:
        told["bias"] = _bias(to, mask, len(axes))
    thirds = _thirds(to, values)
    if thirds is not None:
        x, heads = thirds
        images = math.gcd(x.shape[0], batch)
        made = to.net.packed_attention(x, heads, images=images, name=to.name(), **told)
        return LoweredValue(made, axes)
    tensors = [_rows(to.gathered(each, -1)) for each in values]
    images = math.gcd(tensors[0].shape[0], batch)
    made = to.net.attention(*tensors, images=images, name=to.name(), **told)
    return LoweredValue(made, axes)


def _attend_in_windows(
    to: GraphLowering, found: _Products, mask: Value, values: Sequence[Any]
) -> LoweredValue:
    """Attention whose windows have a mask each: windows of an image are heads of it."""
    windows, (_, heads, rows, _), keys = found.windows, found.query.shape, found.key.shape[-2]
    own = (mask,) if found.bias is None else (mask, found.bias)
    dtype = functools.reduce(torch.promote_types, [each.dtype for each in own])
    shape = windows, heads, rows, keys
    function = functools.partial(_of_windows, shape=shape)
    bias = to.made_before("bias", function, *own, shape=(windows * heads, rows, keys), dtype=dtype)
    tensors = list(_in_windows(to, values, windows))
    batch = next((each.shape[0] for each in to.graph.inputs if each.shape), 1)
    images = math.gcd(tensors[0].shape[0], batch)
    y = to.net.attention(
        *tensors, bias=to.given(bias), scale=found.scale, images=images, name=to.name("attention")
    )
    n, depth, _, sites = y.shape
    factors = ((n,), (depth,), (windows, heads), (sites,))
    made = to.net.rearrange(y, factors, ((0, 2), (1,), (3,), (4,)), name=to.name())
    return LoweredValue(made, AXES[4])


def _in_windows(to: GraphLowering, values: Sequence[Any], windows: int) -> Iterator[Tensor]:
    """Queries, keys and values (n, depth, windows * heads, sites)."""

    def moved(tensor: Tensor, parts: tuple[Shape, ...], *factors: Shape) -> Tensor:
        images = (tensor.shape[0] // windows, windows)
        return to.net.rearrange(tensor, (images, *factors), parts, name=to.name("windows"))

    thirds = _thirds(to, values)
    if thirds is not None:
        x, heads = thirds
        width, sites = x.shape[1] // 3, x.shape[2]
        for start in range(0, 3 * width, width):
            third = to.net.channel_slice(x, start, start + width, name=to.name("part"))
            yield moved(third, ((0,), (3,), (1, 2), (4,)), (heads, width // heads), (sites,))
        return
    for value in values:
        tensor = _rows(to.gathered(value, -1))
        _, depth, heads, sites = tensor.shape
        yield moved(tensor, ((0,), (2,), (1, 3), (4,)), (depth,), (heads,), (sites,))


def _of_windows(
    mask: torch.Tensor, bias: torch.Tensor | None = None, *, shape: tuple[int, ...]
) -> torch.Tensor:
    """Return what is added to the scores of each window and head."""
    windows, heads, *rest = shape
    added = mask if bias is None else mask + bias
    return _with_nan(added.expand(1, *shape).reshape(windows * heads, *rest))


def _with_nan(bias: torch.Tensor) -> torch.Tensor:
    """NaN where a query sees no key: a softmax that is written out is NaN there, attention is 0."""
    nothing = (bias == -math.inf).all(-1, keepdim=True)
    return bias.masked_fill(nothing, math.nan)


def _thirds(to: GraphLowering, values: Sequence[Any]) -> tuple[Tensor, int] | None:
    """The tensor of which queries, keys and values are thirds of the channels, and its heads."""
    found = [
        to.fallbacks.heads_of(each) if isinstance(each, Value) and each in to.fallbacks else None
        for each in values
    ]
    first = found[0]
    if first is None or first.source.shape[1] != 3 * first.heads * first.depth:
        return None
    width, source = first.heads * first.depth, first.source
    if found != [first._replace(start=at * width) for at in range(3)]:
        return None
    if len(source.shape) > 3:  # a map, whose positions are the queries
        if not to.training:  # all of it would be read for each block
            return None
        factors, sites = [(each,) for each in source.shape], range(2, len(source.shape))
        source = to.net.rearrange(source, factors, [(0,), (1,), (*sites,)], name=to.name("flat"))
    return source, first.heads


def _rows(value: Any) -> Tensor:
    """The tensor of queries, keys or values."""
    if not isinstance(value, LoweredValue):
        raise UnsupportedPatternError("it does not read the inputs first")
    if value.axes != AXES.get(len(value.axes)):
        raise UnsupportedPatternError(f"of shape {value.shape}, with its depth not in channels")
    return value.tensor


def _bias(to: GraphLowering, mask: Any, axes: int) -> Tensor:
    """Return what is added to the scores, or which are seen: its axes are those of the scores."""
    if isinstance(mask, LoweredValue):
        if not mask.is_plain or (axes == 3 and len(mask.axes) > 2):
            raise UnsupportedPatternError(f"a mask of shape {mask.shape} made of the inputs")
        return mask.tensor
    shape = list(mask.shape)
    if axes == 3 and len(shape) == 3:  # there is one head
        shape.insert(1, 1)
    if mask.dtype == torch.bool:
        return to.given(to.made_as("seen", _seen, mask, torch.uint8), shape)
    declare = to.parameter if mask.kind == "parameter" else to.given
    return declare(mask, shape)


def _seen(mask: Any) -> Any:
    """A mask as bytes."""
    return mask.to(torch.uint8) if isinstance(mask, torch.Tensor) else mask.astype("uint8")
