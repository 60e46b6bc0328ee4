"""Tables of all servers: made by who describes them, and taken over by who joins and does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.client.endpoint import Endpoint
from pslib.errors import UnknownTableError
from pslib.protocol.messages import DescribeTables, Result, Setup
from pslib.table.tables import DenseSpec, TableSpec

__all__ = ["set_up", "setup_of", "tables_there"]

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
    """The message of `pslib.client.client.Client.setup`."""
    described: dict[str, Any] = {"tables": [spec.to_dict() for spec in tables]}
    described |= {"models": [dict(model)]} if model else {}
    values = np.ascontiguousarray([] if initial_dense is None else initial_dense, np.float32)
    about = (dense.length, dense.optimizer.to_dict()) if dense else (0, {})
    return Setup(described, *about, dense=values)


def set_up(endpoint: Endpoint, servers: Callable[[], Sequence[str]], message: Setup) -> None:
    """Make tables on all servers, the one of the lowest rank first.

    Parameters
    ----------
    endpoint : Endpoint
    servers : callable
        Addresses of all, as of now: more may join meanwhile, or come back elsewhere.
    message : Setup
    """
    asked: set[str] = set()
    while not asked.issuperset(now := servers()):
        first = now[:1] if now[0] not in asked else ()  # who is refused there asks no other
        new = first or [address for address in now if address not in asked]
        for pending in [endpoint.ask(address, message) for address in new]:
            pending.wait()
        asked.update(new)


def tables_there(endpoint: Endpoint, first: str) -> tuple[TableSpec, ...]:
    """All tables of a cluster, as the server of the lowest rank has them, which decides for all.

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
