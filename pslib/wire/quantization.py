"""Quantized rows on the wire: values of one wire type, and scales where the type has them.

float32, bfloat16     no scales
float16               none, or one for all rows: a power of two keeps small gradients above the least one
int8                  one a row
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.wire.packing import pack, rounding_bases, unpack
from cython_ext.wire.selection import gather_rows, scatter_rows
from pslib.errors import ConfigurationError
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.messages import Changes, Pull, Pulled, Push

Floats = NDArray[np.float32]
Places = NDArray[np.int32]
NO_SCALES = np.empty(0, np.float32)
FLOAT16_EXPONENT = 14
"""Gradients are scaled so that the largest is below 2^15; the largest float16 is 65504."""

_SCALES = {dtype: {"float16": (0, 1), "int8": ()}.get(name, (0,)) for name, dtype in ROW_TYPES.items()}
"""Allowed numbers of scales by type; empty: one a row."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Array of ``n`` rows in a wire type.

    Attributes
    ----------
    values : (n, dim) float32, uint16 (bfloat16), float16 or int8
    scales : (n,) float32 of int8; (1,) or (0,) of float16; (0,) of the others
    """

    values: NDArray[Any]
    scales: Floats = field(default_factory=lambda: NO_SCALES)

    @staticmethod
    def empty(rows: int, dim: int, kind: str) -> QuantizedRows:
        """Allocate rows of one of `ROW_TYPES`, uninitialized."""
        scales = np.empty(rows, np.float32) if kind == "int8" else NO_SCALES
        return QuantizedRows(np.empty((rows, dim), ROW_TYPES[kind]), scales)

    @property
    def is_plain(self) -> bool:
        """Return whether the values are the rows themselves."""
        return bool(self.values.dtype == np.float32)

    def problem(self, rows: int, dim: int) -> str:
        """Return the fault of received rows; empty when they are ``rows`` rows of ``dim``."""
        kind, scales = self.values.dtype, self.scales
        if self.values.shape != (rows, dim):
            return f"expected {(rows, dim)}, got {self.values.shape}"
        if kind not in _SCALES:
            return f"expected float32 {(rows, dim)}, got {kind}"
        allowed = _SCALES[kind] or (rows,)
        if scales.size not in allowed:
            wanted = " or ".join(map(str, allowed))
            return f"expected {wanted} scales for {kind} rows, got {scales.size}"
        if scales.size and ((scales < 0).any() or np.isinf(scales).any()):
            return "expected scales >= 0, finite or NaN"
        return ""

    def cut(self, start: int, stop: int) -> QuantizedRows:
        """Return adjacent rows, as a view."""
        if start == 0 and stop == len(self.values):
            return self
        scales = self.scales[start:stop] if self.values.dtype == np.int8 else self.scales
        return QuantizedRows(self.values[start:stop], scales)

    def take(self, places: Places | None) -> QuantizedRows:
        """Return the rows at these places; None: all."""
        if places is None:
            return self
        scales = self.scales[places] if self.values.dtype == np.int8 else self.scales
        gather_rows(
            self.values, places, out := np.empty((len(places), self.values.shape[1]), self.values.dtype)
        )
        return QuantizedRows(out, scales)

    def clear(self, places: Places) -> None:
        """Zero the rows at these places."""
        self.values[places] = 0
        if self.scales.size:
            self.scales[places] = 0

    def put(self, rows: Floats, places: Places | None = None) -> None:
        """Write rows, rounded to the nearest values, to these places; None: to all."""
        if not self.is_plain:
            pack(rows, self.values, self.scales, places)
        elif places is None:
            self.values[...] = rows
        else:
            scatter_rows(rows, places, self.values)

    def floats(self) -> Floats:
        """Return the rows as float32; plain ones are not copied."""
        if self.is_plain:
            return self.values
        out = np.empty(self.values.shape, np.float32)
        unpack(self.values, self.scales, out)
        return out

    def write_to(self, out: Floats, places: Places) -> None:
        """Write the rows as float32 to their places in ``out``."""
        if self.is_plain:
            scatter_rows(self.values, places, out)
        else:
            unpack(self.values, self.scales, out, places)


def rows_of(message: Pulled, table: str) -> QuantizedRows:
    """Return the rows of one table as received."""
    return QuantizedRows(message.rows[table], message.row_scales.get(table, NO_SCALES))


def gradients_of(message: Push, table: str) -> QuantizedRows:
    """Return the gradients of one table as received."""
    return QuantizedRows(message.gradients[table], message.gradient_scales.get(table, NO_SCALES))


def check_request(message: Pull | Changes | Push) -> None:
    """Raise ConfigurationError if the types or scales of a request are at fault."""
    if isinstance(message, Push):
        if message.gradient_scales and (strangers := message.gradient_scales.keys() - message.keys.keys()):
            raise ConfigurationError(f"scales of {min(strangers)}: there are no gradients of it")
        return
    for what, name, known in (
        ("rows_as", message.rows_as, ROW_TYPES),
        ("dense_as", message.dense_as, DENSE_TYPES),
    ):
        if name not in known:
            raise ConfigurationError(f"{what}: expected one of {', '.join(known)}, got {name[:80]!r}")
    sizes = {name: array.size for name, array in message.known.items()}
    if sizes and sizes != {"versions": message.blocks.size}:
        raise ConfigurationError(
            f"known: expected {message.blocks.size} versions of dense blocks or nothing, got {sizes}"
        )


def pack_gradients(keys: NDArray[np.uint64], gradients: Floats, kind: str, salt: int) -> QuantizedRows:
    """Pack gradients of rows for the wire: rounded to the nearest value, int8 stochastically.

    Parameters
    ----------
    keys : (n,) uint64
    gradients : (n, dim) float32, contiguous
    kind : str
        Row type, of `ROW_TYPES`.
    salt : int
        Salt of the push, so that its bits are a function of its name and of the key.
    """
    if kind == "float32":
        return QuantizedRows(gradients)
    packed = QuantizedRows.empty(len(gradients), gradients.shape[1], kind)
    if kind == "int8":
        pack(gradients, packed.values, packed.scales, bases=rounding_bases(keys, salt))
        return packed
    if kind == "bfloat16":
        pack(gradients, packed.values)
        return packed
    factor = _float16_factor(gradients)
    pack(gradients, packed.values, factor=factor)
    return QuantizedRows(packed.values, np.array([1 / factor], np.float32))


def _float16_factor(gradients: Floats) -> float:
    """Return the power of two that brings the largest gradient just below the largest float16."""
    largest = max(float(gradients.max()), -float(gradients.min())) if gradients.size else 0.0
    if not 0 < largest < math.inf:
        return 1.0
    return math.ldexp(1.0, min(FLOAT16_EXPONENT - math.frexp(largest)[1], 100))


def floats_of(vector: NDArray[Any]) -> Floats:
    """Return a received dense vector as float32; a plain one is not copied."""
    return QuantizedRows(vector[None]).floats()[0]


def put_floats(vector: NDArray[Any], values: Floats) -> None:
    """Write float32 values into a dense vector of another type."""
    QuantizedRows(vector[None]).put(np.ascontiguousarray(values)[None])
