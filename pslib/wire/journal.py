"""What a pure machine sees of its log: where it says what is about to change it."""

from __future__ import annotations

from typing import Protocol

from pslib.wire.fields import Message, Plain

__all__ = ["Journal", "Note"]

Note = Plain
"""What no message says: plain values, with ``note`` as its name."""

Entry = Message | Note


class Journal(Protocol):
    """Takes records of what changes a machine, before it does.

    The entries of one record count together or not at all.
    """

    def append(self, *entries: Entry) -> None:
        """Write a record, before anything that it says is done.

        Raises
        ------
        LogFullError
            When there is no space: nothing was written, and nothing may change.
        """
        ...

    def write_images(self) -> None:
        """Write images of everything soon, and keep no record from before them."""
        ...

    def later(self, *entries: Entry) -> None:
        """Write these with the next record, before it: what may be lost if nothing follows it."""
        ...
