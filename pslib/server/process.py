"""Server process over ZeroMQ."""

from __future__ import annotations

from pslib.client.membership import ANYWHERE, Place
from pslib.clock import SystemClock
from pslib.config import ANY_RANK
from pslib.errors import ConfigurationError
from pslib.server.server import Server
from pslib.transport import Keys, ZmqTransport
from pslib.update_log import ServerLog

__all__ = ["run_server"]

IO_THREADS = 2
"""ZeroMQ threads. With one, a short request waits while a long one is copied from another connection."""


def run_server(
    coordinator: str,
    cluster_id: str,
    listen: str,
    insecure_network: bool = False,
    keys: Keys | None = None,
    place: Place = ANYWHERE,
    log: str | None = None,
) -> int:
    """Run a server process over ZeroMQ; return its exit code (0 left in order, 69 the cluster failed).

    ``log`` is the folder of the cluster's logs: the log of a predecessor of the same rank is recovered.

    Raises
    ------
    ConfigurationError
        When there is a log and no rank.
    """
    clock = SystemClock()
    if log is not None and place.rank == ANY_RANK:
        raise ConfigurationError(
            "--log: expected a rank beside it, got none; a log belongs to one place: --rank R"
        )
    own = None if log is None else ServerLog(log, place.rank, cluster_id, clock, place.generation)
    transport = ZmqTransport(io_threads=IO_THREADS, insecure_network=insecure_network, keys=keys)
    try:
        return Server(transport, coordinator, cluster_id, listen, clock, place, own).run()
    finally:
        transport.close()
