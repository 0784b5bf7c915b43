"""MO-SOS: which maps leave, which are made again, and by which algorithms, as one integer program.

Wei et al., "MO-SOS", J. Jilin Univ. (Sci.) 62(2), 2024: the whole numbers of Checkmate (recompute),
of STR (recompute and offload), and the algorithm of each convolution with its workspace.
"""

from typing import Final

#: Names of the policies that are one integer program, which are imported when they are asked for.
POLICIES: Final = ("mo_sos", "str", "checkmate")
