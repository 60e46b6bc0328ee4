"""Dense parameters as one flat vector for the wire, and views of it by name for the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.wire.packing import pack_with_feedback
from pslib.client.client import Client
from pslib.client.pending import Pulled
from pslib.config import Limits
from pslib.table.wire_format import DENSE_TYPES, WireFormat


class DenseLayout:
    """Layout of dense parameters: names and shapes, one after the other in a float32 vector.

    Parameters
    ----------
    shapes : mapping of name to shape
        Shapes by name, in the order of the vector.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.length = sum(math.prod(shape) for shape in shapes.values())

    def size_problem(self) -> str:
        """Return the problem of initial values that exceed the single message to a server, or empty."""
        size, most = 4 * self.length, Limits().frame_bytes_max
        if size <= most:
            return ""
        return (
            f"{self.length:,} dense parameters take {size / 1e9:,.1f} GB, and a message that sets them up "
            f"holds {most / 1e9:,.1f} GB; {self.advice()}"
        )

    def advice(self) -> str:
        """Return which settings to lower where there are too many parameters."""
        name, shape = max(self.shapes.items(), key=lambda one: math.prod(one[1]))
        return f"the largest is {name}, {' x '.join(map(str, shape))}: lower the sizes of the model's layers"

    def views(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return every parameter as a view of ``vector``."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            views[name] = vector[start : start + size].reshape(shape)
            start += size
        return views

    def flatten(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Flatten values into a vector: a new one, unless they are already contiguous in memory."""
        whole = self._whole(values)
        if whole is not None:
            return whole
        vector = np.empty(self.length, np.float32)
        for name, view in self.views(vector).items():
            view[...] = values[name]
        return vector

    def _whole(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32] | None:
        """Return the float32 vector that these values are views of, if it has this layout."""
        base = values[next(iter(self.shapes))].base if self.shapes else None
        if not isinstance(base, np.ndarray) or not base.flags.c_contiguous or base.nbytes < 4 * self.length:
            return None
        first = values[next(iter(self.shapes))].__array_interface__["data"][0]
        start = first
        for name in self.shapes:
            value = values[name]
            here = value.__array_interface__["data"][0] == start and value.base is base
            if not here or value.dtype != np.float32 or not value.flags.c_contiguous:
                return None
            start += value.nbytes
        offset = first - base.__array_interface__["data"][0]
        flat = base.reshape(-1).view(np.uint8)
        return flat[offset : offset + 4 * self.length].view(np.float32)

    def describe(self) -> list[dict[str, Any]]:
        """Return name and shape of each parameter, for the manifest."""
        return [{"name": name, "shape": list(shape)} for name, shape in self.shapes.items()]


class ErrorFeedback:
    """Error feedback for 16-bit dense gradients: a gradient's rounding error is added to the next one.

    So the sum over many batches is applied, however small a gradient is beside the weight of its block. The
    remainder when a trainer ends, less than one rounding step a number, is lost.

    Parameters
    ----------
    length : int
        Dense parameters.
    kind : str
        One of `DENSE_TYPES`; float32 is passed on unchanged.
    """

    def __init__(self, length: int, kind: str) -> None:
        self._dtype = DENSE_TYPES[kind]
        self._residual = np.zeros(0 if kind == "float32" else length, np.float32)

    def packed(self, gradient: NDArray[np.float32]) -> NDArray[Any]:
        """Return a new vector in its wire type."""
        if self._dtype == np.float32:
            return gradient
        out = np.empty(gradient.size, self._dtype)
        pack_with_feedback(gradient, self._residual, out)
        return out


class DensePulls:
    """Schedule of dense pulls, and the values that batches read in between.

    `ask` is called in the puller's thread, `arrived` in the computing one, both in the order of batches.

    Parameters
    ----------
    client : Client
    wire : WireFormat
    """

    def __init__(self, client: Client, wire: WireFormat) -> None:
        self._wire, self._batches = wire, 0
        self._known = client.nothing_known()

    def ask(self) -> dict[str, Any]:
        """Return the arguments of the next pull."""
        wants = self._batches % self._wire.dense_every_batches == 0
        self._batches += 1
        return {"dense": wants, "dense_as": self._wire.dense, "known": self._known if wants else None}

    def arrived(self, pulled: Pulled) -> NDArray[np.float32]:
        """Return the dense parameters for the batch whose pull has arrived: its own, or the last before."""
        if pulled.versions.size:
            self._known = pulled.known_dense
        return self._known.vector
