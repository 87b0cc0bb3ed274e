"""Where an array's data lies.  ``ndarray.ctypes`` builds two objects to say so, a tenth of all that a short draw costs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["address_of"]

PROBE = np.zeros(3)
# NumPy's C struct begins with the object's head and then the data pointer; where it does not, the slow way is taken.
HEAD = next((head for head in (16, 24, 32) if ctypes.c_size_t.from_address(id(PROBE) + head).value == PROBE.ctypes.data), 0)
_pointer = ctypes.c_size_t.from_address


def address_of(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element."""
    return _pointer(id(array) + HEAD).value if HEAD else array.ctypes.data
