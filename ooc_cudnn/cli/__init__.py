"""The command line: ``ooc-cudnn doctor | calibrate | plan | demo | bench``."""

from ooc_cudnn.cli.commands import main as main
