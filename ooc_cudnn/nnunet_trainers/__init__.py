"""The folder where nnU-Net finds `nnUNetTrainerLimit`: ``python -m ooc_cudnn.nnunet_trainers``."""
