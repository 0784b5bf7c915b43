"""torchvision's models, where it is installed; its compiled operators are not needed for them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.library_models import torchvision_models


def models():
    """The module torchvision.models; the test is skipped where there is none."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return torchvision_models()


def made(name, **options):
    """A model without weights: "resnet18", "segmentation.deeplabv3_resnet50"."""
    found = models()
    for part in name.split("."):
        found = getattr(found, part)
    return found(weights=None, **options)
