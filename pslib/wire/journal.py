"""Journal interface of a pure state machine: it records changes before they happen."""

from __future__ import annotations

from typing import Protocol

from pslib.wire.fields import Message, Plain

Note = Plain
"""Journal entry that is no message: plain values, with ``note`` as its name."""

Entry = Message | Note


class Journal(Protocol):
    """Receiver of records of a machine's changes, before they happen.

    The entries of one record count together or not at all.
    """

    def append(self, *entries: Entry) -> None:
        """Append a record, before the changes that it describes.

        Raises
        ------
        LogFullError
            When there is no space: nothing was written, and nothing may change.
        """
        ...

    def write_images(self) -> None:
        """Write images of everything soon, and drop all records from before them."""
        ...

    def later(self, *entries: Entry) -> None:
        """Write these before the next record, with it: they may be lost if no record follows."""
        ...
