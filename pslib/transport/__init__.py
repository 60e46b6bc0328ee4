"""Transport links between processes: ZeroMQ, and an in-memory implementation of the same behaviour."""

from pslib.transport.keys import Keys, read_keys
from pslib.transport.link import ClientLink, Peer, ServerLink, Transport
from pslib.transport.memory_link import MemoryTransport
from pslib.transport.zmq_link import ZmqTransport

__all__ = [
    "ClientLink",
    "Keys",
    "MemoryTransport",
    "Peer",
    "ServerLink",
    "Transport",
    "ZmqTransport",
    "read_keys",
]
