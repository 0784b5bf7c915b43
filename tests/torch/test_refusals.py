"""What is refused: one clear error each, and the model stays as it was."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm

import ooc_cudnn.torch as ooc
from ooc_cudnn.errors import PlanInfeasibleError
from tests.support.torch_checks import close, followed_in_calls, held, modes
from tests.support.torch_models import classifier, residual
from tests.torch.idioms import process

pytestmark = pytest.mark.usefixtures("fewest_plans")

SHAPE, LIMIT = (4, 3, 16, 16), "200KiB"


class Of(nn.Module):
    """A convolution, and a function of what it makes."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.norm, self.function = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), function

    def forward(self, x):
        return self.function(self.norm(self.conv(x)))


def branching(x):
    return x if x.sum() > 0 else -x


def counting(x):
    return x * int(x.max())


def choosing(x):
    return x[x > 0]


def looping(x):
    while x.norm() > 1:
        x = x / 2
    return x


def scaling(x):
    return x * x.max().item()


def clamping(x):
    return torch.clamp(x, -1, max=x.mean().item())


def telling(x):
    return x, x.mean().item()


NUMBER = r"number that depends on data.*keep it a tensor.*, in {}: return "
LINES = {
    branching: r"data.*return x if x\.sum\(\) > 0",
    counting: r"data.*return x \* int\(x\.max\(\)\)",
    choosing: r"shape depends on data.*, in choosing: return x\[x > 0\]",
    looping: r"data.*while x\.norm\(\) > 1",
    scaling: NUMBER.format("scaling"),
    clamping: NUMBER.format("clamping"),
    telling: NUMBER.format("telling"),
}


@pytest.mark.parametrize("function", LINES, ids=lambda each: each.__name__)
def test_a_model_that_cannot_be_captured_names_its_line(function):
    model = ooc.limit(Of(function), LIMIT)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    kept, in_force = held(model), modes()
    for _ in range(2):
        with pytest.raises(ooc.UnsupportedModelError, match=f"(?s){LINES[function]}"):
            model(torch.ones(SHAPE))
        assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
        assert held(model) == kept
        assert modes() == in_force


def by_numpy(x):
    return torch.from_numpy(2 * x.detach().numpy())


def without_gradients(x):
    with torch.no_grad():
        scale = x * 2
    return x * scale


@pytest.mark.parametrize("function", [by_numpy, without_gradients], ids=lambda f: f.__name__)
def test_what_was_refused_is_computed(function):
    torch.manual_seed(0)
    followed_in_calls(Of(function).double(), torch.randn(SHAPE, dtype=torch.float64))


def test_a_number_of_data_that_nothing_reads_is_no_matter():
    def noting(x):
        x.mean().item()
        return 2 * x

    assert ooc.limit(Of(noting), LIMIT)(torch.ones(SHAPE)).shape == (4, 4, 14, 14)


class SyncBatchNorm(nn.SyncBatchNorm):
    """One of another library."""

    def forward(self, x):
        return x


def test_another_librarys_synchronised_batch_normalization_is_refused_in_training():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), SyncBatchNorm(4))
    with pytest.raises(ooc.UnsupportedModelError, match=r"1 \(SyncBatchNorm\) .* in a way of its"):
        ooc.limit(model, LIMIT)
    assert "forward" not in model.__dict__


def test_synchronised_batch_normalization_of_one_process_is_as_any_other():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(classifier())
    x = torch.randn(SHAPE)
    with torch.no_grad():
        expected = copy.deepcopy(model)(x)
        close(ooc.limit(model, LIMIT)(x), expected, "training", tolerance=1e-5)
    assert all("forward" not in part.__dict__ for part in model.children())


def test_averages_by_a_count_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None))
    with pytest.raises(
        ooc.UnsupportedModelError, match=r"1 \(BatchNorm2d\) has momentum=None"
    ) as error:
        ooc.limit(model, LIMIT)
    assert f'File "{__file__}"' in str(error.value)  # the user's line, not the library's


def test_a_model_that_fsdp_shards_is_refused(tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("PyTorch was built without torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model = classifier()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ooc.UnsupportedModelError, match=r"FSDP.*fully_shard"):
            ooc.limit(model, LIMIT)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(SHAPE).to_sparse(), r"argument 0 is .*sparse_coo; make it dense"),
        (torch.ones(SHAPE, dtype=torch.complex64), r"argument 0 is of torch\.complex64.*view_as_"),
        (np.ones(SHAPE, "complex64"), r"argument 0 is of complex64.*view_as_"),
    ],
    ids=["sparse", "complex", "complex array"],
)
def test_sparse_and_complex_arguments_are_refused(x, message):
    model = ooc.limit(classifier(), LIMIT).eval()
    for run in (model, lambda x: ooc.infer(model, x)):
        with pytest.raises(ooc.UnsupportedModelError, match=message):
            run(x)
    with torch.no_grad():
        model(torch.ones(SHAPE))
        with pytest.raises(ooc.UnsupportedModelError, match=message):
            model(x)


def test_what_is_no_tensor_is_refused_by_infer():
    with pytest.raises(TypeError, match="argument 0 must be a tensor or an array, not float"):
        ooc.infer(classifier(), 3.0)
    with pytest.raises(TypeError, match=r"argument 0 .*, not str: give numpy.load\(path"):
        ooc.infer(classifier(), "slide.tif")


@pytest.mark.parametrize("as_real", [False, True])
def test_a_complex_buffer_of_doubles_is_kept_as_real(as_real):
    """One of floats is held as it is."""

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3).double()
            turns = torch.polar(torch.ones(14, 7).double(), torch.rand(14, 7).double())
            self.register_buffer("turns", torch.view_as_real(turns) if as_real else turns)

        def forward(self, x):
            """Turn neighbours, as a rotary encoding does."""
            y = torch.view_as_complex(self.conv(x).unflatten(-1, (-1, 2)))
            turns = torch.view_as_complex(self.turns) if as_real else self.turns
            return torch.view_as_real(y * turns).flatten(-2)

    x, model = torch.randn(SHAPE, dtype=torch.float64), Turned()
    expected = model(x)
    ooc.limit(model, "1MiB")
    if as_real:
        torch.testing.assert_close(model(x), expected)
        return
    with pytest.raises(
        ooc.UnsupportedModelError, match=r"turns is of torch\.complex128.*view_as_r"
    ):
        model(x)


def test_complex_parameters_are_refused():
    model = nn.Conv2d(3, 4, 3, dtype=torch.complex64)
    with pytest.raises(ooc.UnsupportedModelError, match=r"weight is of torch\.complex64"):
        ooc.limit(model, LIMIT)


def test_a_limit_that_is_too_small_names_the_least_and_changes_nothing():
    model = residual()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    ooc.limit(model, 2048)
    x = torch.randn(SHAPE)
    with pytest.raises(PlanInfeasibleError, match="the least that would do is") as refused:
        model(x)
    assert refused.value.smallest_bytes > 2048
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    expected = ooc.release(model)(x)
    assert expected.shape == (4, 5)


def curved():
    torch.manual_seed(0)
    return ooc.limit(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid()), LIMIT)


@pytest.mark.parametrize("loss", [lambda y: y.square().sum(), torch.sum], ids=["curved", "sum"])
@pytest.mark.parametrize("of", ["input", "weight"])
def test_gradients_are_not_differentiated_again(loss, of):
    model, x = curved(), torch.randn(SHAPE, requires_grad=True)
    asked = x if of == "input" else model[0].weight
    value = loss(model(x))
    (gradient,) = torch.autograd.grad(value, asked, create_graph=True)
    with pytest.raises(RuntimeError, match=r"first derivatives alone: .*release"):
        (value + gradient.norm()).backward()  # as critics are penalized
    with pytest.raises(RuntimeError, match="first derivatives alone"):
        torch.autograd.functional.hvp(lambda x: loss(model(x)), x, x)
    again = torch.autograd.grad(loss(model(x)), asked)
    close(gradient, again[0], "gradient", tolerance=1e-6)


FORWARD_MODE, TRANSFORMED = (
    "differentiated in forward mode",
    "within a transformation of torch.func",
)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # within PyTorch
@pytest.mark.parametrize("before", [False, True], ids=["first", "captured before"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, x: torch.func.jvp(model, (x,), (x,)), FORWARD_MODE),
        (lambda model, x: torch.func.jacfwd(model)(x), FORWARD_MODE),
        (lambda model, x: torch.func.grad(lambda x: model(x).sum())(x), TRANSFORMED),
        (lambda model, x: torch.func.vmap(model)(x[None]), TRANSFORMED),
        (lambda model, x: torch.func.vmap(lambda x: ooc.infer(model, x))(x[None]), TRANSFORMED),
    ],
    ids=["jvp", "jacfwd", "grad", "vmap", "vmap of infer"],
)
def test_transformations_of_functions_are_refused(call, message, before):
    model, x = curved(), torch.randn(2, 3, 5, 5)
    if before:
        model(x)
    with pytest.raises(ooc.UnsupportedModelError, match=f"Sequential is .*{message}"):
        call(model, x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # within PyTorch
def test_derivatives_of_parameters_in_forward_mode_are_refused():
    model, x = curved(), torch.randn(2, 3, 5, 5)
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(each, each) for name, each in parameters.items()}
        with pytest.raises(ooc.UnsupportedModelError, match=FORWARD_MODE):
            torch.func.functional_call(model, dual, (x,))


SWITCHES = {
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
    "set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "enable_flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
}


class Switching(nn.Module):
    """Forward that leaves a switch of the process set."""

    def __init__(self, switch):
        super().__init__()
        self.conv, self.switch = nn.Conv2d(3, 4, 3), switch

    def forward(self, x):
        self.switch()
        return self.conv(x)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_of_the_process_that_forward_leaves_is_refused_and_given_back(name):
    before = process.state(), torch.get_float32_matmul_precision()
    under = ooc.limit(Switching(SWITCHES[name]), "200KiB")
    with process.watched():  # puts right what an earlier state of the code would leave
        for _ in range(2):
            message = rf"(?s)sets a switch .*{name}.*before the call.*test_refusals.*line"
            with pytest.raises(ooc.UnsupportedModelError, match=message):
                under(torch.randn(2, 3, 5, 5))
            assert (process.state(), torch.get_float32_matmul_precision()) == before


def test_a_precision_that_has_no_name_is_given_back():
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.fp32_precision
    under = ooc.limit(Switching(SWITCHES["set_float32_matmul_precision"]), "200KiB")
    matmul.fp32_precision = "ieee" if before[1] == "tf32" else "tf32"
    now = matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    try:
        with pytest.raises(ooc.UnsupportedModelError, match="sets a switch of the whole process"):
            under(torch.randn(2, 3, 5, 5))
        assert (matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision) == now
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.fp32_precision = before[1]


def test_a_refusal_where_saved_tensors_have_no_hooks_leaves_checkpoints_as_they_were():
    class Energy(nn.Conv2d):
        def forward(self, x):
            return torch.func.grad(lambda z: super(Energy, self).forward(z).square().sum())(x)

    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    with pytest.raises(ooc.UnsupportedModelError, match=r"takes a derivative by torch\.func"):
        ooc.limit(Energy(3, 4, 3), "200KiB")(x)
    torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    ooc.limit(nn.Conv2d(3, 4, 3), "200KiB")(x).sum().backward()


def test_a_hook_that_looks_sees_what_pytorch_shows_it():
    torch.manual_seed(0)
    eager, x = classifier().double(), torch.randn(SHAPE, dtype=torch.float64)
    under = copy.deepcopy(eager)
    for model in (eager, under):
        model.seen = []

        def look(module, args, output, seen=model.seen):
            seen.append((args[0].detach(), output))

        model[4].register_forward_hook(look)
    ooc.limit(under, LIMIT)
    for call in range(1, 4):
        for model in (under, eager):
            model.zero_grad()
            (model(x).square().sum() + model.seen[-1][1].sin().sum()).backward()
            assert len(model.seen) == call
        for found, expected in zip(under.seen[-1], eager.seen[-1], strict=True):
            close(found, expected, f"what it saw in call {call}")
        largest = max(float(each.grad.abs().max()) for each in eager.parameters())
        for (name, one), other in zip(under.named_parameters(), eager.parameters(), strict=True):
            close(one.grad, other.grad, name, least=largest)
    assert len(model[4]._forward_hooks) == 1


@pytest.mark.parametrize("pre", [False, True])
def test_a_hook_of_backward_of_a_part_is_refused_and_stays_where_it_is(pre):
    model, seen = classifier(), []
    register = "register_full_backward_pre_hook" if pre else "register_full_backward_hook"
    getattr(model[4], register)(lambda module, *gradients: seen.append(gradients))
    ooc.limit(model, LIMIT)
    in_force = modes()
    for _ in range(2):
        with pytest.raises(ooc.UnsupportedModelError, match=r"of backward of 4 \(Conv2d\)"):
            model(torch.ones(SHAPE))
        assert modes() == in_force
    ooc.release(model)(torch.ones(SHAPE)).sum().backward()
    assert len(seen) == 1


def test_a_hook_of_backward_of_the_model_itself_runs():
    torch.manual_seed(0)
    eager, x = classifier().double(), torch.randn(SHAPE, dtype=torch.float64)
    under = ooc.limit(copy.deepcopy(eager), LIMIT)
    for model in (under, eager):
        model.seen = []
        model.register_full_backward_hook(
            lambda module, before, after: module.seen.append((*before, *after))
        )
        model(x.clone().requires_grad_()).square().sum().backward()
    for found, expected in zip(under.seen[0], eager.seen[0], strict=True):
        close(found, expected, "what it saw")


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.filterwarnings("ignore:The tensor attribute .* was assigned during export")
def test_hooks_that_compute_are_part_of_the_model():
    torch.manual_seed(0)
    model = classifier().double()
    weight_norm(model[4])  # a hook that sets the weight
    model[4].register_forward_hook(lambda module, args, output: 2 * output)
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = torch.randn(SHAPE, dtype=torch.float64)
    expected = model(x)
    expected.square().sum().backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    model.zero_grad()
    found = ooc.limit(model, LIMIT)(x)
    close(found, expected, "output")
    found.square().sum().backward()
    largest = max(float(each.abs().max()) for each in gradients.values())
    for name, each in model.named_parameters():
        close(each.grad, gradients[name], name, least=largest)


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_without_images_is_computed_as_eager_does(training):
    """It was refused: there is nothing to plan, and nothing to hold either."""
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).train(training)
    model = ooc.limit(copy.deepcopy(eager), LIMIT)
    made = []
    for each in (model, eager):
        x = torch.empty(0, *SHAPE[1:], requires_grad=True)
        y = each(x)
        y.sum().backward()
        made.append((y, x.grad, *(parameter.grad for parameter in each.parameters())))
    assert all(one.shape == other.shape for one, other in zip(*made, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    model(torch.ones(SHAPE))  # and images afterwards


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_with_a_sparse_gradient_is_refused_in_training(kind):
    model = nn.Sequential(kind(5, 4, sparse=True), nn.Linear(4, 2)).double()
    words = torch.tensor([[1, 2], [4, 0]])
    expected = model(words)
    ooc.limit(model, LIMIT)
    with pytest.raises(ooc.UnsupportedModelError, match=r"embedding\w* 0 has .*: make it with spa"):
        model(words)
    with torch.no_grad():
        close(model(words), expected, "without gradients")
    model[0].requires_grad_(False)
    close(model(words), expected, "frozen")


def test_gather_with_a_sparse_gradient_is_refused_in_training():
    places = torch.zeros(4, 4, 14, 14, dtype=torch.int64)
    model = ooc.limit(Of(lambda y: y.gather(1, places, sparse_grad=True)), LIMIT)
    with pytest.raises(ooc.UnsupportedModelError, match=r"make it with sparse_grad=False\n.*line"):
        model(torch.randn(SHAPE))


def test_a_function_among_the_layers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU()))
    model[1]._modules["0"] = torch.relu
    with pytest.raises(ooc.UnsupportedModelError, match=r"^1\.0, among the layers of 1 \(Seq.*put"):
        ooc.limit(model, LIMIT)
    assert "forward" not in vars(model)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("compiled", ["a scripted layer", "a traced layer", "a scripted model"])
def test_what_torch_jit_has_compiled(compiled):
    layer = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())
    if compiled == "a traced layer":
        model = nn.Sequential(nn.Conv2d(3, 3, 1), torch.jit.trace(layer, torch.zeros(SHAPE)))
    else:
        model = nn.Sequential(nn.Conv2d(3, 3, 1), torch.jit.script(layer))
    if compiled == "a scripted model":
        model = model[1]
    with pytest.raises(ooc.UnsupportedModelError, match=r"is compiled by torch\.jit.*put in"):
        ooc.limit(model, LIMIT)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_layer_that_torch_jit_compiles_after_the_limit():
    model = ooc.limit(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()), LIMIT)
    model(torch.zeros(SHAPE))
    model[1] = torch.jit.script(model[1])
    with pytest.raises(ooc.UnsupportedModelError, match=r"1 \(Recurs.* is compiled by torch\.jit"):
        model(torch.zeros(SHAPE))
