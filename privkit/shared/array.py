"""The type of all arrays in double precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]  # float64, of any shape
