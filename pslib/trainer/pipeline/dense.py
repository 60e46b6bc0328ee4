"""Dense parameters as one flat vector, which travels, and views of it by name, which the model sees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.wire.packing import pack_with_feedback
from pslib.client.client import Client, Pulled
from pslib.config import Limits
from pslib.table.wire_format import DENSE_TYPES, WireFormat

__all__ = ["DenseLayout", "DensePulls", "ErrorFeedback"]


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

    def size_problem(self) -> str:
        """What to say where first values are more than the one message holds that takes them to a server."""
        size, most = 4 * self.length, Limits().frame_bytes_max
        if size <= most:
            return ""
        return (
            f"{self.length:,} dense parameters take {size / 1e9:,.1f} GB, and a message that sets them up "
            f"holds {most / 1e9:,.1f} GB; {self.advice()}"
        )

    def advice(self) -> str:
        """What to lower where there are too many."""
        name, shape = max(self.shapes.items(), key=lambda one: math.prod(one[1]))
        return f"the largest is {name}, {' x '.join(map(str, shape))}: lower the sizes of the model's layers"

    def views(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Every parameter as a view of ``vector``."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            views[name] = vector[start : start + size].reshape(shape)
            start += size
        return views

    def flatten(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """A vector with these values: a new one, unless they stand one after the other in memory already."""
        whole = self._whole(values)
        if whole is not None:
            return whole
        vector = np.empty(self.length, np.float32)
        for name, view in self.views(vector).items():
            view[...] = values[name]
        return vector

    def _whole(self, values: Mapping[str, NDArray[Any]]) -> NDArray[np.float32] | None:
        """The float32 vector that these values are views of, if it is this layout's."""
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
        """Name and shape of each, for the manifest."""
        return [{"name": name, "shape": list(shape)} for name, shape in self.shapes.items()]


class ErrorFeedback:
    """Dense gradients in 16 bits: what rounding cuts off one gradient is added to the next.

    So what is applied over many batches is their sum, however small a gradient is beside the weight of its
    block. What is left when a trainer ends, less than one rounding step a number, is lost.

    Parameters
    ----------
    length : int
        Dense parameters.
    kind : str
        Of `DENSE_TYPES`; float32 is passed on as it is.
    """

    def __init__(self, length: int, kind: str) -> None:
        self._dtype = DENSE_TYPES[kind]
        self._residual = np.zeros(0 if kind == "float32" else length, np.float32)

    def packed(self, gradient: NDArray[np.float32]) -> NDArray[Any]:
        """A new vector, as it travels."""
        if self._dtype == np.float32:
            return gradient
        out = np.empty(gradient.size, self._dtype)
        pack_with_feedback(gradient, self._residual, out)
        return out


class DensePulls:
    """When dense parameters are asked for, and what a batch reads in between.

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
        """Arguments of the next pull."""
        wants = self._batches % self._wire.dense_every_batches == 0
        self._batches += 1
        return {"dense": wants, "dense_as": self._wire.dense, "known": self._known if wants else None}

    def arrived(self, pulled: Pulled) -> NDArray[np.float32]:
        """The dense parameters of the batch whose pull has come: its own, or the last ones before it."""
        if pulled.versions.size:
            self._known = pulled.known_dense
        return self._known.vector
