"""The trainer, in a module that nnU-Net imports by its search: see `ooc_cudnn.nnunet`."""

from ooc_cudnn.nnunet import nnUNetTrainerLimit

__all__ = ["nnUNetTrainerLimit"]
