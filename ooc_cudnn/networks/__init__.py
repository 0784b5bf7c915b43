"""Networks that ship: each function returns ``(net, loss)``, ready to be planned and trained.

All take the size of the batch and of an image, a dtype, the number of classes, a seed, and `width`,
a factor of all channels but the last: for smaller relatives, and for tests. Inputs are called
"images" and "labels", results "logits" and "loss". In place of labels (n,), networks that classify
every site take labels of its shape.

>>> from ooc_cudnn import networks
>>> net, loss = networks.vgg16(batch=4, image=32, classes=10, width=1 / 16)
>>> net
Network of 39 nodes and 134,638 parameters
"""

from ooc_cudnn.networks.alexnet import alexnet, overfeat
from ooc_cudnn.networks.densenet import densenet121
from ooc_cudnn.networks.googlenet import googlenet
from ooc_cudnn.networks.resnet import resnet50, resnet152
from ooc_cudnn.networks.unet import unet, unet_3d
from ooc_cudnn.networks.vgg import vgg16, vgg19, vgg116, vgg216, vgg316, vgg416

__all__ = [
    "alexnet",
    "densenet121",
    "googlenet",
    "overfeat",
    "resnet50",
    "resnet152",
    "unet",
    "unet_3d",
    "vgg16",
    "vgg19",
    "vgg116",
    "vgg216",
    "vgg316",
    "vgg416",
]
