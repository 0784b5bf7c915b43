"""The command line: ``ooc-cudnn doctor | calibrate | tune | plan | demo | bench``."""

from ooc_cudnn.cli.commands import main as main
