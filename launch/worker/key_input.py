"""Key of a worker, read from standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__all__ = ["FROM_INPUT"]


FROM_INPUT = "-"
"""Value of a worker's ``--keys`` when the key is the first line of its standard input."""
