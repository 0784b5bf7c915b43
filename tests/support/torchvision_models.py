"""torchvision's models, where it is installed; its compiled operators are not needed for them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

_declared = []


def models():
    """The module torchvision.models; the test is skipped where there is none."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        pytest.skip("torchvision is not installed")
    try:
        import torchvision.models
    except (ImportError, RuntimeError):
        _declare(Path(found.origin).parent / "_meta_registrations.py")
        import torchvision.models
    return torchvision.models


def _declare(registrations):
    """Declare its operators, whose library was built for another PyTorch: imports ask for them."""
    library = torch.library.Library("torchvision", "DEF")
    _declared.append(library)  # as long as it lives
    names = re.findall(r'(?:register_meta\(|register_fake\()"(?:torchvision::)?(\w+)"',
                       registrations.read_text())  # fmt: skip
    for name in dict.fromkeys(names):
        library.define(f"{name}(Tensor x) -> Tensor")


def made(name, **options):
    """A model without weights: "resnet18", "segmentation.deeplabv3_resnet50"."""
    found = models()
    for part in name.split("."):
        found = getattr(found, part)
    return found(weights=None, **options)
