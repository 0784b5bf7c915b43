"""``ooc-cudnn demo``: a photograph filtered under a tenth of its memory, checked and drawn."""

from ooc_cudnn.demo.run import run_demo as run_demo
