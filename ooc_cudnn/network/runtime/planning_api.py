"""The planning API of a network: `plan`, `training_step`, `forward` and their kind."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from ooc_cudnn.network.graph.graph import Graph
from ooc_cudnn.network.graph.parameters import Parameters
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.report.timeline import draw_step
from ooc_cudnn.network.runtime.constraints_here import Limit, constraints_for
from ooc_cudnn.network.runtime.inference import ForwardStep
from ooc_cudnn.network.runtime.plan_cache import load_or_plan
from ooc_cudnn.network.runtime.training import TrainingStep
from ooc_cudnn.network.runtime.two_part import TwoPartStep
from ooc_cudnn.network.search.plan_step import check_asked, plan_again
from perfmodel import MachineModel


class Runnable:
    """A built network that can plan, run and train; `running` are running statistics."""

    graph: Graph
    parameters: Parameters
    running: Parameters

    @property
    @abstractmethod
    def wanted(self) -> tuple[str, ...]:
        """Tensors that a step of training makes gradients of."""

    @abstractmethod
    def training_phases(self, loss: Tensor, wanted: Iterable[str] | None = None) -> Step:
        """The phases of a step of training."""

    @abstractmethod
    def pausing_phases(self, *outputs: Tensor, seeded: Collection[int] | None = None) -> Step:
        """The phases of a step of training that pauses; outputs that are seeded have gradients."""

    @abstractmethod
    def training_forward_phases(self, *outputs: Tensor) -> Step:
        """The phases of training's forward, without backward."""

    @abstractmethod
    def forward_phases(self, *outputs: Tensor) -> Step:
        """The phases of inference."""

    def plan(
        self,
        loss: Tensor,
        *,
        memory_limit: Limit = None,
        policy: str = "best",
        machine: MachineModel | str | os.PathLike[str] | None = None,
        micro_batches: int | None = None,
        bound: bool = False,
    ) -> NetworkPlan:
        """Plan a step of training; no data and, with `machine`, no card needed.

        Parameters
        ----------
        loss : Tensor
            Of one element.
        memory_limit : int, float or str, optional
            Device memory that the library may hold: bytes, a share of the card's (0.5), or text
            ("8GiB"). The setting's when left out.
        policy : str
            "best" (the fastest of those that fit), "keep", "remake", "checkpoint", "offload",
            "mixed" (recomputed, then offloaded), "vdnn_all", "vdnn_conv", "vdnn_dyn", or "mo_sos",
            "str" or "checkmate". What each does
            is in docs/networks.md.
        machine : MachineModel or str, optional
            The machine to predict for; the one at hand when left out.
        micro_batches : int, optional
            Parts of the batch that go through the network one after the other; chosen when left
            out. 1 where something needs the whole batch, as batch normalization does.
        bound : bool
            Whether to say, too, what no plan of this kind can beat (`bound_seconds`): that takes
            seconds for a large network.

        Raises
        ------
        ValueError
            If the loss is no scalar, the policy is not known, or the network needs the whole batch
            and `micro_batches` asks for parts.
        PlanInfeasibleError
            If the memory limit admits no plan, with the smallest that would.
        HostOutOfMemoryError
            If what the step would keep on the host is more than there is (with `machine`: than the
            setting host_memory_limit).
        """
        step = self.training_phases(loss)
        constraints = constraints_for(memory_limit, machine, step, {})
        return load_or_plan(
            "training_step",
            step,
            constraints,
            policy=policy,
            micro_batches=micro_batches,
            bound=bound,
        ).plan

    def plot(
        self,
        loss: Tensor,
        plan: NetworkPlan,
        path: str | os.PathLike[str],
        *,
        machine: MachineModel | str | os.PathLike[str] | None = None,
    ) -> None:
        """Draw a plan: the three streams, and what device memory holds, over the step.

        Parameters
        ----------
        loss, machine
            As the plan was made with.
        plan : NetworkPlan
        path : str
            A PNG, an SVG, a PDF.

        Raises
        ------
        ValueError
            If it is the plan of another network.
        ModuleNotFoundError
            If matplotlib is not installed.
        """
        step = self.training_phases(loss)
        constraints = constraints_for(plan.memory_limit, machine, step, {})
        draw_step(plan_again(step, plan, constraints), path)

    def training_step(
        self,
        loss: Tensor,
        *,
        memory_limit: Limit = None,
        policy: str = "best",
        micro_batches: int | None = None,
        plan: NetworkPlan | None = None,
    ) -> TrainingStep:
        """Return a step of training: call it with the inputs, and it returns the loss.

        It is planned at its first call, and again where arrays lie elsewhere or settings change:
        those count that are in force at the call. What is frozen now stays so in this step.

        Parameters
        ----------
        loss, memory_limit, policy, micro_batches
            As for `plan`.
        plan : NetworkPlan, optional
            One that was made before, for this network; it decides in place of `policy` and
            `micro_batches`.

        Raises
        ------
        ValueError
            If the loss is no scalar.
        """
        make = partial(self.training_phases, loss, self.wanted)
        make()  # refuses what cannot be trained
        check_asked(policy, micro_batches)
        asked = {"policy": policy, "micro_batches": micro_batches}
        limit = memory_limit
        if plan is not None and not isinstance(plan, NetworkPlan):
            said = f"plan must be a NetworkPlan, not {type(plan).__name__}"
            raise TypeError(f"{said}; NetworkPlan.from_json makes one of what to_json returned")
        if plan is not None and limit is None:
            limit = plan.memory_limit
        return TrainingStep(self, make, limit, asked, plan)

    def pausing_step(
        self,
        *outputs: Tensor,
        memory_limit: Limit = None,
        policy: str = "best",
        seeded: Collection[int] | None = None,
        phases: Step | None = None,
    ) -> TwoPartStep:
        """Return a step of training in two calls, for a loss that is made elsewhere.

        Its `forward` takes the inputs and returns what it made; `backward` of that takes the
        gradients of the outputs and returns those of all that is not frozen. It is planned as
        `training_step` is.

        Parameters
        ----------
        *outputs : Tensor
            What is asked for; each depends on something that has a gradient.
        memory_limit, policy
            As for `plan`; it holds for both calls, and between them.
        seeded : collection of int, optional
            The places of the outputs whose gradients are given; by default of all that have one. A
            gradient of zeros would be multiplied with what may be infinite.
        phases : Step, optional
            Its `pausing_phases`, where they are made already: else they are, to be looked at.

        Raises
        ------
        ValueError
            If an output is given and not made, or none depends on anything that has a gradient.
        """
        make = partial(self.pausing_phases, *outputs, seeded=seeded)
        step = make() if phases is None else phases
        if not step.seeds:
            said = ", ".join(step.outputs)
            raise ValueError(f"{said} depends on nothing that has a gradient")
        check_asked(policy, 1)
        return TwoPartStep(self, make, memory_limit, {"policy": policy}, None)

    def forward(
        self, /, *outputs: Tensor, memory_limit: Limit = None, out: Any = None, **inputs: Any
    ) -> Any:
        """Run inference: by running statistics, without dropout. It is planned at each call.

        Parameters
        ----------
        *outputs : Tensor
            What is asked for.
        memory_limit : int, float or str, optional
            As for `plan`.
        out : array or tuple of arrays, optional
            Where to write the results; any placement.
        **inputs : array
            By the names of inputs that the outputs depend on.

        Returns
        -------
        array, or tuple of them for several outputs

        Raises
        ------
        TypeError, ValueError
            If an input or a result has not the network's shape or dtype, or is missing.
        PlanInfeasibleError
            If the memory limit admits no plan, with the smallest that would.
        """
        step = self.forward_step(*outputs, memory_limit=memory_limit)
        targets = out if isinstance(out, tuple | list) else (out,) * (out is not None)
        asked = tuple(dict.fromkeys(output.name for output in step.outputs))
        if out is not None and len(targets) != len(asked):
            raise TypeError(f"out must hold {len(asked)} arrays, not {len(targets)}")
        results = step.run(inputs, dict(zip(asked, targets, strict=False))).outputs
        return results if len(results) > 1 else results[0]

    def forward_step(
        self, *outputs: Tensor, memory_limit: Limit = None, training: bool = False
    ) -> ForwardStep:
        """Return what runs forward again and again, and is planned once.

        Parameters
        ----------
        *outputs, memory_limit
            As for `forward`.
        training : bool
            Whether forward is training's: by the statistics of the batch, with dropout.
        """
        make = self.training_forward_phases if training else self.forward_phases
        return ForwardStep(self, partial(make, *outputs), memory_limit, {}, None)
