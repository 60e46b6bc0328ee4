"""Embedded cluster: coordinator and servers as threads of one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from pslib.client.client import Client
from pslib.client.membership import FREE_RANK, RankRequest
from pslib.clock import SystemClock
from pslib.config import ClusterConfig
from pslib.coordinator.coordinator import Coordinator, open_journal
from pslib.server.server import Server
from pslib.transport import MemoryTransport, Transport
from pslib.update_log import ServerLog

log = logging.getLogger(__name__)


class Embedded:
    """Coordinator and servers as threads of this process.

    Parameters
    ----------
    config : ClusterConfig
        As for a cluster of processes.
    transport : Transport or None
        Default: a network in memory.
    listen : str
        Listening address of each; port 0 means any free one.
    log : str or None
        Folder of logs and journal, where the configuration enables them; its content is recovered.

    Attributes
    ----------
    transport, address, cluster_id
        Arguments that a `Client` needs to join.
    servers : list of Server
        Servers that have joined.
    """

    def __init__(
        self,
        config: ClusterConfig,
        transport: Transport | None = None,
        listen: str = "memory:embedded:0",
        log: str | None = None,
    ) -> None:
        self.transport = transport or MemoryTransport()
        self.cluster_id = "embedded"
        self.servers: list[Server] = []
        self._closing = False
        self._log = log
        self._journal = open_journal(None if log is None else f"{log}/coordinator", config, self.cluster_id)
        try:
            self.coordinator = Coordinator(
                self.transport, config, self.cluster_id, listen, SystemClock(), self._journal
            )
        except BaseException:
            if self._journal is not None:
                self._journal.close()  # releases the folder for the next try
            raise
        if self._journal is not None and self._journal.term:
            self.coordinator.resume()
        self.address = self.coordinator.address
        self._threads = [self._start(self.coordinator.run, "coordinator")]
        self._threads += [
            self._start(partial(self._serve, listen, rank), f"server-{rank}")
            for rank in range(config.servers)
        ]

    def _start(self, work: Callable[[], object], name: str) -> threading.Thread:
        thread = threading.Thread(target=self._guard, args=(work, name), name=f"pslib-{name}", daemon=True)
        thread.start()
        return thread

    def _guard(self, work: Callable[[], object], name: str) -> None:
        """Run a thread's work; an error in it ends the run, as that of a process would, with its message."""
        try:
            work()
        except BaseException as error:
            if not self._closing:
                log.error("pslib: %s has died", name, exc_info=error)
                self.coordinator.fail(f"{name} has died: {type(error).__name__}: {error}")

    def _serve(self, listen: str, rank: int) -> None:
        own, rank_request, clock = None, FREE_RANK, SystemClock()
        if self._log is not None:
            own = ServerLog(self._log, rank, self.cluster_id, clock)
            rank_request = RankRequest(rank, own.generation)
        server = Server(self.transport, self.address, self.cluster_id, listen, clock, rank_request, own)
        self.servers.append(server)
        if self._closing:
            server.stop()
        self._guard(server.run, f"server {server.rank} at {server.address}")

    def add_server(self, listen: str) -> None:
        """Start one more server thread; it owns nothing until the cluster is scaled."""
        number = len(self._threads) - 1
        self._threads.append(self._start(partial(self._serve, listen, number), f"server-{number}"))

    def join(self) -> Client:
        """Return a client of this cluster, for threads that act as trainers."""
        term = 0 if self._journal is None else self._journal.term
        rank_request = RankRequest(0, term) if term else FREE_RANK  # rank of the process before this one
        return Client(self.transport, self.address, self.cluster_id, SystemClock(), rank_request=rank_request)

    def close(self) -> None:
        """Stop servers, then the coordinator; servers that still wait for others to join stop too."""
        self._closing = True
        if len(self.servers) < len(self._threads) - 1:
            self.coordinator.fail("the cluster was closed before all of it had joined")
        for server in list(self.servers):
            server.stop()
        for thread in self._threads[1:]:
            thread.join(10.0)
        self.coordinator.stop()
        self._threads[0].join(10.0)
        self.transport.close()
        if self._journal is not None:
            self._journal.close()

    def last_status(self) -> dict[str, Any]:
        """Return the status after all members have left."""
        return self.coordinator.status_with_events()
