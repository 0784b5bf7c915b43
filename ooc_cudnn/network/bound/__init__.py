"""Lower bound of a step's seconds under a limit, by a linear program over live ranges."""
