"""Measures a device, and fits the machine model that plans are made with."""

from ooc_cudnn.calibration.run import calibrate

__all__ = ["calibrate"]
