"""In which types rows, gradients and dense parameters travel.

A bfloat16 keeps the range of a float32 and 8 of its 24 digits, a float16 11 digits and less range, an int8
has one float32 scale a row. Servers and models compute in float32 whatever travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import numpy as np

from pslib.arguments import came, check_fields
from pslib.errors import ConfigurationError

__all__ = ["DENSE_TYPES", "FLOAT32", "ROW_TYPES", "WireFormat", "check_type"]

ROW_TYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
}
"""Types of rows and their gradients, and the dtype in which NumPy holds them: uint16 for bfloat16."""

DENSE_TYPES: Mapping[str, np.dtype[Any]] = {name: kind for name, kind in ROW_TYPES.items() if name != "int8"}
"""Types of dense parameters and their gradients: one scale for a whole block would lose its small numbers."""

DENSE_EVERY_MAX = 1 << 16
"""Far more batches than anybody would train on the same dense parameters."""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What a trainer's messages carry.

    Attributes
    ----------
    rows : {"float32", "bfloat16", "float16", "int8"}
        Rows that are pulled, rounded to the nearest value.
    gradients : {"float32", "bfloat16", "float16", "int8"}
        Gradients of rows: to the nearest value; int8 stochastically, without bias.
    dense : {"float32", "bfloat16", "float16"}
        Dense parameters, and their gradients with error feedback: what rounding cuts off one gradient is
        added to the next.
    dense_every_batches : int
        Dense parameters are pulled for every so many batches and are that much older in between; their
        gradients are pushed for every batch all the same.

    Raises
    ------
    ConfigurationError
        With every type that is unknown.
    """

    rows: str = "float32"
    gradients: str = "float32"
    dense: str = "float32"
    dense_every_batches: int = 1

    def __post_init__(self) -> None:
        problems = [
            f"wire.{name}: expected one of {', '.join(known)}, got {came(kind)}"
            for name, kind, known in (
                ("rows", self.rows, ROW_TYPES),
                ("gradients", self.gradients, ROW_TYPES),
                ("dense", self.dense, DENSE_TYPES),
            )
            if not isinstance(kind, str) or kind not in known
        ]
        every = self.dense_every_batches
        if not isinstance(every, Integral) or isinstance(every, bool) or not 1 <= every <= DENSE_EVERY_MAX:
            expected = f"a whole number in 1..{DENSE_EVERY_MAX}"
            problems.append(f"wire.dense_every_batches: expected {expected}, got {came(every)}")
        if problems:
            raise ConfigurationError(*problems)
        check_fields(self)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> WireFormat:
        """From a settings file.

        Raises
        ------
        ConfigurationError
            When there is an unknown setting, or one that has no such value.
        """
        known = [field.name for field in fields(WireFormat)]
        if unknown := sorted(set(plain) - set(known)):
            raise ConfigurationError(f"wire: unknown {unknown[0]!r}; it takes {', '.join(known)}")
        return WireFormat(**plain)


FLOAT32 = WireFormat()
"""Everything as it is."""


def check_type(what: str, name: str, known: Mapping[str, Any]) -> None:
    """ConfigurationError unless ``name`` is one of the known types."""
    if name not in known:
        raise ConfigurationError(f"{what}: expected one of {', '.join(known)}, got {name!r}")
