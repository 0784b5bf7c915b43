"""PyTorch models under a memory limit: one line, and a model trains and infers within it.

    import ooc_cudnn.torch as ooc
    ooc.limit(model, "8GiB")

The model stays the same object, with the same parameters and the same state_dict; its forward is
replaced. TorchDynamo captures it at its first call of a shape; it is lowered to a `Network`, and
planned as a whole. Later calls are captured anew where something that forward reads has changed.

`torch.compile(model, backend="ooc_cudnn", options={"memory_limit": "8GiB"})` is the same for models
that cannot be captured whole: each graph has the limit for itself.
"""

from ooc_cudnn.extras import brought_by

with brought_by("torch", "torch"):
    from ooc_cudnn.torch.errors import (
        HiddenGradientError,
        RanksError,
        SecondDerivativeError,
        UnsupportedModelError,
        UnsupportedOperationError,
    )
    from ooc_cudnn.torch.inferring import infer, output_shape, plan_infer
    from ooc_cudnn.torch.limit import limit, release
    from ooc_cudnn.torch.model_with_loss import with_loss
    from ooc_cudnn.torch.planning import plan, tune
    from ooc_cudnn.torch.sweeping import sweep

__all__ = [
    "HiddenGradientError",
    "RanksError",
    "SecondDerivativeError",
    "UnsupportedModelError",
    "UnsupportedOperationError",
    "infer",
    "limit",
    "output_shape",
    "plan",
    "plan_infer",
    "release",
    "sweep",
    "tune",
    "with_loss",
]
