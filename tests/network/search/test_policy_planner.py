"""Of what a policy decides for a step, the first decision that fits is taken."""

from ooc_cudnn import networks


def test_remaking_all_may_take_more_than_remaking_some():
    """The last decision did not fit, so all was streamed, where those before it fit."""
    net, loss = networks.resnet50(batch=8, image=64)
    kept = net.plan(loss, policy="keep", machine="h200", memory_limit="8GiB")
    limit = int(0.8 * kept.device_bytes)
    for policy in ("remake", "mixed"):
        plan = net.plan(loss, policy=policy, machine="h200", memory_limit=limit)
        assert plan.rematerialized
        assert "streamed" not in plan.fate.values()
        assert plan.seconds < 1.2 * kept.seconds
