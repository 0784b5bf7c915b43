"""Measures a device, and fits the machine model that plans are made with.

`copies`, `files`, `calls` and `compute` (which `shapes` draws) are what is measured, `run` their
order; `session` keeps it, `fit_model` fits it, `report` says it, `pictures` draw it.
"""

from ooc_cudnn.calibration.run import calibrate

__all__ = ["calibrate"]
