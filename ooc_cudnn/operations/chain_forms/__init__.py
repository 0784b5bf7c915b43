"""The operations of a chain as users write them, with their arrays."""
