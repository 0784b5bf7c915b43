"""What vDNN's paper reports of its Titan X: the figures that our simulation is put beside.

Rhu, Gimelshein, Clemons, Zulfiqar, Keckler: "vDNN: Virtualized deep neural networks for scalable,
memory-efficient neural network design", MICRO 2016. Savings are shares of the baseline's memory
(Torch's network-wide allocation with the fastest algorithms), losses of performance are 1 - t / T
of the seconds t of the oracle (the fastest algorithms, as if memory were unlimited) and T of a
policy. Savings must be those of feature maps and workspace: on average AlexNet is said to hold 11 %
of 1.1 GB, which is half of its weights. Bars of figures 11, 12 and 14 are in no table; what is here
the text states.
"""

from __future__ import annotations

from typing import NamedTuple

GIB = 2**30
#: Of its Titan X.
CARD_BYTES = 12 * GIB


class Case(NamedTuple):
    """A network, as `ooc_cudnn.networks` calls it, and its batch.

    `baseline_gib`, where the paper states it: its "GB". Binary ones: with decimal ones the memory
    of VGG-416 would be less than its maps and weights.
    """

    network: str
    batch: int
    baseline_gib: float | None = None

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}"


#: The six that others publish. The batches of OverFeat and GoogLeNet are in figures only.
CONVENTIONAL = (
    Case("alexnet", 128, 1.1),
    Case("overfeat", 128),
    Case("googlenet", 128),
    Case("vgg16", 64),
    Case("vgg16", 128, 15.0),
    Case("vgg16", 256, 28.0),
)
#: VGG-16 with 100, 200, 300 and 400 further convolutions.
DEEP = (
    Case("vgg116", 32),
    Case("vgg216", 32),
    Case("vgg316", 32),
    Case("vgg416", 32, 67.1),
)
#: That the paper calls the baseline of VGG-16 at a batch of 32, beside the deep ones.
SHALLOW = Case("vgg16", 32, 4.9)
#: Six of the ten do not fit the card's 12 GB under the baseline.
DO_NOT_FIT = frozenset({*CONVENTIONAL[4:], *DEEP})


class Way(NamedTuple):
    """A policy, and the algorithms of its convolutions: "m", of least memory, or "p", the fastest.

    `dyn` chooses each layer's.
    """

    policy: str
    algorithms: str = ""

    def __str__(self) -> str:
        short = self.policy.removeprefix("vdnn_")
        return f"{short} ({self.algorithms})" if self.algorithms else short


ALL_M, ALL_P = Way("vdnn_all", "m"), Way("vdnn_all", "p")
CONV_M, CONV_P = Way("vdnn_conv", "m"), Way("vdnn_conv", "p")
DYN = Way("vdnn_dyn")
ORACLE = Way("keep", "p")
WAYS = (ALL_M, ALL_P, CONV_M, CONV_P, DYN)


class Savings(NamedTuple):
    """Shares of the baseline's memory that are saved: at the most, and on average over a step."""

    most: float
    average: float


#: Means of the six conventional networks.
SAVINGS = {
    ALL_M: Savings(0.73, 0.93),
    ALL_P: Savings(0.64, 0.90),
    CONV_P: Savings(0.52, 0.76),
    DYN: Savings(0.49, 0.69),
}
#: The best of any policy.
AVERAGE_SAVINGS = {"alexnet": 0.89, "overfeat": 0.91, "googlenet": 0.95}


class Loss(NamedTuple):
    """Losses of performance against the oracle: their mean, and the worst."""

    mean: float
    worst: float


LOSSES = {ALL_M: Loss(0.58, 0.65), CONV_M: Loss(0.55, 0.63), DYN: Loss(0.03, 0.18)}
#: The worst of `dyn` is that of VGG-16 at a batch of 256.
WORST_OF_DYN = CONVENTIONAL[5]

#: VGG-16 at a batch of 128 under `all (m)`: its peak, and its loss of performance.
VGG_128_PEAK_BYTES = 4.8 * GIB
VGG_128_LOSS = 0.61
#: What a step of VGG-16 at a batch of 256 offloads under `all`.
VGG_256_OFFLOADED_BYTES = 16e9
#: The deep networks under `dyn`: the most on the card, and the share of all bytes on the host.
DEEP_MOST_BYTES = 4.2 * GIB
DEEP_ON_HOST = (0.81, 0.92)

#: Of forward and backward, the least and the most of the time that convolutions take.
CONVOLUTION_SHARE = (0.70, 0.80)
