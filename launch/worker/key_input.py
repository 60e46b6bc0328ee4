"""Key input."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

__all__ = ["FROM_INPUT"]


FROM_INPUT = "-"
"""What a worker's ``--keys`` says when the key comes in the first line of its standard input."""
