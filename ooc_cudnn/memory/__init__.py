"""Memory: the arena and its limit, users' arrays, pinned memory, copies between placements."""
