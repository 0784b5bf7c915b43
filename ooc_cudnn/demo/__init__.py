"""``ooc-cudnn demo``: a photograph filtered with a tenth of its data's memory, and checked."""

from ooc_cudnn.demo.run import run_demo as run_demo
