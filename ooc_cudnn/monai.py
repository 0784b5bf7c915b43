"""MONAI: a model on whole volumes, exact and within a limit, in place of sliding windows.

    from ooc_cudnn.monai import WholeImageInferer
    inferer = WholeImageInferer("8GiB", reduce="argmax")
    labels = inferer(volumes, network)

Needs the extra ``monai``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ooc_cudnn.extras import brought_by

with brought_by("monai", "monai", "torch"):
    import torch
    from monai.data.meta_obj import get_track_meta
    from monai.data.meta_tensor import MetaTensor
    from monai.inferers import Inferer

import numpy as np
from torch.utils import _pytree as pytree

from ooc_cudnn.network.runtime.constraints_here import Limit
from ooc_cudnn.torch.inferring import check_reduction, infer_call
from ooc_cudnn.torch.limit import limited_forward
from ooc_cudnn.torch.stored import check_scale
from ooc_cudnn.units import parse_limit

__all__ = ["WholeImageInferer"]


class WholeImageInferer(Inferer):
    """Run a network on whole images or volumes within a memory limit: no windows, and no seams.

    It is called as `monai.inferers.SlidingWindowInferer` is, and computes what ``network(inputs)``
    does, by `ooc_cudnn.torch.infer`. Instance normalization takes the statistics of the volume.

    Parameters
    ----------
    memory_limit : int, float or str, optional
        As for `ooc_cudnn.torch.limit`. When left out, that of a network under a limit; for others
        the setting's.
    reduce : str, optional
        "argmax": labels (n, 1, ...) in place of scores (n, classes, ...), as
        ``network(inputs).argmax(1, keepdim=True)``. They are of `out`'s dtype; uint8 where it is
        no array. Scores never leave the card.
    out : array, path or callable, optional
        Where to write the result, as for `ooc_cudnn.torch.infer`: an array, a memmap, an array of
        Zarr or HDF5, the path of a ``.npy`` file or a ``.zarr`` folder; or a function that takes
        the inputs and returns one of these, for a file for each volume.
    scale : float, optional
        As for `ooc_cudnn.torch.limit`: for volumes of integers.

    Raises
    ------
    TypeError, ValueError
        If `memory_limit`, `reduce` or `scale` is none; at a call, as `ooc_cudnn.torch.infer`, and
        if the network is no module.
    UnsupportedModelError, PlanInfeasibleError
        At a call, as `ooc_cudnn.torch.infer`: a network in training mode, for one.

    Examples
    --------
    >>> import torch, ooc_cudnn
    >>> from monai.data import MetaTensor
    >>> from ooc_cudnn.monai import WholeImageInferer
    >>> network = torch.nn.Conv3d(1, 4, 3, padding=1).eval()
    >>> volume = MetaTensor(torch.randn(1, 1, 16, 16, 16), affine=2.0 * torch.eye(4))
    >>> with ooc_cudnn.settings(device="host", machine="host"):
    ...     labels = WholeImageInferer("64KiB", reduce="argmax")(volume, network)
    >>> labels.shape, labels.dtype, float(labels.affine[0, 0])
    (torch.Size([1, 1, 16, 16, 16]), torch.uint8, 2.0)
    >>> bool((labels == network(volume).argmax(1, keepdim=True)).all())
    True
    """

    def __init__(
        self,
        memory_limit: Limit = None,
        *,
        reduce: str | None = None,
        out: Any = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if memory_limit is not None:
            parse_limit(memory_limit, name="memory_limit")
        check_reduction(reduce)
        check_scale(scale)
        self.memory_limit, self.reduce, self.out, self.scale = memory_limit, reduce, out, scale

    def __call__(
        self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run a network on whole images.

        Parameters
        ----------
        inputs : Tensor, MetaTensor or array
            Images (n, c, ...), as the network takes them; files, too, as for
            `ooc_cudnn.torch.infer`.
        network : torch.nn.Module
            In evaluation.
        *args, **kwargs
            Its other arguments.

        Returns
        -------
        Tensor, or what the network returns of tensors
            Each a MetaTensor with the metadata of `inputs`, where that is one. Of `out` it is a
            tensor that shares its memory; of an array of Zarr or HDF5 the array.
        """
        if not isinstance(network, torch.nn.Module):
            raise TypeError(
                f"network must be a torch.nn.Module, not {type(network).__name__}: make a function "
                "the forward of a module, so that its layers are known"
            )
        out = self.out(inputs) if callable(self.out) else self.out
        result = infer_call(
            network, (inputs, *args), kwargs, out, self._limit_for(network), self.reduce, self.scale
        )
        has_channel = out is not None and not isinstance(out, str | os.PathLike)
        return pytree.tree_map(lambda each: self._given_back(each, inputs, has_channel), result)

    def _limit_for(self, network: torch.nn.Module) -> Limit:
        """The limit of the inferer, or else of the network."""
        own = limited_forward(network)
        return own.memory_limit if self.memory_limit is None and own else self.memory_limit

    def _given_back(self, made: Any, inputs: Any, has_channel: bool) -> Any:
        """A result as MONAI has it: a tensor with an axis of channels, and the inputs' metadata."""
        if isinstance(made, np.ndarray):
            made = torch.from_numpy(made)
        if not isinstance(made, torch.Tensor):
            return made
        if self.reduce is not None and not has_channel:
            made = made[:, None]
        if not isinstance(inputs, MetaTensor) or not get_track_meta():
            return made
        return MetaTensor(made).copy_meta_from(inputs)
