"""Tracing of TorchDynamo's graph to a graph of ATen's operations without aliases or writes."""
