"""A server's real logs on a simulated disk, in small segments, and the syncs that answers wait for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from pslib.config import ClusterConfig
from pslib.server.durable_ack import DurableAck
from pslib.shard.shard import Shard
from pslib.update_log import server_log
from pslib.update_log.server_log import ServerLog
from pslib.update_log.shard_log import ShardLog
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.network import CODEC
from tests.support.simulated.files import SimulatedFiles

if TYPE_CHECKING:
    from tests.simulation.cluster.server import Server

__all__ = ["Forgotten", "ServerLogs"]

SEGMENT_BYTES = 2_000
LOG_BYTES = 5_000
"""Small, so that segments roll and are trimmed in every world."""


class ServerLogs:
    """A server's work with its log, beside serving; it has replayed the log when this is made.

    Parameters
    ----------
    server : Server
    rank : int
        The place that belongs to the folder.
    """

    def __init__(self, server: Server, rank: int) -> None:
        self._server = server
        self.files: list[SimulatedFiles] = []
        self.journals: list[ShardLog] = []
        self._syncing = False
        with self._planted():
            about = (CODEC.cluster_id, server, server.generation)
            self.log = ServerLog("logs", rank, *about, files_of=self._files_of)
            self.log.recover(server.world.checkpoints.load)

    def _files_of(self, folder: str) -> SimulatedFiles:
        self.files.append(self._server.world.disk(self._server.name).files(folder))
        return self.files[-1]

    def _planted(self) -> AbstractContextManager[Any]:
        planted = self._server.world.planted

        def make(*about: int) -> Shard:
            return planted.make_shard(*about, planted.marks())

        return patch.object(server_log, "Shard", make)

    def begin(self, config: ClusterConfig) -> list[Shard]:
        """Shards as they were, or new ones; they write to their logs from now on."""
        with self._planted():
            shards = self.log.begin(config)
        make = self._server.world.planted.make_journal
        for one, shard in zip(self.log.logs, shards, strict=True):
            one._segment_bytes = SEGMENT_BYTES
            self.journals.append(make(one, shard, LOG_BYTES))
        return shards

    def gate(self, config: ClusterConfig, look: Callable[[], None]) -> DurableAck | None:
        """Return the gate that holds answers for the disk; ``look`` is called when some may leave it.

        The first record of a new log is on the disk then, before the coordinator hears that there is one.
        """
        if config.durability != "disk":
            return None
        for one in self.log.logs:
            one.sync()
        return DurableAck(self.log.logs, lambda: self._sync_soon(look))

    def _sync_soon(self, look: Callable[[], None]) -> None:
        if not self._syncing:
            self._syncing = True
            choice = self._server.world.random
            slow_s = 0.5 if choice.random() < 0.02 else 0.03
            self._server.after(choice.uniform(0.001, slow_s), lambda: self._sync(look))

    def _sync(self, look: Callable[[], None]) -> None:
        self._syncing = False
        for one in self.log.logs:
            one.sync()
        look()

    def is_new(self, index: int) -> bool:
        """Return True if nothing has ever been written to this shard's log."""
        return self.log.logs[index].last == 0

    @property
    def dead(self) -> bool:
        """True if the process has been killed while it wrote."""
        return any(files.dead for files in self.files)


class Forgotten:
    """Keys that were erased before a log was trimmed: when that is done, none of their bytes is left in it.

    Parameters
    ----------
    server : Server
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asked: dict[int, tuple[int, list[int]]] = {}
        """The rounds of images that were over then, and the keys that must go, by shard."""

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
