"""Examples in docstrings are run where the packages of their modules are installed.

Those for Lightning are run by tests/test_lightning.py, which declares the operators that its import
needs.
"""

from importlib.util import find_spec

NEEDED = {
    "ooc_cudnn/dask": "dask",
    "ooc_cudnn/monai.py": "monai",
    "ooc_cudnn/nnunet.py": "nnunetv2",
    "ooc_cudnn/nnunet_trainers": "nnunetv2",
    "ooc_cudnn/torch": "torch",
}

collect_ignore = [
    "ooc_cudnn/lightning.py",
    *(path for path, package in NEEDED.items() if find_spec(package) is None),
]
