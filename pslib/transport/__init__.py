"""Doors to other processes: ZeroMQ, and a twin in memory with the same behaviour."""

from pslib.transport.link import ClientLink, ServerLink, Transport
from pslib.transport.memory_link import MemoryTransport
from pslib.transport.zmq_link import ZmqTransport

__all__ = ["ClientLink", "MemoryTransport", "ServerLink", "Transport", "ZmqTransport"]
