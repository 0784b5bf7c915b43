"""Every loss of torch.nn through `with_loss`: the number and its gradients are those of eager."""

import copy
import inspect
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ooc_cudnn.torch as ooc
from tests.support.torch_checks import close

pytestmark = pytest.mark.usefixtures("fewest_plans")

CLASSES = 5
MAP, VECTORS = (4, CLASSES, 3, 2), (4, CLASSES)
NAN, INF = float("nan"), float("inf")


def convolution():
    return nn.Conv2d(CLASSES, CLASSES, 1)


def linear():
    return nn.Linear(CLASSES, CLASSES)


def probabilities():
    return nn.Sequential(convolution(), nn.Sigmoid())


def logarithms():
    return nn.Sequential(convolution(), nn.LogSoftmax(1))


def noise(*shape):
    return torch.randn(shape, dtype=torch.float64)


def signs(*shape):
    return torch.randint(0, 2, shape) * 2.0 - 1


def labels(*shape):
    return torch.randint(0, CLASSES, shape)


SITES = (4, 3, 2)
#: Of each loss a model and its shape, and targets.
LOSSES = {
    nn.L1Loss: (convolution, MAP, lambda: (noise(*MAP),)),
    nn.SmoothL1Loss: (convolution, MAP, lambda: (noise(*MAP),)),
    nn.HuberLoss: (convolution, MAP, lambda: (noise(*MAP),)),
    nn.MSELoss: (convolution, MAP, lambda: (noise(*MAP),)),
    nn.CrossEntropyLoss: (convolution, MAP, lambda: (labels(*SITES),)),
    nn.NLLLoss: (logarithms, MAP, lambda: (labels(*SITES),)),
    nn.NLLLoss2d: (logarithms, MAP, lambda: (labels(*SITES),)),
    nn.BCELoss: (probabilities, MAP, lambda: (noise(*MAP).sigmoid(),)),
    nn.BCEWithLogitsLoss: (convolution, MAP, lambda: (noise(*MAP).sigmoid(),)),
    nn.KLDivLoss: (logarithms, MAP, lambda: (noise(*MAP).softmax(1),)),
    nn.PoissonNLLLoss: (convolution, MAP, lambda: (noise(*MAP).abs(),)),
    nn.HingeEmbeddingLoss: (convolution, MAP, lambda: (signs(*MAP),)),
    nn.SoftMarginLoss: (convolution, MAP, lambda: (signs(*MAP),)),
    nn.MultiLabelMarginLoss: (linear, VECTORS, lambda: (torch.tensor([[0, 2, -1, 1, 3]] * 4),)),
    nn.MultiLabelSoftMarginLoss: (linear, VECTORS, lambda: ((signs(*VECTORS) + 1) / 2,)),
    nn.MultiMarginLoss: (linear, VECTORS, lambda: (labels(4),)),
    nn.CosineEmbeddingLoss: (linear, VECTORS, lambda: (noise(*VECTORS), signs(4))),
    nn.MarginRankingLoss: (linear, VECTORS, lambda: (noise(*VECTORS), signs(*VECTORS))),
    nn.TripletMarginLoss: (linear, VECTORS, lambda: (noise(*VECTORS), noise(*VECTORS))),
    nn.TripletMarginWithDistanceLoss: (
        linear, VECTORS, lambda: (noise(*VECTORS), noise(*VECTORS)),
    ),
}  # fmt: skip
if hasattr(nn, "LinearCrossEntropyLoss"):  # since PyTorch 2.13
    LOSSES[nn.LinearCrossEntropyLoss] = (linear, VECTORS, lambda: (labels(4),))
#: They look at numbers, or have no formula without them: refused before anything runs.
REFUSED = {
    nn.GaussianNLLLoss: (convolution, MAP, lambda: (noise(*MAP), noise(*MAP).abs() + 0.1)),
    nn.CTCLoss: (
        lambda: nn.Sequential(linear(), nn.LogSoftmax(-1)),
        (7, 2, CLASSES),
        lambda: (torch.randint(1, CLASSES, (2, 3)), torch.tensor([7, 7]), torch.tensor([3, 2])),
    ),
}
#: Two results, the loss among them.
NO_LOSS = {nn.AdaptiveLogSoftmaxWithLoss}


def made(model, x, step):
    """A loss, and the gradients of the model, and of the loss, and of its input."""
    x = x.clone().requires_grad_()
    loss = step(x)
    loss.backward(torch.linspace(1, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape))
    return {"loss": loss.detach(), "input": x.grad} | {
        name: each.grad for name, each in model.named_parameters()
    }


def check(loss, model, x, *targets, tolerance=1e-11):
    """Compare a step with that of eager; what eager refuses is to be refused."""
    both = nn.ModuleList([model.to(x.dtype), loss.to(x.dtype)])
    step = ooc.with_loss(*(own := copy.deepcopy(both)))
    try:
        expected = made(both, x, lambda x: loss(model(x), *targets))
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error)[:20])):
            made(own, x, lambda x: step(x, *targets))
        return
    found = made(own, x, lambda x: step(x, *targets))
    for name, each in expected.items():
        close(found[name], each, name, tolerance=tolerance)


@pytest.mark.parametrize("which", ["weight", "pos_weight"])
@pytest.mark.parametrize("shape", [(), (CLASSES,), (CLASSES, 1, 1), (2, 1, 1, CLASSES)])
def test_weights_lie_along_the_last_axes(which, shape):
    x = noise(2, CLASSES, 4, CLASSES)  # as wide as it has classes
    weights = noise(*shape).abs() + 0.1
    check(nn.BCEWithLogitsLoss(**{which: weights}), convolution(), x,
          noise(2, CLASSES, 4, CLASSES).sigmoid())  # fmt: skip


def test_every_loss_is_here():
    losses = {
        each
        for name, each in vars(nn).items()
        if inspect.isclass(each) and "Loss" in name and issubclass(each, nn.Module)
    }
    assert losses == LOSSES.keys() | REFUSED.keys() | NO_LOSS


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", LOSSES, ids=lambda kind: kind.__name__)
@pytest.mark.filterwarnings("ignore:reduction. .mean. divides:UserWarning")
@pytest.mark.filterwarnings("ignore:.NLLLoss2d. has been deprecated:FutureWarning")
def test_a_loss_is_that_of_eager(kind, reduction):
    torch.manual_seed(0)
    make, shape, targets = LOSSES[kind]
    sizes = (CLASSES, CLASSES) if "Linear" in kind.__name__ else ()
    check(kind(*sizes, reduction=reduction), make(), noise(*shape), *targets())


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_loss_that_looks_at_numbers_is_refused(kind):
    make, shape, targets = REFUSED[kind]
    step = ooc.with_loss(make().double(), kind(), "1MiB")
    with pytest.raises(ooc.UnsupportedModelError):
        step(noise(*shape), *targets())


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@pytest.mark.parametrize("kind", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss])
@pytest.mark.parametrize(
    "target",
    [
        noise(1, CLASSES, 1, 1),
        noise(4, 1, 3, 2),
        noise(1),
        noise(*MAP).float(),
        noise(*MAP).half(),
        torch.randint(0, 3, MAP),
        torch.randint(0, 3, MAP, dtype=torch.uint8),
        torch.randint(0, 2, MAP).bool(),
    ],
    ids=lambda each: f"{each.dtype} {tuple(each.shape)}",
)
def test_a_target_of_another_shape_or_dtype_is_taken_as_eager_takes_it(kind, target):
    torch.manual_seed(0)
    check(kind(), convolution(), noise(*MAP), target)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_target_in_single_precision_of_another_model(dtype):
    torch.manual_seed(0)
    check(nn.MSELoss(), convolution(), noise(*MAP).float(), noise(*MAP).to(dtype), tolerance=1e-6)


#: Logits of a site, the label of which is 0 or ignored.
SPECIAL = {
    "one -inf": (1.0, 2.0, -INF),
    "-inf at the label": (-INF, 2.0, 1.0),
    "all -inf": (-INF, -INF, -INF),
    "inf": (1.0, INF, 0.0),
    "inf at the label": (INF, 1.0, 0.0),
    "two inf": (INF, INF, 0.0),
    "nan": (0.0, NAN, 1.0),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, (1.0, 0.5, 2.0)], ids=["alike", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_special_logits_of_a_cross_entropy(reduction, weight, smoothing):
    """Where the site is ignored, no logit reaches the loss, nor has a gradient.

    Eager's own gradient there is 0 times softmax: NaN of logits that are NaN or infinite.
    """
    weight = None if weight is None else torch.tensor(weight)
    how = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    loss = nn.CrossEntropyLoss(**how)
    step = ooc.with_loss(nn.Identity(), loss, "1MiB")
    for name, logits in SPECIAL.items():
        for label in (0, -100):
            target = torch.tensor([label, 2])
            x = torch.tensor([logits, (1.0, 2.0, 3.0)], requires_grad=True)
            expected = F.cross_entropy(x, target, **how)
            (of_x,) = torch.autograd.grad(expected, x)
            found = step(x, target)
            (dx,) = torch.autograd.grad(found, x)
            if label == -100:
                of_x[0] = 0
            for one, other in ((found, expected), (dx, of_x)):
                torch.testing.assert_close(one, other, equal_nan=True, msg=f"{name}, {label}")
