"""The tiling engine: calls, their pieces and tiles, launches, and what operations are made of."""
