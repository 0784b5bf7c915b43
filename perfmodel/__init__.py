"""The performance model: pure arithmetic that predicts seconds and chooses the split.

Knows nothing of arrays, devices or ooc_cudnn. One file for each concept:

- `linear`: seconds = alpha * work + beta, fitted and predicted.
- `samples`: what a line was fitted to.
- `transfer`: the link, one way and duplex, by placement.
- `work`, `compute`: operations, from the features of their work.
- `machine`: all of it for one machine, with JSON there and back.
- `pipeline`: seconds of a whole split in closed form.
- `replay`: the same, step by step on a virtual clock.
- `problem`: what a search is asked and what it answers.
- `search`, `search_local`, `search_guided`: the split with the fewest seconds under a memory limit.
"""

from .compute import ComputeModel
from .linear import Fit, FitError, Line, fit
from .machine import MachineFileError, MachineModel, shipped, shipped_names
from .pipeline import PipelineCost, Split, binding_stage, closed_form
from .problem import Found, InfeasibleError, Price, Problem, default_candidates
from .replay import Timeline, VirtualStep, replay
from .samples import Samples, fit_proportional, fit_samples, fit_scaled
from .search import exhaustive_search, ordered_search
from .search_guided import EstimatedProblem, guided_search
from .search_local import local_search
from .slowdown import Slowdown
from .transfer import PLACEMENTS, TransferModel
from .work import Direction, Work, convolution_flops, convolution_work, pass_work

__all__ = [
    "PLACEMENTS",
    "ComputeModel",
    "Direction",
    "EstimatedProblem",
    "Fit",
    "FitError",
    "Found",
    "InfeasibleError",
    "Line",
    "MachineFileError",
    "MachineModel",
    "PipelineCost",
    "Price",
    "Problem",
    "Samples",
    "Slowdown",
    "Split",
    "Timeline",
    "TransferModel",
    "VirtualStep",
    "Work",
    "binding_stage",
    "closed_form",
    "convolution_flops",
    "convolution_work",
    "default_candidates",
    "exhaustive_search",
    "fit",
    "fit_proportional",
    "fit_samples",
    "fit_scaled",
    "guided_search",
    "local_search",
    "ordered_search",
    "pass_work",
    "replay",
    "shipped",
    "shipped_names",
]
