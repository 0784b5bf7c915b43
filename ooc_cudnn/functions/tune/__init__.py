"""`tune`: engines of all that a workload launches, measured in rounds."""
