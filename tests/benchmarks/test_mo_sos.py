"""MO-SOS's figures: what is assumed of algorithms, and what is claimed of the comparison."""

import pytest

from benchmarks import mo_sos, mo_sos_machine
from benchmarks.mo_sos_replay import UNET, VGG, keep_all, padded_unet
from ooc_cudnn.bench.record import load_record
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.convolution.gradients import ConvolutionBackwardFilter

#: Node v18 of VGG-19.
V18 = Convolution.of((144, 256, 56, 56), (256, 256, 3, 3), padding=1)


def test_workspace_is_what_the_paper_states_of_v18():
    fastest, middle, slowest = mo_sos_machine.options(V18)
    assert (fastest.name, middle.name, slowest.name) == (
        mo_sos_machine.NON_FUSED,
        mo_sos_machine.WINOGRAD,
        mo_sos_machine.PRODUCTS,
    )
    assert fastest.workspace_bytes == pytest.approx(2e9, rel=0.05)
    assert middle.workspace_bytes == pytest.approx(6e6, rel=0.05)
    assert slowest.workspace_bytes == 0
    assert fastest.seconds < middle.seconds < slowest.seconds


def test_filters_gradients_have_no_winograd_without_workspace():
    of_filters = ConvolutionBackwardFilter(V18, "float32")
    names = [each.name for each in mo_sos_machine.options(of_filters)]
    assert names == [mo_sos_machine.NON_FUSED, mo_sos_machine.PRODUCTS]
    one = Convolution.of((144, 256, 56, 56), (256, 256, 1, 1))
    assert [each.name for each in mo_sos_machine.options(one)] == [mo_sos_machine.PRODUCTS]


def test_both_networks_fit_the_card_with_everything_kept():
    assert keep_all(VGG) < mo_sos_machine.CARD_BYTES
    assert keep_all(UNET) < mo_sos_machine.CARD_BYTES
    net, loss = padded_unet(2, 32, width=4)
    assert loss.shape == (1,)
    assert [t.shape for t in net.graph.tensors.values() if t.name == "logits"] == [(2, 2, 32, 32)]


def test_what_is_stored_has_every_step_and_best_is_below():
    found = load_record(mo_sos.NAME)["measurements"]
    for network in mo_sos.NETWORKS:
        for ratio in mo_sos.RATIOS:
            of = {p: found[f"{network} at {ratio}: {p}"] for p in mo_sos.POLICIES}
            assert all(row.get("seconds", 1) > 0 for row in of.values())
            if "seconds" in of["mo_sos"]:
                assert of["best"]["seconds"] < of["mo_sos"]["seconds"]
