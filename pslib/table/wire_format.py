"""Wire types of rows, gradients and dense parameters.

A bfloat16 keeps the range of a float32 and 8 of its 24 bits of precision, a float16 11 bits and less range,
an int8 has one float32 scale per row. Servers and models compute in float32 for any wire type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np

from pslib.config import ROW_TYPE_NAMES
from pslib.errors import ConfigurationError
from pslib.settings import Setting, Settings

ROW_TYPES: Mapping[str, np.dtype[Any]] = dict(
    zip(ROW_TYPE_NAMES, map(np.dtype, (np.float32, np.uint16, np.float16, np.int8)), strict=True)
)
"""Types of rows and their gradients, with their NumPy dtype: uint16 for bfloat16."""

DENSE_TYPES: Mapping[str, np.dtype[Any]] = {name: kind for name, kind in ROW_TYPES.items() if name != "int8"}
"""Types of dense parameters and their gradients; no int8, as one scale per block would lose small numbers."""


@dataclass(frozen=True, slots=True)
class WireFormat(Settings):
    """Wire types of a trainer's messages."""

    AT = "wire."

    rows: Annotated[
        str, Setting("Type of rows that are pulled, rounded to the nearest value.", choices=ROW_TYPE_NAMES)
    ] = "float32"
    gradients: Annotated[
        str,
        Setting(
            "Type of gradients of rows: to the nearest value; int8 stochastically, without bias.",
            choices=ROW_TYPE_NAMES,
        ),
    ] = "float32"
    dense: Annotated[
        str,
        Setting(
            "Type of dense parameters, and of their gradients with error feedback: what rounding cuts off "
            "one gradient is added to the next.",
            choices=tuple(DENSE_TYPES),
        ),
    ] = "float32"
    dense_every_batches: Annotated[
        int,
        Setting(
            "Dense parameters are pulled for every so many batches and are that much older in between; their "
            "gradients are pushed for every batch all the same.",
            ge=1,
            le=1 << 16,  # far more batches than anybody would train on the same dense parameters
            unit="batches",
        ),
    ] = 1

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> WireFormat:
        """Read from a settings file.

        Raises
        ------
        ConfigurationError
            If a setting is unknown, or has an invalid value.
        """
        known = [field.name for field in fields(WireFormat)]
        if unknown := sorted(set(plain) - set(known)):
            raise ConfigurationError(f"wire: unknown {unknown[0]!r}; it takes {', '.join(known)}")
        return WireFormat(**plain)


FLOAT32 = WireFormat()
"""All types float32."""


def check_type(what: str, name: str, known: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless ``name`` is one of the known types."""
    if name not in known:
        raise ConfigurationError(f"{what}: expected one of {', '.join(known)}, got {name!r}")
