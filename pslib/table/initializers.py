"""Row initializers: pure functions of (seed, table, part, key, column in the part).

A key has the same initial value on any server, in any order, with or without a row.
``cython_ext/table/initializers.h`` generates the bits, ``tests/support/definitions/table.py`` defines them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from pslib.settings import FLOAT32_MAX, Setting, Settings, read_named


@dataclass(frozen=True, slots=True)
class Initializer(Settings):
    """Base of all initializers; ``kind`` is its number in the kernel."""

    kind: ClassVar[int]

    def numbers(self) -> NDArray[np.float32]:
        """The kernel's two numbers, (2,) float32."""
        values = [float(getattr(self, f.name)) for f in fields(self)]
        return np.asarray([*values, 0.0, 0.0][:2], np.float32)

    def to_dict(self) -> dict[str, float | str]:
        """Plain form for the wire and for manifests."""
        return {"name": type(self).__name__} | {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """Every column starts at ``value``."""

    kind: ClassVar[int] = 0
    value: Annotated[float, Setting("Of every column.", float32=True)] = 0.0


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Uniform in ``[-bound, bound)``."""

    kind: ClassVar[int] = 1
    bound: Annotated[float, Setting("Of both signs.", ge=0, float32=True)] = 0.01


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Approximately normal with standard deviation ``std``: a sum of twelve 16-bit uniforms.

    No libm is involved, so every machine gives the same bits. Values stay within 6 ``std``.
    """

    kind: ClassVar[int] = 2
    std: Annotated[float, Setting("Standard deviation.", ge=0, le=FLOAT32_MAX / 6, float32=True)] = 0.01


INITIALIZERS: dict[str, type[Initializer]] = {kind.__name__: kind for kind in (Constant, Uniform, Normal)}


def initializer_from_dict(plain: dict[str, object]) -> Initializer:
    """Inverse of `Initializer.to_dict`.

    Raises
    ------
    ConfigurationError
        If the name or a field is unknown, or a number is out of range.
    """
    return read_named("initializer", plain, INITIALIZERS)
