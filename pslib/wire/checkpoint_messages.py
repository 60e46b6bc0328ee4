"""Messages by which servers write checkpoints and load them; see `pslib.wire.messages`."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.wire.fields import Message
from pslib.wire.streams import CLIENT_STREAMS

__all__ = ["BeginSave", "CheckLoad", "DescribeTables", "EndSave", "Load", "Save", "SaveFiles"]


@dataclass(frozen=True, slots=True)
class Save(Message):
    """Write all rows and dense blocks of this server below ``path``; answered by `Result` with the files.

    ``stem`` goes into the file names: it differs for every checkpoint and server, so nothing is overwritten.
    """

    path: str
    stem: str


@dataclass(frozen=True, slots=True)
class BeginSave(Message):
    """Remember this instant: its image is written while pushes go on. Answered by `Done`, at once.

    ``path`` and ``stem`` as for `Save`. With ``base`` it is an increment of the committed image of that name,
    or refused (``checkpoint``) where that is not the last one; with ``keep`` the next may be one of this.
    """

    path: str
    stem: str
    base: str = ""
    keep: bool = False


@dataclass(frozen=True, slots=True)
class SaveFiles(Message):
    """The files of an image that `BeginSave` has begun; answered as `Save`, when they are written."""

    stem: str


@dataclass(frozen=True, slots=True)
class EndSave(Message):
    """What has become of an image: ``committed`` under ``name``, or nobody wants it. Answered by `Done`."""

    stem: str
    name: str
    committed: bool


@dataclass(frozen=True, slots=True)
class CheckLoad(Message):
    """Say whether a `Load` of the same fields could be done, as far as it shows without reading files whole.

    Changes no row; answered by `Done`, or refused as the load would be. ``stem`` differs for every load, so
    that a copy does not look at everything again.
    """

    path: str
    stem: str
    state: bool = True
    tables: str = ""
    stream: int = CLIENT_STREAMS
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTables(Message):
    """Say how the tables of the checkpoint at ``path`` are to be set up, for a client that may not see it.

    Answered by `Result` with ``tables``, each as this server has it, or as it was saved if it has none. With
    no ``path``: all tables that this server has, for a client that reads their rows and has not made them.
    """

    path: str = ""


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Read from the checkpoint at ``path`` all that this server owns; answered by `Result` with counts.

    ``stem`` differs for every load: a copy that comes late must not undo what was pushed meanwhile. Without
    ``state`` the optimizer's begins anew; ``tables`` names those to load, with commas between, or is empty
    for all of them and the dense parameters. Rows that are loaded without state, or by name, count as seen
    last at ``step`` and ``time_s``.

    ``stream`` and ``epoch`` are those of the lease under which this is done. A server that has heard of a
    later holder (from a `Load` or a `CheckLoad`), or that the lease is over, refuses it (``fenced``). Streams
    from 2^63 on are of no lease.
    """

    path: str
    stem: str
    state: bool = True
    tables: str = ""
    step: int = 0
    time_s: float = 0.0
    stream: int = CLIENT_STREAMS
    epoch: int = 0
