"""Objects that stand in PyTorch's autograd for a step under a limit."""
