"""Dense parameters as one flat vector: what travels, and views of it by name: what the model sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DenseLayout"]


class DenseLayout:
    """Names and shapes, one after the other in a float32 vector.

    Parameters
    ----------
    shapes : mapping of name to shape
        In the order of the vector.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.length = sum(math.prod(shape) for shape in shapes.values())

    def views(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Every parameter as a view of ``vector``."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            views[name] = vector[start : start + size].reshape(shape)
            start += size
        return views

    def flatten(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """A new vector with these values."""
        vector = np.empty(self.length, np.float32)
        for name, view in self.views(vector).items():
            view[...] = values[name]
        return vector

    def describe(self) -> list[dict[str, Any]]:
        """Name and shape of each, for the manifest."""
        return [{"name": name, "shape": list(shape)} for name, shape in self.shapes.items()]
