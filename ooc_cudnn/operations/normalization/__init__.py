"""Normalizations over batch, groups, layers, neighbouring channels: forward and gradients."""
