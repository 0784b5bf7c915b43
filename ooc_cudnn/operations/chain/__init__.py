"""Chains: operations run back to back on one piece, with the halo of each."""
