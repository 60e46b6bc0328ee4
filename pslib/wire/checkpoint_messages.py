"""Messages of checkpoint saves and loads; see `pslib.wire.messages`."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.wire.fields import TRAINING, Message
from pslib.wire.streams import CLIENT_STREAMS

__all__ = ["BeginSave", "CheckLoad", "DescribeTables", "EndSave", "Load", "Save", "SaveFiles"]


@dataclass(frozen=True, slots=True)
class Save(Message):
    """Request: write all rows and dense blocks of this server below ``path``. Reply: `Result` with the files.

    ``stem`` goes into the file names: it differs for every checkpoint and server, so nothing is overwritten.
    """

    senders = TRAINING
    path: str
    stem: str


@dataclass(frozen=True, slots=True)
class BeginSave(Message):
    """Request: take an image of this instant; it is written while pushes go on. Reply: `Done`, at once.

    ``path`` and ``stem`` as for `Save`. With ``base`` it is an increment of the committed image of that name,
    or refused (``checkpoint``) where that is not the last one; with ``keep`` the next may be one of this.
    """

    senders = TRAINING
    path: str
    stem: str
    base: str = ""
    keep: bool = False


@dataclass(frozen=True, slots=True)
class SaveFiles(Message):
    """Request: the files of an image begun by `BeginSave`. Reply: as for `Save`, when they are written."""

    senders = TRAINING
    stem: str


@dataclass(frozen=True, slots=True)
class EndSave(Message):
    """Request: end an image, ``committed`` under ``name`` or abandoned. Reply: `Done`."""

    senders = TRAINING
    stem: str
    name: str
    committed: bool


@dataclass(frozen=True, slots=True)
class CheckLoad(Message):
    """Request: check a `Load` of the same fields, as far as possible without reading files whole.

    Changes no row. Reply: `Done`, or the refusal of the load. ``stem`` differs for every load, so that a copy
    does not repeat the check.
    """

    senders = TRAINING
    path: str
    stem: str
    state: bool = True
    tables: str = ""
    stream: int = CLIENT_STREAMS
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTables(Message):
    """Request: describe the tables of the checkpoint at ``path``, for a client that may not see it.

    Reply: `Result` with ``tables``, each as this server has it, or as it was saved if it has none. With no
    ``path``: all tables of this server, for a client that reads their rows and has not created them.
    """

    senders = TRAINING
    path: str = ""


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Request: read all that this server owns from the checkpoint at ``path``. Reply: `Result` with counts.

    ``stem`` differs for every load: a late copy must not undo later pushes. Without ``state`` the optimizer's
    begins anew; ``tables`` names those to load, separated by commas, or is empty for all of them and the
    dense parameters. Rows that are loaded without state, or by name, count as seen last at ``step`` and
    ``time_s``.

    ``stream`` and ``epoch`` are those of the load's lease. A server that knows of a later holder (from a
    `Load` or a `CheckLoad`), or that the lease is over, refuses it (``fenced``). Streams from 2^63 on are of
    no lease.
    """

    senders = TRAINING
    path: str
    stem: str
    state: bool = True
    tables: str = ""
    step: int = 0
    time_s: float = 0.0
    stream: int = CLIENT_STREAMS
    epoch: int = 0
