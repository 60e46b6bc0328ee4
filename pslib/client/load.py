"""Load of a checkpoint onto all servers: missing tables are set up, and all servers check it first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pslib.client.endpoint import Endpoint
from pslib.client.tables import all_of, rows_of
from pslib.errors import UnknownTableError
from pslib.wire.fields import Message
from pslib.wire.messages import CheckLoad, DescribeTables, Load, Result, Setup

if TYPE_CHECKING:
    from pslib.checkpoint import Manifest


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Load that this process has called and that is not over.

    Attributes
    ----------
    number, fingerprint
        Number and fingerprint of the call.
    source
        The checkpoint to load.
    """

    number: int
    fingerprint: int
    source: LoadSource


@dataclass(frozen=True, slots=True)
class LoadSource:
    """Checkpoint as it was when its load was called; later there may be a newer one, or none.

    Attributes
    ----------
    given, place : str
        The path as the script gave it, perhaps a folder of several checkpoints; and the one chosen.
    manifest : Manifest
    """

    given: str
    place: str
    manifest: Manifest


FILE_PATIENCE_S = 3600.0
"""Patience for files. A checkpoint of 1e9 floats at 100 MB/s takes 40 s; an hour is far beyond any live one.
"""
NOTHING = "nothing has changed on any server"
HALF_LOADED = (
    "{} of {} servers say that they have loaded it, so tables may be a mixture: load again when the cause is "
    "gone, or load another checkpoint"
)


def load_onto(
    endpoint: Endpoint,
    servers: Sequence[str],
    message: Load,
    ready: Callable[[], None],
    set_up: Callable[[Setup], None],
) -> int:
    """Run a load on these servers if all of them can; return the rows loaded.

    Parameters
    ----------
    endpoint : Endpoint
    servers : sequence of str
        All servers; the first one decides what tables are.
    message : Load
    ready : callable
        See `pslib.client.client.Client.load`.
    set_up : callable
        Creates tables on all servers, as `Client.setup` does.
    """

    def ask(one: Message, outcome: str) -> list[Message]:
        return all_of([endpoint.ask(server, one, FILE_PATIENCE_S) for server in servers], outcome)

    look = CheckLoad(message.path, message.stem, message.state, message.tables, message.stream, message.epoch)
    try:
        ask(look, NOTHING)
    except UnknownTableError:
        set_up(_tables_of(endpoint, servers[0], message.path))
        ask(look, NOTHING)
    ready()
    return rows_of(ask(message, HALF_LOADED))


def _tables_of(endpoint: Endpoint, first: str, path: str) -> Setup:
    """Return the tables of a checkpoint as read by the first server: this process may not see its files.

    Includes tables that this server has: a set-up may have stopped there.
    """
    answer = endpoint.ask(first, DescribeTables(path), FILE_PATIENCE_S).wait()
    tables = answer.values["tables"] if isinstance(answer, Result) else []
    return Setup({"tables": tables}, 0, {}, np.empty(0, np.float32))
