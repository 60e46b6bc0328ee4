"""A load onto all servers: tables that nobody has set up come first, nothing is done if one can't."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pslib.client.answers import all_of, rows_of
from pslib.client.endpoint import Endpoint
from pslib.errors import UnknownTableError
from pslib.protocol.messages import CheckLoad, Load, Message, Result, Setup, Stats

__all__ = ["FILE_PATIENCE_S", "load_onto"]

FILE_PATIENCE_S = 3600.0
"""A checkpoint of 1e9 floats at 100 MB/s takes 40 s; an hour is far beyond any that is still going on."""
NOTHING = "nothing has changed on any server"
HALF_LOADED = (
    "{} of {} servers say that they have loaded it, so tables may be a mixture: load again when the cause is "
    "gone, or start again from a checkpoint"
)


def load_onto(
    endpoint: Endpoint,
    servers: Sequence[str],
    message: Load,
    ready: Callable[[], None],
    set_up: Callable[[Setup], None],
) -> int:
    """Let these servers do what the message says, if all can; return the rows loaded.

    Parameters
    ----------
    endpoint : Endpoint
    servers : sequence of str
        All of them; the first one decides what tables are.
    message : Load
    ready : callable
        See `pslib.client.client.Client.load`.
    set_up : callable
        Makes tables on all servers, as `Client.setup` does.
    """

    def ask(one: Message, outcome: str) -> list[Message]:
        return all_of([endpoint.ask(server, one, FILE_PATIENCE_S) for server in servers], outcome)

    look = CheckLoad(message.path, message.stem, message.state, message.tables, message.stream, message.epoch)
    try:
        ask(look, NOTHING)
    except UnknownTableError:
        set_up(_new_tables(endpoint, servers[0], message.path))
        ask(look, NOTHING)
    ready()
    return rows_of(ask(message, HALF_LOADED))


def _new_tables(endpoint: Endpoint, first: str, path: str) -> Setup:
    """Those of a checkpoint that the server which decides has not heard of."""
    from pslib.checkpoint import read_manifest  # pyarrow: 40 MB for files alone

    answer = endpoint.ask(first, Stats()).wait()
    known = answer.values["tables"] if isinstance(answer, Result) else {}
    new = [plain for plain in read_manifest(path).tables if plain["name"] not in known]
    return Setup({"tables": new}, 0, {}, np.empty(0, np.float32))
