"""Tables of all servers: set-up by a client that describes them, take-over by one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.client.endpoint import Endpoint
from pslib.client.pending import Pending
from pslib.errors import PreemptedError, PslibError, SupersededError, UnknownTableError
from pslib.table.tables import DenseSpec, TableSpec
from pslib.wire.counters import merge_results
from pslib.wire.fields import Message
from pslib.wire.messages import DescribeTables, Result, Setup


def all_of(pending: Sequence[Pending[Message]], outcome: str) -> list[Message]:
    """Wait for the replies of all servers, also after a failure, then raise the first failure.

    With several servers ``outcome`` is added to the error: the state of all of them then, with the number
    that have succeeded and the number of all for its ``{}``. An error for work that another process has taken
    over is left as it is.
    """
    answers, errors = list[Message](), list[PslibError]()
    for one in pending:
        try:
            answers.append(one.wait())
        except PreemptedError:  # raised by a signal, not a server: the caller is to leave
            raise
        except PslibError as error:
            errors.append(error)
    if superseded := [error for error in errors if isinstance(error, SupersededError)]:
        raise superseded[0]
    if errors:
        told = f"; {outcome.format(len(answers), len(pending))}" if len(pending) > 1 else ""
        raise type(errors[0])(f"{errors[0]}{told}") from errors[0]
    return answers


def _values(answers: Iterable[Message]) -> list[dict[str, Any]]:
    return [dict(answer.values) for answer in answers if isinstance(answer, Result)]


def stats_of(answers: Iterable[Message]) -> dict[str, Any]:
    """Sum counters over servers, and compute the memory a row of each table."""
    merged = merge_results(_values(answers))
    for table in merged.get("tables", {}).values():
        table["bytes_a_row"] = table["resident_bytes"] / table["rows"] if table["rows"] else 0.0
    return merged


def files_of(answers: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the manifest entries of the files that servers have written."""
    return [entry for values in _values(answers) for entry in values["files"]]


def rows_of(answers: Iterable[Message]) -> int:
    """Return the rows that servers have loaded together."""
    return sum(int(values["rows"]) for values in _values(answers))


NONE_YET = (
    "the cluster has no tables yet: its trainers set them up when they begin; call take_tables() again then, "
    "or setup(...) with tables of your own"
)


def setup_of(
    tables: Sequence[TableSpec],
    dense: DenseSpec | None,
    initial_dense: NDArray[np.float32] | None,
    model: Mapping[str, Any] | None,
) -> Setup:
    """Build the message of `pslib.client.client.Client.setup`."""
    described: dict[str, Any] = {"tables": [spec.to_dict() for spec in tables]}
    described |= {"models": [dict(model)]} if model else {}
    values = np.ascontiguousarray([] if initial_dense is None else initial_dense, np.float32)
    about = (dense.length, dense.optimizer.to_dict()) if dense else (0, {})
    return Setup(described, *about, dense=values)


def set_up(endpoint: Endpoint, servers: Callable[[], Sequence[str]], message: Setup) -> None:
    """Create tables on all servers, the one of the lowest rank first.

    Parameters
    ----------
    endpoint : Endpoint
    servers : callable
        Returns the current addresses of all: servers may join meanwhile, or come back elsewhere.
    message : Setup
    """
    asked: set[str] = set()
    while not asked.issuperset(now := servers()):
        first = now[:1] if now[0] not in asked else ()  # a client refused there asks no other server
        new = first or [address for address in now if address not in asked]
        for pending in [endpoint.ask(address, message) for address in new]:
            pending.wait()
        asked.update(new)


def tables_there(endpoint: Endpoint, first: str) -> tuple[TableSpec, ...]:
    """Return all tables of a cluster from the server of the lowest rank, which decides for all.

    Raises
    ------
    UnknownTableError
        When there are none.
    """
    answer = endpoint.ask(first, DescribeTables()).wait()
    specs = tuple(map(TableSpec.from_dict, answer.values["tables"])) if isinstance(answer, Result) else ()
    if not specs:
        raise UnknownTableError(NONE_YET)
    return specs
