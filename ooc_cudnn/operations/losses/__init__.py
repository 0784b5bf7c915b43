"""Losses: launches, and the calls that sum them."""
