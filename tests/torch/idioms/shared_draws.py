"""Random numbers that several parts of a model read, by way of what is no map: a mask, places.

They are drawn once. The outputs do not depend on what they are: the mask and the rest make all.
"""

import torch
import torch.nn.functional as F

from tests.torch.idioms.judge import Idiom
from tests.torch.idioms.models import conv, infer, model, train


def mask_and_rest(s, x):
    mask = torch.rand_like(x) > 0.5
    return s.d(x * mask) + s.d(x * ~mask)


def of_a_layer(s, x):
    mask = torch.rand_like(s.c(x)) > 0.5
    return s.d(x.masked_fill(mask, 0)) + s.d(x * mask)


def of_images(s, x):
    kept = torch.bernoulli(x.mean((1, 2, 3)).sigmoid())
    mask = (kept > 0)[:, None, None, None]
    return s.d(x * mask) + s.d(torch.where(mask, 0, x))


def of_a_number(s, x):
    drawn = F.rrelu(-x[0, 0, 0, 0].abs(), training=True)
    return s.d(x * drawn) + s.d(x * (1 - drawn))


def is_an_output(s, x):
    mask = torch.rand_like(x) > 0.5
    return s.d(x * mask) + s.d(x * ~mask), mask | ~mask


def places(s, x):
    at = torch.randint_like(x, 4, dtype=torch.int64)
    return s.d(x * at) + s.d(x * (1 - at))


def places_of_a_shape(s, x):
    at = torch.randint(4, x.shape)
    return s.d(x * at) + s.d(x * (1 - at))


def of(name, f, steps=train):
    """An idiom whose layers add no bias: the parts of a map make what the map does."""
    parts = {each: conv(padding=1, bias=False) for each in ("c", "d", "e")}
    return Idiom(f"drawn once: {name}", model(f, **parts), steps)


CASES = [
    of("a mask and the rest", mask_and_rest),
    of("a mask and the rest, without gradients", mask_and_rest, infer),
    of("a mask of what a layer makes", of_a_layer),
    of("a mask of images", of_images),
    of("a number", of_a_number),
    of("a mask that is an output, too", is_an_output),
    of("places", places),
    of("places, without gradients", places, infer),
    of("places, of a shape", places_of_a_shape),
]
