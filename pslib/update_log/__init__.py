"""Logs that survive the end of their process: what has changed a shard, or the coordinator, in order."""

from pslib.update_log.claim import claim
from pslib.update_log.contents import entries_of, pieces_of
from pslib.update_log.coordinator_log import CoordinatorLog
from pslib.update_log.files import DiskFiles, LogFiles
from pslib.update_log.records import FORMAT_VERSION, Record
from pslib.update_log.rolling import RollingLog

__all__ = [
    "FORMAT_VERSION",
    "CoordinatorLog",
    "DiskFiles",
    "LogFiles",
    "Record",
    "RollingLog",
    "claim",
    "entries_of",
    "pieces_of",
]
