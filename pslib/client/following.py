"""State of a reader that follows a table: its position at each server, and its next request; pure.

A round asks one server after the other until each has sent all that had changed when it was first asked, and
all units have been seen at one of them. What was taken stays, also when a round fails: the next one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pslib.errors import RemoteProtocolError
from pslib.table.partition_map import BlockBounds
from pslib.wire.dense_delta import VERSIONS
from pslib.wire.messages import Changed, Changes
from pslib.wire.quantization import QuantizedRows, floats_of

WHOLE_ROWS = 1 << 16
"""Rows of partitions that are read whole in one answer, unless one partition has more."""
NO_POSITIONS, NO_BLOCKS = np.empty(0, np.uint64), np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows to take over, in the order of the pieces.

    Attributes
    ----------
    keys : (n,) uint64
        Distinct; some may have their initial values, as keys without a row have.
    rows : (n, dim) float32
    whole : (p,) uint32
        Partitions of which these are all rows.
    """

    keys: NDArray[np.uint64]
    rows: NDArray[np.float32]
    whole: NDArray[np.uint32]


@dataclass(slots=True, eq=False)
class Update:
    """Changes since the update before.

    Attributes
    ----------
    pieces : list of Piece
    dense : (length,) float32
        All dense parameters.
    bytes : int
        Of rows, keys and blocks that were received for it.
    """

    pieces: list[Piece]
    dense: NDArray[np.float32]
    bytes: int

    @property
    def rows(self) -> int:
        """Return the number of rows in all pieces."""
        return sum(piece.keys.size for piece in self.pieces)


@dataclass(slots=True, eq=False)
class _Server:
    """State of one server.

    Attributes
    ----------
    since : (2 k,) uint64
        Position in its change logs.
    target : (k,) uint64 or None
        Ends of these logs when it was first asked in this round; None: not asked yet.
    stale : dict of int to int
        Partitions to read whole, and their rows.
    owned : (u,) uint32
        Units that it had at its last answer of this round.
    asked : (p,) uint32
        Partitions of the open request.
    blocks : (b,) uint32
        Dense blocks of the open request: all in the first one of a round, then none.
    """

    since: NDArray[np.uint64] = field(default_factory=lambda: NO_POSITIONS)
    target: NDArray[np.uint64] | None = None
    stale: dict[int, int] = field(default_factory=dict)
    owned: NDArray[np.uint32] = field(default_factory=lambda: NO_BLOCKS)
    asked: NDArray[np.uint32] = field(default_factory=lambda: NO_BLOCKS)
    blocks: NDArray[np.uint32] = field(default_factory=lambda: NO_BLOCKS)

    @property
    def is_done(self) -> bool:
        return self.target is not None and not self.stale and bool((self.since[1::2] >= self.target).all())


class Following:
    """Follower of one table and of the dense parameters of a cluster.

    Parameters
    ----------
    table : str
    dim : int
        Floats of a row.
    dense_length : int
        Number of dense parameters.
    partitions, dense_blocks : int
        Numbers of the cluster.
    rows_as : str
        Type of rows on the wire, of `ROW_TYPES`.
    """

    def __init__(
        self,
        table: str,
        dim: int,
        dense_length: int,
        partitions: int,
        dense_blocks: int,
        rows_as: str = "float32",
    ) -> None:
        self._table, self._dim, self._rows_as = table, dim, rows_as
        self._partitions, self._bounds = partitions, BlockBounds(dense_length, dense_blocks)
        self._blocks = np.arange(dense_blocks if dense_length else 0, dtype=np.uint32)
        self._units = np.arange(partitions + dense_blocks, dtype=np.uint32)
        self._dense = np.zeros(dense_length, np.float32)
        self._versions = np.zeros(self._blocks.size, np.uint64)
        self._servers: dict[str, _Server] = {}
        self._order: list[str] = []
        self._pieces: list[Piece] = []
        self._bytes = 0

    def begin(self, addresses: Sequence[str]) -> None:
        """Begin a round with these servers; one that is not among them is forgotten."""
        self._servers = {address: self._servers.get(address) or _Server() for address in addresses}
        self._order = sorted(self._servers, key=lambda address: self._servers[address].since.size > 0)
        for server in self._servers.values():
            server.target = None

    def next_request(self) -> tuple[str, Changes] | None:
        """Return the next request and the server's address; None when all servers have answered."""
        for address in self._order:
            server = self._servers[address]
            if not server.is_done:
                server.asked = np.array(_first_of(server.stale), np.uint32)
                server.blocks = self._blocks if server.target is None else NO_BLOCKS
                known = {VERSIONS: self._versions} if server.blocks.size else {}
                since, units, blocks = server.since, server.asked, server.blocks
                return address, Changes(self._table, since, units, blocks, self._rows_as, known=known)
        return None

    def take(self, address: str, answer: Changed) -> None:
        """Take the answer to the last request of a server.

        Raises
        ------
        RemoteProtocolError
            If it does not fit the request.
        """
        server = self._servers[address]
        rows = QuantizedRows(answer.rows, answer.row_scales)
        if problem := self._problem(server, answer, rows):
            raise RemoteProtocolError(f"{address}: changes of table {self._table}: {problem}")
        whole = np.intersect1d(server.asked, answer.owned)
        if answer.keys.size or whole.size:
            self._pieces.append(Piece(answer.keys, np.ascontiguousarray(rows.floats()), whole))
        if server.blocks.size:
            self._take_dense(answer)
        self._bytes += (
            answer.keys.nbytes + answer.rows.nbytes + answer.row_scales.nbytes + answer.dense.nbytes
        )
        for unit in whole.tolist():
            server.stale.pop(unit, None)
        server.stale |= zip(answer.stale.tolist(), answer.stale_rows.tolist(), strict=True)
        owned = set(answer.owned.tolist())
        server.stale = {unit: many for unit, many in server.stale.items() if unit in owned}
        server.since, server.owned = np.array(answer.since), answer.owned
        if server.target is None or server.target.size != answer.ends.size:
            server.target = np.array(answer.ends)
        elif (answer.ends < server.target).any():  # another life of the server
            server.target = np.minimum(server.target, answer.ends)

    def failed(self, address: str) -> None:
        """Ask a server first in the next round, from the beginning."""
        self._servers[address] = _Server()

    @property
    def is_complete(self) -> bool:
        """Return True if every unit was at one of the servers in this round."""
        owned = [server.owned for server in self._servers.values() if server.is_done]
        return bool(owned) and np.isin(self._units, np.concatenate(owned)).all().item()

    def take_update(self) -> Update:
        """Return what has come since the last call, after a complete round."""
        update = Update(self._pieces, self._dense.copy(), self._bytes)
        self._pieces, self._bytes = [], 0
        return update

    def _take_dense(self, answer: Changed) -> None:
        versions = answer.dense_versions[VERSIONS]
        news, start = self._news(answer), 0
        dense = floats_of(answer.dense)
        for first, last in self._bounds.runs(self._blocks[news]):
            self._dense[first:last] = dense[start : start + last - first]
            start += last - first
        self._versions = np.where(news, versions, self._versions)

    def _news(self, answer: Changed) -> NDArray[np.bool_]:
        versions = answer.dense_versions[VERSIONS]
        return (versions != 0) & (versions != self._versions)

    def _problem(self, server: _Server, answer: Changed, rows: QuantizedRows) -> str:
        """Return why an answer can't be taken; empty if it can: it indexes our arrays."""
        if problem := rows.problem(answer.keys.size, self._dim):
            return problem
        if answer.since.size != 2 * answer.ends.size or answer.stale.size != answer.stale_rows.size:
            return "expected a position of each shard thread, and rows of each stale partition"
        if answer.stale.size and int(answer.stale.max()) >= self._partitions:
            return f"expected stale partitions in 0..{self._partitions - 1}"
        if not server.blocks.size:
            return ""
        sizes = {name: array.size for name, array in answer.dense_versions.items()}
        if sizes != {VERSIONS: self._blocks.size}:
            return f"expected versions of {self._blocks.size} dense blocks"
        floats = self._bounds.floats(self._blocks[self._news(answer)])
        return "" if answer.dense.size == floats else f"expected {floats} dense parameters"


def _first_of(stale: dict[int, int]) -> list[int]:
    """Return the partitions that are read whole next, one at least."""
    chosen: list[int] = []
    rows = 0
    for unit, many in stale.items():
        if chosen and rows + many > WHOLE_ROWS:
            break
        chosen.append(unit)
        rows += many
    return chosen
