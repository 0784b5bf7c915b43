"""Image axes: where a batch's images lie in each value, and whether they can be cut there.

An axis of a value is ``outer * images * inner`` long: images lie within what is before them, and
hold what is behind. A reshape may put more or less there, a permutation moves the axis, and most
operations leave images apart. One that does not, or that is not in the table here, is computed on
all of them at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ooc_cudnn.torch.tracing.autocast import AUTOCAST
from ooc_cudnn.torch.tracing.graph import Operation, Value, values_in
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation


class Images(NamedTuple):
    """Position of the images: on an axis of outer * images * inner elements."""

    axis: int
    outer: int = 1
    inner: int = 1


class TogetherError(Exception):
    """An operation that takes the images of a batch together, or may do so."""


#: Value by value, broadcast where shapes differ.
PER_ELEMENT = frozenset({
    "_to_copy", "abs", "add", "addcdiv", "addcmul", "alias", "bitwise_and", "bitwise_not",
    "bitwise_or", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clone", "contiguous", "cos",
    "detach", "div", "dropout", "elu", "eq", "erf", "exp", "expm1", "feature_dropout", "floor",
    "full_like", "ge", "gelu", "gt", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "isfinite", "isnan", "le", "leaky_relu", "lerp", "lift_fresh_copy", "log", "log1p", "log2",
    "log_sigmoid", "logical_and", "logical_not", "logical_or", "logit", "lt", "masked_fill",
    "maximum", "minimum", "mish", "mul", "nan_to_num", "ne", "neg", "ones_like", "pow",
    "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sigmoid",
    "sign", "silu", "sin", "softplus", "softshrink", "softsign", "sqrt", "square", "sub", "tanh",
    "tanhshrink", "threshold", "to", "trunc", "type_as", "where", "xlogy", "zeros_like",
})  # fmt: skip
#: The same elements in another shape.
RESHAPES = frozenset({"flatten", "reshape", "reshape_as", "unflatten", "view", "_unsafe_view"})
#: Along axes that they name, the others each for itself; the shape stays, or an axis goes or is 1.
ALONG = frozenset({
    "_log_softmax", "_softmax", "all", "amax", "amin", "aminmax", "any", "argmax", "argmin",
    "argsort", "cumprod", "cumsum", "flip", "glu", "index_select", "linalg_vector_norm",
    "log_softmax", "logcumsumexp", "logsumexp", "max", "mean", "median", "min", "norm", "prod",
    "repeat_interleave", "roll", "softmax", "sort", "std", "sum", "topk", "var",
})  # fmt: skip
#: Of whole images, on the first axis.
PER_IMAGE = frozenset({
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "batch_norm", "channel_shuffle", "col2im", "constant_pad_nd", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "grid_sampler", "group_norm",
    "im2col", "instance_norm", "local_response_norm", "max_pool1d", "max_pool2d", "max_pool3d",
    "pad", "pixel_shuffle", "pixel_unshuffle", "prelu", "reflection_pad1d",
    "reflection_pad2d", "replication_pad1d", "replication_pad2d", "upsample_bicubic2d",
    "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_trilinear3d",
})  # fmt: skip
#: What moves elements and computes nothing: to repeat it costs little.
MOVES = RESHAPES | PERMUTES | {
    "alias", "chunk", "contiguous", "detach", "expand", "narrow", "select", "slice",
    "split", "split_with_sizes", "squeeze", "unbind", "unsqueeze",
}  # fmt: skip


class ImageAxes:
    """Positions of the images in each value of some operations.

    Parameters
    ----------
    operations : sequence of Operation
        In order.
    inputs : mapping
        Of the values that they read where their images lie.
    count : int
        Images.
    loose : collection of Value
        Read, too: of no images, or of the images on their first axis, as it is needed.

    Raises
    ------
    TogetherError
        If some operation takes the images together.

    Attributes
    ----------
    of : dict
        Of each value that has images where they lie.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        inputs: Mapping[Value, Images],
        count: int,
        loose: Collection[Value] = (),
    ) -> None:
        self.of: dict[Value, Images] = dict(inputs)
        self.count = count
        #: Of what is shared as it seems, the axes that may be the images'.
        self._loose = {value: {0} for value in loose}
        #: What was read as if all images shared it.
        self._shared: set[Value] = set()
        for operation in operations:
            self._follow(operation)

    def shape(self, value: Value, images: int) -> tuple[int, ...]:
        """The shape of a value for so many images."""
        found = self.of.get(value)
        if found is None:
            return value.shape
        at, outer, inner = found
        return (*value.shape[:at], outer * images * inner, *value.shape[at + 1 :])

    def _follow(self, operation: Operation) -> None:
        reads = [value for value in operation.reads if value in self.of]
        if not reads:
            if operation.name == "expand":
                self._expanded(operation)
            self._shared.update(operation.reads)
            return
        name = operation.name.removesuffix(AUTOCAST)
        result = next(value for value in operation.results if value is not None)
        images: Images | None
        if name in PER_ELEMENT:
            images = self._aligned(operation.reads, reads[0], result)
        elif name in RESHAPES:
            images = self._reshaped(operation, reads[0], result)
        elif name in ALONG:
            images = self._along(operation, reads, result)
        elif name in PER_IMAGE:
            images = self._per_image(operation, reads)
        elif name in _OTHERS:
            images = _OTHERS[name](self, operation, reads, result)
        else:
            raise TogetherError(name)
        for value in operation.results:
            if value is not None:
                self.of[value] = images
                self._check(value)
        self._shared.update(value for value in operation.reads if value not in self.of)

    def _check(self, value: Value) -> None:
        at, outer, inner = self.of[value]
        if value.shape[at] != outer * self.count * inner:
            raise TogetherError(value.name)

    def _expanded(self, operation: Operation) -> None:
        """Note a shared value, expanded: along one of its new axes it may be of the images."""
        source, (result,) = operation.args[0], operation.results
        if not isinstance(source, Value) or result is None:
            return
        wide = (*(1,) * (len(result.shape) - len(source.shape)), *source.shape)
        pairs = zip(wide, result.shape, strict=True)
        self._loose[result] = {at for at, (before, after) in enumerate(pairs) if before != after}

    def _has(self, value: Value, wanted: Images) -> bool:
        """True if the images of a value lie there, or it may be taken so."""
        if value in self.of:
            return self.of[value] == wanted
        axis, outer, inner = wanted
        if (
            axis not in self._loose.get(value, ())
            or value in self._shared
            or outer != 1
            or value.shape[axis] != self.count * inner
        ):
            return False
        self.of[value] = wanted
        return True

    # Families -----------------------------------------------------------------------------------

    def _aligned(self, values: Sequence[Value], first: Value, result: Value) -> Images:
        """Broadcasting: axes are counted from behind."""
        axis, outer, inner = self.of[first]
        tail = len(first.shape) - axis
        for value in values:
            if value in self.of:
                held = self.of[value]
                if (len(value.shape) - held.axis, held.outer, held.inner) != (tail, outer, inner):
                    raise TogetherError(f"{value.name} is of other images")
                continue
            shared = len(value.shape) < tail or value.shape[-tail] == 1
            if not (shared or self._has(value, Images(len(value.shape) - tail, outer, inner))):
                raise TogetherError(f"{value.name} is of all images")
        return Images(len(result.shape) - tail, outer, inner)

    def _reshaped(self, operation: Operation, x: Value, result: Value) -> Images:
        """The axis of the result that begins where the images do, or before."""
        if operation.arguments.get("dtype") is not None:
            raise TogetherError("a view in another dtype")
        axis, outer, _ = self.of[x]
        before = math.prod(x.shape[:axis]) * outer
        reached = 1
        for dim, extent in enumerate(result.shape):
            room, left = divmod(before, reached)
            if left:
                break
            if extent % (room * self.count) == 0 and extent > 1:
                return Images(dim, room, extent // (room * self.count))
            reached *= extent
        raise TogetherError(f"a reshape from {x.shape} to {result.shape}")

    @staticmethod
    def _only(operation: Operation, reads: Sequence[Value]) -> Value:
        """The value that is read first: the rest, weights and numbers, is of no images."""
        if list(reads) != [operation.reads[0]]:
            raise TogetherError(f"{operation.name} by what is of images")
        return reads[0]

    def _along(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        x = self._only(operation, reads)
        axis, outer, inner = self.of[x]
        count = len(x.shape)
        named = operation.arguments.get("dim", operation.arguments.get("dims"))
        dims = [named] if isinstance(named, int) else list(named or ())
        gone = {each % count for each in dims}
        if not gone or axis in gone:
            raise TogetherError(f"{operation.name} over all axes, or over that of images")
        if len(result.shape) < count:
            axis -= sum(each < axis for each in gone)
        return Images(axis, outer, inner)

    def _per_image(self, operation: Operation, reads: Sequence[Value]) -> Images:
        lead = next(iter(values_in(operation.args)))
        if operation.name == "batch_norm" and operation.arguments.get("training"):
            raise TogetherError("batch_norm by statistics of all images")
        pads = operation.arguments.get("pad")
        beyond = pads is not None and len(pads) > 2 * (len(lead.shape) - 1)
        if lead not in self.of or beyond:
            raise TogetherError(f"{operation.name} along the axis of images")
        axes = re.findall(r"(\d)d", operation.name) or ["2" if "shuffle" in operation.name else "1"]
        batched = len(lead.shape) >= 2 + int(axes[0])  # else it is a single image
        if self.of[lead].axis != 0 or not batched:
            raise TogetherError(f"{operation.name} of images in another place")
        if not operation.name.startswith("grid_sampler"):
            self._only(operation, reads)
        elif not all(self._has(value, self.of[lead]) for value in operation.reads):
            raise TogetherError("a grid of all images")
        return self.of[lead]

    def moved(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """An axis elsewhere, gone, or new."""
        x = reads[0]
        axis, *rest = self.of[x]
        if x is not operation.reads[0]:
            raise TogetherError("expanded as what is of images")
        count, told = len(x.shape), operation.arguments
        name = operation.name
        if name in PERMUTES:
            axis = permutation(operation, count).index(axis)
        elif name == "unsqueeze":
            axis += told["dim"] % (count + 1) <= axis
        elif name == "squeeze":
            dims = told.get("dim")
            dims = range(count) if dims is None else [dims] if isinstance(dims, int) else dims
            gone = {each % count for each in dims if x.shape[each] == 1}
            if axis in gone:
                raise TogetherError("the axis of images goes")
            axis -= sum(each < axis for each in gone)
        elif name in ("select", "unbind"):
            dim = told.get("dim", 0) % count
            if dim == axis:
                raise TogetherError("one image is taken")
            axis -= dim < axis
        elif name == "expand":
            axis += len(result.shape) - count
        elif told.get("dim", 0) % count == axis and (
            name in ("narrow", "split", "split_with_sizes")  # of a number of images, in words
            or result.shape != x.shape  # slice, chunk
        ):
            raise TogetherError("some images are taken")
        return Images(axis, *rest)

    def unfolded(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """Windows along another axis, on a new last one."""
        x = self._only(operation, reads)
        found = self.of[x]
        if operation.arguments["dimension"] % len(x.shape) == found.axis:
            raise TogetherError("windows of images")
        return found

    def repeated(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """Again and again along other axes; new ones come first."""
        x = self._only(operation, reads)
        axis, *rest = self.of[x]
        axis += len(result.shape) - len(x.shape)
        if operation.arguments["repeats"][axis] != 1:
            raise TogetherError("images are repeated")
        return Images(axis, *rest)

    def product(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """A matrix product: of images in a batch of matrices, or in rows of the left one."""
        left, right = operation.reads[:2]
        if right not in self.of:
            axis, outer, inner = self.of[left]
            rows = len(left.shape) - axis  # 1 for columns, which are summed over
            if rows == 1 or (rows > 2 and len(right.shape) >= rows and right.shape[-rows] != 1):
                raise TogetherError("a product over images")
            tail = rows - (len(right.shape) == 1)
            return Images(len(result.shape) - tail, outer, inner)
        if left not in self.of or min(len(left.shape), len(right.shape)) < 3:
            raise TogetherError("a product with a matrix of images")
        images = self._aligned(operation.reads, left, result)
        if images.axis >= len(result.shape) - 2:
            raise TogetherError("a product over images")
        return images

    def linear(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """A linear layer, over the last axis."""
        x = self._only(operation, reads)
        found = self.of[x]
        if found.axis == len(x.shape) - 1:
            raise TogetherError("a linear layer over images")
        return found

    def normalised(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """A layer normalization, over the last axes."""
        x = self._only(operation, reads)
        found = self.of[x]
        if found.axis >= len(x.shape) - len(operation.arguments["normalized_shape"]):
            raise TogetherError("a normalization over images")
        return found

    def attention(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """Scaled dot products: of batches of queries, keys and values."""
        query = operation.reads[0]
        if query not in self.of or self.of[query].axis >= len(query.shape) - 2:
            raise TogetherError("attention over images")
        return self._aligned(operation.reads, query, result)

    def joined(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """Concatenation, or a stack: all of the same images, along another axis."""
        first = self.of[reads[0]]
        if not all(self._has(value, first) for value in operation.reads):
            raise TogetherError("joined with what is of no images")
        dim = operation.arguments.get("dim", 0)
        if operation.name == "stack":
            return first._replace(axis=first.axis + (dim % len(result.shape) <= first.axis))
        if dim % len(result.shape) == first.axis:
            raise TogetherError("images are joined")
        return first

    def summed(self, operation: Operation, reads: Sequence[Value], result: Value) -> Images:
        """Einstein's sums, where the images' letter is of the result."""
        equation = str(operation.arguments["equation"]).replace(" ", "")
        taken, _, right = equation.partition("->")
        letters = None
        for terms, value in zip(taken.split(","), operation.reads, strict=True):
            if value in self.of:
                letter = terms[self.of[value].axis]
                if letters not in (None, letter) or terms.count(letter) > 1:
                    raise TogetherError("images under several letters")
                letters = letter
        if "." in equation or not letters or letters not in right:
            raise TogetherError("a sum over images")
        first = self.of[reads[0]]
        for terms, value in zip(taken.split(","), operation.reads, strict=True):
            if letters in terms and not self._has(value, first._replace(axis=terms.index(letters))):
                raise TogetherError("a sum with what is of no images")
        return first._replace(axis=right.index(letters))


_Family = Callable[[ImageAxes, Operation, Sequence[Value], Value], Images]
_OTHERS: dict[str, _Family] = {
    **dict.fromkeys(MOVES - RESHAPES - PER_ELEMENT, ImageAxes.moved),
    **dict.fromkeys(("matmul", "bmm"), ImageAxes.product),
    "unfold": ImageAxes.unfolded,
    "repeat": ImageAxes.repeated,
    "linear": ImageAxes.linear,
    **dict.fromkeys(("layer_norm", "rms_norm"), ImageAxes.normalised),
    "scaled_dot_product_attention": ImageAxes.attention,
    **dict.fromkeys(("cat", "concat", "stack"), ImageAxes.joined),
    "einsum": ImageAxes.summed,
}
