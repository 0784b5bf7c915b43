"""Tensors whose elements a hook, a function's backward or a checkpoint reads when backward runs.

A plan has them as forward read them. Some others have, too: outputs, arguments, what the model
holds. Who changes one of these in place before backward would change PyTorch's gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ooc_cudnn.torch.errors import LateChangeError
from ooc_cudnn.torch.places import users_frame


@dataclass(frozen=True)
class LateTensor:
    """A tensor that is read so.

    Attributes
    ----------
    name : str
        As its user writes it.
    who : str
        What reads it.
    where : str
        The line of that.
    """

    name: str
    who: str
    where: str


class LateTensors:
    """The versions of such tensors when forward has ended.

    Parameters
    ----------
    pairs : iterable of (LateTensor, Tensor)
    """

    def __init__(self, pairs: Iterable[tuple[LateTensor, torch.Tensor]]) -> None:
        # an output must not be held by its own graph: another tensor, of the same version
        self._seen = [
            (late, each.detach(), each._version) for late, each in pairs if not each.is_inference()
        ]

    def check(self) -> None:
        """Refuse a backward before which one was changed in place.

        Raises
        ------
        LateChangeError
            With its name, and the line that reads it.
        """
        for late, tensor, version in self._seen:
            if tensor._version != version:
                raise LateChangeError(
                    f"{late.who} reads {late.name}, which has changed in place between forward and "
                    "backward, and a plan has it as forward left it: change it after backward, or "
                    f"let forward give a clone of it to what reads it\n  {late.where}"
                    f"{users_frame()}"
                )
