"""Keys that were erased before a log was trimmed: when that is done, none of their bytes is left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.support.simulated.invariants import SimulationError

if TYPE_CHECKING:
    from tests.simulation.cluster.server import Server

__all__ = ["Forgotten"]


class Forgotten:
    """Watches the logs of one server.

    Parameters
    ----------
    server : Server
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asked: dict[int, tuple[int, list[int]]] = {}
        """Of each shard: rounds of images that were over then, and the keys that must go."""

    def asked(self, index: int) -> None:
        """A shard's log is to forget what was erased so far."""
        server, history = self._server, self._server.world.history
        assert server.logs is not None
        gone = [key for key in history.ops_of if history.is_erased_for_good(key)]
        keys = np.array(gone, np.uint64)
        shard = server.shards[index]
        mine = keys[shard.own_keys(keys)].tolist() if gone else []
        self._asked[index] = server.logs.journals[index].rounds, mine

    def look(self, index: int) -> None:
        """Perhaps it has."""
        server = self._server
        if index not in self._asked or server.logs is None:
            return
        rounds, keys = self._asked[index]
        log = server.logs.journals[index]
        if log.rounds <= rounds or log.log._unneeded:  # these are removed with the next sync
            return
        del self._asked[index]
        folder = f"logs/server-{server.rank}/shard-{index}"
        files = server.world.disk(server.name).folders.get(folder, {})
        written = b"".join(bytes(one.content) for one in files.values())
        left = [key for key in keys if key.to_bytes(8, "little") in written]
        if left:
            raise SimulationError(f"{server}: its log was to forget {len(left)} keys, and has {left[0]:#x}")
        server.world.checks.forgotten += len(keys)
