"""Try an installed wheel where nothing else is: `make wheels` runs this in clean environments.

A convolution on the host device is compared with the sum that defines it, within a memory limit
that it must be cut for, and the command line is asked for its help.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

import ooc_cudnn

LIMIT = 2**18


def defined(x, w):
    """Return the convolution of x (n, cX, h, w) and w (cY, cX, 3, 3) with padding 1, as a sum."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    return sum(
        np.einsum("nchw,yc->nyhw", padded[..., i : i + height, j : j + width], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )


def main() -> None:
    """Exit with an error where something is not right."""
    here = Path(__file__).resolve().parent.parent
    if here in Path(ooc_cudnn.__file__).resolve().parents:
        sys.exit("the checkout was imported, not the wheel: run this from another folder")
    random = np.random.default_rng(0)
    x, w = random.standard_normal((2, 8, 64, 64)), random.standard_normal((4, 8, 3, 3))
    with ooc_cudnn.settings(device="host", machine="host", memory_limit=LIMIT, progress=False):
        found = ooc_cudnn.convolution_forward(x, w, padding=1)
    error = float(np.abs(found - defined(x, w)).max())
    if error > 1e-12 * np.abs(found).max():
        sys.exit(f"the convolution is off by {error:.3g}")
    command = Path(sys.executable).with_name("ooc-cudnn")
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
    version = ".".join(map(str, sys.version_info[:2]))
    print(f"ooc_cudnn {ooc_cudnn.__version__} on Python {version}: right to {error:.1e}")


if __name__ == "__main__":
    main()
