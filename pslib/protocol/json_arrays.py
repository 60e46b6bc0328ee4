"""Plain values as an array of bytes: what may be too long for the header of a message."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["json_array", "plain_of"]


def json_array(plain: Any) -> NDArray[np.uint8]:
    """Nested dicts and lists of numbers, strings, booleans and None as JSON, in UTF-8."""
    return np.frombuffer(json.dumps(plain).encode(), np.uint8)


def plain_of(array: NDArray[np.uint8]) -> Any:
    """What `json_array` was given.

    Raises
    ------
    ValueError
        When it is no JSON.
    """
    return json.loads(array.tobytes())
