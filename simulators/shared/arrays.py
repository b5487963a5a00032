"""The types of arrays in simulators' tables."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Records: TypeAlias = npt.NDArray[Any]
"""An array with named fields."""
Record: TypeAlias = Any
"""A row of such an array."""
