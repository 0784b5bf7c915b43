"""The tests, room by room as the sources stand; what they share is in `support`."""
