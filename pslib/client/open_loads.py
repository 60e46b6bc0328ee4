"""A load of a checkpoint that a script has called and that is not over: which call it is, and of what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pslib.checkpoint import Manifest  # pyarrow: 40 MB for files alone

__all__ = ["LoadSource", "OpenLoad"]


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """A load that this process has called, and that is not over.

    Attributes
    ----------
    number, fingerprint
        Of the call.
    source
        What it loads.
    """

    number: int
    fingerprint: int
    source: LoadSource


@dataclass(frozen=True, slots=True)
class LoadSource:
    """A checkpoint as it was when a load of it was called; by now there may be a newer one, or none.

    Attributes
    ----------
    given, place : str
        As the script said it, a folder of several perhaps; and the one of them that this is.
    manifest : Manifest
    """

    given: str
    place: str
    manifest: Manifest
