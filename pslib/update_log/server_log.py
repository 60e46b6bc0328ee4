"""Folder of one server's logs: lock, identity, recovery after a crash, and the sync thread."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from cython_ext.wire.checksums import crc32
from pslib.clock import Clock
from pslib.config import ClusterConfig, Timing
from pslib.errors import LogCorruptError, LogForeignError
from pslib.shard.shard import Shard
from pslib.update_log.files import DiskFiles, claim, in_words
from pslib.update_log.segments import RollingLog
from pslib.update_log.shard_log import ShardLog, recover
from pslib.wire.messages import Load

log = logging.getLogger(__name__)
ABOUT = "about"
FOLDER_VERSION = 1


class ServerLog:
    """Logs of a server in ``<folder>/server-<rank>``: a lock, the identity, and one log per shard thread.

    Parameters
    ----------
    folder : str
        Folder of the cluster's logs.
    rank : int
        Rank of the server.
    cluster_id : str
        The folder of another cluster is refused.
    clock : Clock
        For the wait for a predecessor's end.
    generation : int
        Lower bound of this process's generation.
    files_of : callable
        Makes `DiskFiles` of a path; tests replace it.

    Raises
    ------
    UnavailableError
        If a predecessor still holds the folder after `Timing.start_s`.
    LogForeignError, LogCorruptError
        If the folder belongs to another server, or is damaged.
    LogFullError
        If its disk has no space.
    """

    def __init__(
        self,
        folder: str,
        rank: int,
        cluster_id: str,
        clock: Clock,
        generation: int = 0,
        files_of: Callable[[str], DiskFiles] = DiskFiles,
    ) -> None:
        self._folder, self._files_of = f"{folder}/server-{rank}", files_of
        self._clock = clock
        with in_words(self._folder):
            self._files = files_of(self._folder)
        before = claim(self._files, clock, Timing().start_s, self._folder)
        self.generation = max(before, generation)
        """Rises with every process that opens the folder."""
        self._identity = {"cluster": cluster_id, "server": rank}
        try:
            self._about = self._read_about()
        except BaseException:
            self._files.close()
            raise
        self.logs: list[RollingLog] = []
        self.shards: list[Shard] = []
        """Shards recovered from their logs; empty for a new folder."""

    @property
    def free_bytes(self) -> int | None:
        """Free disk space of the folder; None if unknown."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None

    # --- what the folder is about -------------------------------------------------------------------------

    def _read_about(self) -> dict[str, Any]:
        if ABOUT not in self._files.list():
            return {}
        content = self._files.read(ABOUT, 0, self._files.size(ABOUT))
        crc, packed = int.from_bytes(content[:4], "little"), content[4:]
        if crc != crc32(packed):
            raise LogCorruptError(
                f"{self._folder}/{ABOUT}: damaged; restore it, or start with another folder"
            )
        about: dict[str, Any] = msgpack.unpackb(packed)
        if about["version"] > FOLDER_VERSION:
            raise LogForeignError(
                f"{self._folder}: expected a log of format {FOLDER_VERSION} or older, got format "
                f"{about['version']}; start a newer pslib, or give another folder"
            )
        self._compare(about, self._identity)
        return about

    def _compare(self, about: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        for name, value in expected.items():
            if about[name] != value:
                raise LogForeignError(
                    f"{self._folder}: expected the log of {name} {value}, got that of {name} {about[name]}; "
                    "give another folder, or start what wrote it"
                )

    def _write_about(self, about: Mapping[str, Any]) -> None:
        packed = msgpack.packb(about)
        with in_words(self._folder):
            self._files.replace(ABOUT, crc32(packed).to_bytes(4, "little") + packed)

    # --- logs ---------------------------------------------------------------------------------------------

    def recover(self, load: Callable[[Shard, Load], Any]) -> None:
        """Recover `shards` by replay, if there is anything to replay; log one line about it.

        Raises
        ------
        LogCorruptError
            If a record is damaged.
        """
        about = self._about
        if not about:
            return
        began_s, records = self._clock.now_s(), 0
        for index in range(about["shard_threads"]):
            self._open(index, about)
            shard = _blank_shard(index, about)
            records += recover(self.logs[index], shard, load)
            shard.marks.begin(shard.owned)
            self.shards.append(self._begin_anew(index, about) if shard.bare else shard)
        rows = sum(store.rows for shard in self.shards for store in shard.stores.values())
        took_s = self._clock.now_s() - began_s
        log.warning("pslib: %s: replayed %d records, %d rows in %.1f s", self._folder, records, rows, took_s)

    def _begin_anew(self, index: int, about: Mapping[str, Any]) -> Shard:
        """Start an empty log and shard, if the predecessor itself had lost all older records."""
        self.logs.pop(index).close()
        files = self._files_of(f"{self._folder}/shard-{index}")
        for name in files.list():
            files.remove(name)
        files.close()
        self._open(index, about)
        self.logs[index].roll()
        return _blank_shard(index, about)

    @property
    def is_empty(self) -> bool:
        """Return True if one of its logs has never been written; a predecessor's state is then incomplete."""
        return not self.shards or any(one.last == 0 for one in self.logs)

    def _open(self, index: int, about: Mapping[str, Any]) -> None:
        place = f"{self._folder}/shard-{index}"
        own = {name: about[name] for name in about if name not in ("version", "durability")}
        disk = about["durability"] == "disk"
        with in_words(place):
            opened = RollingLog(self._files_of(place), {**own, "shard": index}, disk=disk, place=place)
        if opened.report:
            log.warning("pslib: %s", opened.report)
        self.logs.append(opened)

    def begin(self, config: ClusterConfig) -> list[Shard]:
        """Return shards that write to their logs: the recovered ones, or new ones.

        Raises
        ------
        LogForeignError
            If the folder was written with other cluster settings.
        """
        settings = {
            "shard_threads": config.shard_threads,
            "partition_bits": config.partition_bits,
            "dense_blocks": config.dense_blocks,
            "durability": config.durability,
        }
        if self._about:
            self._compare(self._about, settings)
        else:
            self._about = {"version": FOLDER_VERSION, **self._identity, **settings}
            for index in range(config.shard_threads):
                self._open(index, self._about)
                self.logs[index].roll()
                self.shards.append(_blank_shard(index, settings))
            self._write_about(self._about)
        for shard in self.shards:
            shard.room.limit_bytes = config.shard_memory_bytes
        return self.shards

    def journals(self, log_bytes: int) -> list[ShardLog]:
        """Journals, one per shard; each shard writes to its own."""
        share = log_bytes // len(self.shards)
        return [ShardLog(one, shard, share) for one, shard in zip(self.logs, self.shards, strict=True)]

    def close(self) -> None:
        """Close the folder and release its lock."""
        for one in self.logs:
            one.close()
        self._files.close()


def _blank_shard(index: int, about: Mapping[str, Any]) -> Shard:
    """Return a shard without units, as the folder's settings describe it."""
    return Shard(about["partition_bits"], about["dense_blocks"], index, about["shard_threads"])


class SyncThread:
    """Sync the logs of a server on request, all new records together.

    Parameters
    ----------
    server_log : ServerLog
    durable : callable
        Called after each sync.
    failed : callable
        Called with an error; no later record becomes durable.
    """

    def __init__(
        self, server_log: ServerLog, durable: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._log, self._durable, self._failed = server_log, durable, failed
        self._asked = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="pslib-log-sync", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Request a sync."""
        self._asked.set()

    def close(self) -> None:
        """Sync once more and end the thread."""
        self._ending = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            over = False
            while not over:
                self._asked.wait()
                self._asked.clear()
                over = self._ending
                for one in self._log.logs:
                    one.sync()
                self._durable()
        except BaseException as error:
            self._failed(error)
