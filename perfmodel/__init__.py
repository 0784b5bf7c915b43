"""The performance model: pure arithmetic that predicts seconds.

Knows nothing of arrays, devices or ooc_cudnn. One file for each concept:

- `linear`: seconds = alpha * work + beta.
- `samples`, `fitting`: what a line was fitted to, and how.
- `transfer`: the link, one way and duplex, by placement; with `rows` (of memory, that lie apart),
  `staging` (through slabs) and `slowdown` (what both directions lose to each other).
- `work`, `compute`: operations, from the features of their work.
- `machine`: all of it for one machine, with JSON there and back.
- `lines`: the lines of a machine that something else may use while it is measured.
- `split`: the paper's piece sizes.
- `closed_form`: seconds of whole calls, by the paper's formula.
- `replay`: the same, step by step on a virtual clock.
- `data_sheets`, `scaling`, `shipped`: the profiles that come with the package, of cards that were
  measured and of cards that were not.
- `named`: the model that a name or a path means.
- `files`: reading within bounds what may be anything, and writing whole files or none.
"""

from .closed_form import Stages, binding_stage, closed_form
from .compute import ComputeModel
from .fitting import Fit, FitError, fit, fit_samples, fit_scaled
from .linear import Line
from .lines import LineFitter
from .machine import MachineFileError, MachineModel
from .replay import Timeline, VirtualStep, replay
from .samples import Samples
from .shipped import machine_label, shipped, shipped_names
from .slowdown import Slowdown
from .split import Split
from .transfer import PLACEMENTS, TransferModel
from .work import Direction, Work, convolution_work, pass_work

__all__ = [
    "PLACEMENTS",
    "ComputeModel",
    "Direction",
    "Fit",
    "FitError",
    "Line",
    "LineFitter",
    "MachineFileError",
    "MachineModel",
    "Samples",
    "Slowdown",
    "Split",
    "Stages",
    "Timeline",
    "TransferModel",
    "VirtualStep",
    "Work",
    "binding_stage",
    "closed_form",
    "convolution_work",
    "fit",
    "fit_samples",
    "fit_scaled",
    "machine_label",
    "pass_work",
    "replay",
    "shipped",
    "shipped_names",
]
