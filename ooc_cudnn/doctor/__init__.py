"""``ooc-cudnn doctor``: what is installed, what of it works, and the command that mends the rest.

`diagnosis` gathers facts and never raises, `rules` judges them, `report` writes both for a person.
CUDA is looked at by `probe` in a process of its own, so that a broken library ends that one only.
"""
