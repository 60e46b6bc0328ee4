"""Logs that survive the end of their process: what has changed a shard, or the coordinator, in order."""

from pslib.update_log.contents import entries_of, pieces_of
from pslib.update_log.files import DiskFiles, LogFiles
from pslib.update_log.records import FORMAT_VERSION, Record
from pslib.update_log.rolling import RollingLog

__all__ = ["FORMAT_VERSION", "DiskFiles", "LogFiles", "Record", "RollingLog", "entries_of", "pieces_of"]
