"""Graphs of nodes, and autodiff: from what users build to the operations of a step."""
