"""Softmax over channels and over images, and the channel of the largest value."""
