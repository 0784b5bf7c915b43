"""What a capture has TorchDynamo follow otherwise: in its own thread, and nowhere else."""

import threading

import pytest
import torch
from torch._dynamo.variables import TensorVariable
from torch.utils.checkpoint import checkpoint_sequential

from ooc_cudnn.torch.capture.dynamo_patches.checkpoints import checkpoints_followed
from ooc_cudnn.torch.capture.dynamo_patches.covariances import covariances_followed
from ooc_cudnn.torch.capture.dynamo_patches.jit_isinstance import jit_isinstance_followed
from ooc_cudnn.torch.capture.dynamo_patches.traced_functions import functions_followed
from ooc_cudnn.torch.capture.dynamo_patches.traced_tensors import tensors_followed
from ooc_cudnn.torch.capture.late_reads import late_reads_refused
from ooc_cudnn.torch.thread_patches import patched_in_this_thread
from ooc_cudnn.torch.tracing.element_indexing import indices_followed


def in_another_thread(function):
    """What a function makes in another thread, or the error that it raises there."""
    made = []

    def run():
        try:
            made.append(function())
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return made[0]


def backward_within(x):
    x = x.detach().requires_grad_()
    x.square().sum().backward()
    return x.grad


def in_a_row(x):
    return checkpoint_sequential([torch.sin, torch.cos], 2, x, use_reentrant=False)


class Twice(torch.autograd.Function):
    """Returns a list, which a model under a limit is refused for."""

    @staticmethod
    def forward(ctx, x):
        return [x * 2]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def through_a_function(x):
    return Twice.apply(x)[0]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize("function", [backward_within, torch.cov, in_a_row, through_a_function])
def test_a_compile_in_another_thread_is_as_without_a_capture(function):
    x = torch.randn(3, 4).requires_grad_()
    torch._dynamo.reset()
    torch.compile(torch.sin, backend="eager")(x)  # PyTorch 2.11 crashes later if a thread is first
    with (
        jit_isinstance_followed(),
        checkpoints_followed(),
        functions_followed(),
        tensors_followed(in_inference_mode=False),
        covariances_followed(),
        indices_followed(),
        late_reads_refused(),
    ):
        made = in_another_thread(lambda: torch.compile(function, backend="eager")(x))
    torch.testing.assert_close(made, function(x))


def test_what_a_class_has_not_it_has_in_one_thread_alone():
    assert not hasattr(TensorVariable, "method_cov")
    with covariances_followed():
        assert hasattr(TensorVariable, "method_cov")
        assert not in_another_thread(lambda: hasattr(TensorVariable, "method_cov"))
    assert not hasattr(TensorVariable, "method_cov")


def test_a_patch_is_given_what_it_stands_for_and_is_taken_back_after_an_error():
    class Base:
        def add(self, x):
            return x + 1

    class Derived(Base):
        pass

    def more(was, self, x):
        return was(self, x) + 10

    def fail():
        with patched_in_this_thread((Derived, "add", more)):
            assert (Derived().add(1), Base().add(1)) == (12, 2)
            assert in_another_thread(lambda: Derived().add(1)) == 2
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert Derived().add(1) == 2
    assert "add" not in vars(Derived)


def test_what_is_not_there_is_not_patched_in_silence():
    """A PyTorch of another version may have no such name, and would never call ours."""

    class Place:
        here = staticmethod(lambda: 1)

    for name, are_new, said in (("gone", False, "has no gone"), ("here", True, "has already here")):
        with (
            pytest.raises(AttributeError, match=rf"Place .*{said} in PyTorch"),
            patched_in_this_thread((Place, name, lambda *given: 2), are_new=are_new),
        ):
            pass
    assert Place.here() == 1
    assert not hasattr(Place, "gone")
