"""The functions that users call, a file a group: signature, docstring and what is asked."""
