"""Small relatives of torchvision's models, made by its own classes: name to (model, shape)."""

from __future__ import annotations

from tests.support.torchvision_models import models

CLASSES, DRAWS_NOTHING = {"num_classes": 3}, {"dropout": 0.0}


def densenet():
    """Two blocks of two layers, whose maps are concatenated, and the transition between them."""
    kind = models().densenet.DenseNet
    return kind(4, (2, 2), 8, **CLASSES), (2, 3, 64, 64)


def efficientnet():
    """Two blocks with squeeze and excitation, the second one wider and at a stride."""
    found = models().efficientnet
    blocks = [found.MBConvConfig(1, 3, 1, 8, 8, 1), found.MBConvConfig(4, 3, 2, 8, 16, 2)]
    how = {**DRAWS_NOTHING, **CLASSES, "stochastic_depth_prob": 0.0, "last_channel": 24}
    return found.EfficientNet(blocks, **how), (2, 3, 32, 32)


def mobilenet():
    """As MobileNetV3: hardswish, and a block with squeeze and excitation."""
    found = models().mobilenetv3
    blocks = [
        found.InvertedResidualConfig(8, 3, 8, 8, False, "RE", 1, 1, 1),
        found.InvertedResidualConfig(8, 5, 16, 16, True, "HS", 2, 1, 1),
    ]
    return found.MobileNetV3(blocks, last_channel=24, **DRAWS_NOTHING, **CLASSES), (2, 3, 32, 32)


RELATIVES = {each.__name__: each for each in (densenet, efficientnet, mobilenet)}
