"""``python -m ooc_cudnn.cli``, where the command ``ooc-cudnn`` is not on the path."""

import sys

from ooc_cudnn.cli.commands import main

sys.exit(main())
