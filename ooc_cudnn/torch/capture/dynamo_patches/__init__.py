"""Patches of TorchDynamo while it traces, where it takes Python or PyTorch for another thing."""
