"""Policies: fixed rules for what is kept, offloaded and rematerialized; vDNN's and our own."""
