"""Operations of chains that change extents, and local response normalization: by PyTorch."""

from __future__ import annotations

import numpy as np

from ooc_cudnn import operations
from tests.fuzz.problems import Tensor
from tests.support import bounded
from tests.support.bounded import UNIT, Bounded

#: Elements of an axis that are not made more of.
LARGEST = 40


def shape_of(function, shape):
    """Shape of what a function of PyTorch gives."""
    import torch

    return tuple(function(torch.zeros(shape, dtype=torch.float64)).shape)


def linear_step(Step, shape, make, function, terms, words):
    """A step without tensors: what the library is told, and a linear function of PyTorch."""
    return Step(
        {}, lambda arrays: make(),
        lambda x, values, arithmetic, last: bounded.linear(x, last, function, terms),
        words, shape_of(function, shape),
    )  # fmt: skip


def step_interpolation(Step, stream, shape):
    from torch.nn import functional

    axes = len(shape) - 2
    mode = stream.choice(("nearest", "linear"))
    corners = mode == "linear" and stream.chance(0.4)
    if stream.chance(0.5) and max(shape[2:]) * 3 <= LARGEST:
        how = {"scale_factor": stream.choice((2, 3, 0.5, 1.5, 0.7)) if min(shape[2:]) > 1 else 2}
    else:
        how = {"size": tuple(stream.randint(1, min(2 * e + 1, LARGEST)) for e in shape[2:])}
    names = ("linear", "bilinear", "trilinear")
    theirs = {"mode": names[axes - 1], "align_corners": corners} if mode == "linear" else {}
    if mode == "nearest" and "scale_factor" in how:  # PyTorch's kernels differ there
        how = {"size": tuple(2 * e for e in shape[2:])}

    def function(t):
        return functional.interpolate(t, **how, **theirs)

    def take(x, values, arithmetic, last):
        made = bounded.linear(x, last, function, 4 * 2**axes)
        # The reference errs too: it rounds positions, and no slope exceeds twice the largest |x|.
        largest = np.max(np.abs(x.value), where=np.isfinite(x.value), initial=0.0)
        return made._replace(error=made.error + 8 * sum(shape[2:]) * UNIT["float64"] * largest)

    return Step(
        {}, lambda arrays: operations.Interpolation(**how, mode=mode, align_corners=corners), take,
        f"interpolate {mode} {how} {corners}", shape_of(function, shape),
    )  # fmt: skip


def step_adaptive_pooling(Step, stream, shape):
    from torch.nn import functional

    output = tuple(stream.randint(1, e + 1) for e in shape[2:])
    mode = stream.choice(("average", "max"))
    name = f"adaptive_{'max' if mode == 'max' else 'avg'}_pool{len(shape) - 2}d"
    terms = int(np.prod(shape[2:])) + 8
    return linear_step(
        Step, shape, lambda: operations.AdaptivePooling(output, mode=mode),
        lambda t: getattr(functional, name)(t, output), terms, f"adaptive {mode} {output}",
    )  # fmt: skip


def step_pad(Step, stream, shape):
    from torch.nn import functional

    pairs = tuple((stream.randint(1 - e if e < 3 else -1, 3), stream.randint(0, 2))
                  for e in shape[2:])  # fmt: skip
    flat = [side for pair in reversed(pairs) for side in pair]
    return linear_step(
        Step, shape, lambda: operations.Pad(pairs), lambda t: functional.pad(t, flat), 1,
        f"pad {pairs}",
    )  # fmt: skip


def step_local_response(Step, stream, shape):
    import torch

    size, alpha = stream.choice((1, 2, 3, 5)), stream.choice((1e-4, 0.3))

    def take(x, values, arithmetic, last):
        made = torch.nn.functional.local_response_norm(torch.from_numpy(x.value), size, alpha)
        # With k = 1 and beta below 1 no slope exceeds 2; a power errs by its logarithm.
        result = Bounded(made.numpy(), 2 * x.error)
        return result.computed(8 * size + 8, np.abs(result.value) + x.error, last)

    return Step(
        {}, lambda arrays: operations.LocalResponseNormalization(size, alpha=alpha), take,
        f"local response {size} {alpha}", shape,
    )  # fmt: skip


def step_transposed_convolution(Step, stream, shape, dtype, at):
    import torch

    axes, name = len(shape) - 2, f"w{at}"
    groups = stream.choice([g for g in (1, 1, 2) if shape[1] % g == 0])
    window = tuple(stream.choice((1, 2, 3)) for _ in range(axes))
    stride = tuple(stream.choice((1, 2, 3) if e < 20 else (1,)) for e in shape[2:])
    how = {
        "stride": stride,
        "padding": tuple(stream.randint(0, (k - 1) // 2) for k in window),
        "output_padding": tuple(stream.randint(0, s - 1) for s in stride),
        "dilation": stream.choice((1, 1, 2)),
        "groups": groups,
    }
    w = (shape[1], stream.randint(1, 4), *window)
    function = getattr(torch.nn.functional, f"conv_transpose{axes}d")
    terms = int(np.prod(w)) // w[1] // groups

    def of(filters):
        return lambda t: function(t, torch.from_numpy(filters), **how)

    def take(x, values, arithmetic, last):
        filters = values[name].astype("f8")
        return bounded.linear(
            arithmetic.factor(x), last, of(filters), terms + 8, of(np.abs(filters))
        )

    return Step(
        {name: Tensor(w, dtype, scale=terms**-0.5)},
        lambda arrays: operations.TransposedConvolution(arrays[name], **how), take,
        f"transposed {list(w)} {how}", shape_of(of(np.zeros(w)), shape),
    )  # fmt: skip


WITHOUT_TENSORS = (step_interpolation, step_adaptive_pooling, step_pad, step_local_response)
