"""Say where the folder is, for the environment variable ``nnUNet_extTrainer``."""

import os
import sys

if __name__ == "__main__":
    sys.stdout.write(os.path.dirname(os.path.abspath(__file__)) + "\n")
