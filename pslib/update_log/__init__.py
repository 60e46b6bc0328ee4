"""Durable logs of changes to a shard or the coordinator, replayed after a restart."""

from pslib.update_log.contents import entries_of, pieces_of
from pslib.update_log.coordinator_log import CoordinatorLog
from pslib.update_log.files import DiskFiles, claim, in_words
from pslib.update_log.records import FORMAT_VERSION, Record
from pslib.update_log.segments import RollingLog
from pslib.update_log.server_log import ServerLog, SyncThread
from pslib.update_log.shard_log import ShardLog

__all__ = [
    "FORMAT_VERSION",
    "CoordinatorLog",
    "DiskFiles",
    "Record",
    "RollingLog",
    "ServerLog",
    "ShardLog",
    "SyncThread",
    "claim",
    "entries_of",
    "in_words",
    "pieces_of",
]
