"""Names of the arrays that everything passes around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
State = NDArray[np.uint64]
"""States of random streams, one for each trajectory."""
