"""Log of one shard: journal of changes, periodic images, and recovery after a crash."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.errors import ConfigurationError, LogFullError, PslibError
from pslib.shard.replay import Replay, images_of, state_of, units_of_images
from pslib.shard.shard import Shard
from pslib.table.partition_map import units_of_mask
from pslib.table.policies import ByCount
from pslib.table.tables import RowLayout
from pslib.update_log.contents import entries_of, first_note, not_a_record, pieces_of
from pslib.update_log.records import Buffer
from pslib.update_log.segments import RollingLog
from pslib.wire.fields import Message
from pslib.wire.journal import Entry, Note
from pslib.wire.messages import Load, Release

log = logging.getLogger(__name__)
CHANGES, IMAGES = 1, 2
"""Record kinds."""
BATCH_BYTES = 256 << 10
"""Image bytes written between two requests, unless a single unit is larger: about 0.3 ms."""
LATER_MAX = 1000
"""Deferred entries for the next record, before they get a record of their own."""
KEY_BYTES = 8


class ShardLog:
    """Journal of one shard, used by the shard's thread only.

    Images keep the log short. While the shard works, its units are written one after the other, in proportion
    to the bytes of changes, so that a round of images ends before the log is too long. Records before the
    round are then not needed.

    Parameters
    ----------
    log : RollingLog
    shard : Shard
        Writes to the log from now on.
    log_bytes : int
        Limit of the log, or three times the size of the shard's images if that is more.
    """

    def __init__(self, log: RollingLog, shard: Shard, log_bytes: int) -> None:
        self.log, self._shard, self._log_bytes = log, shard, log_bytes
        self._later: dict[Any, Entry] = {}
        self._places = count()
        self._round: list[int] | None = None
        """Units without an image in this round, the next one last."""
        self._began = 0
        self._owed = 0.0
        self._per_byte = 0.0
        """Bytes of images for each byte of changes."""
        self._is_due = self._forced = False
        """True if a round is to begin now; and if it must begin for any log length."""
        self.rounds = 0
        """Finished rounds of images."""
        shard.write_to(self)

    # --- changes ------------------------------------------------------------------------------------------

    def append(self, *entries: Entry) -> None:
        """Write a record, before its changes are acknowledged; see `pslib.wire.journal.Journal`."""
        for entry in entries:
            if isinstance(entry, Release) and self._round is not None and entry.unit in self._round:
                self._write(IMAGES, images_of(self._shard, [entry.unit]))  # no other record has its content
                self._round.remove(entry.unit)  # not before: without disk space it stays due
        size = self._write(CHANGES, entries)
        if self._round is None:
            self._is_due = self._is_due or self._forced or self._is_long()
        else:
            self._owed += size * self._per_byte

    def later(self, *entries: Entry) -> None:
        """Defer entries to the next record, before its own."""
        for entry in entries:
            key: Any = ("", next(self._places))
            if not isinstance(entry, Message) and entry["note"] == "seen":
                key = entry["stream"]
            self._later.pop(key, None)
            self._later[key] = entry
        if len(self._later) > LATER_MAX:
            try:
                self.flush()
            except LogFullError as error:
                log.warning("pslib: %s", error)

    def flush(self) -> None:
        """Write the entries deferred to the next record."""
        if self._later:
            self._write(CHANGES, ())

    def loaded(self, message: Load, left: Sequence[Note] = ()) -> None:
        """Record a loaded checkpoint; a recovery needs it until the images that begin now are done.

        ``left`` are notes of loaded rows that the memory limit evicted meanwhile. A recovery has no limit and
        loads them too, so the notes follow the load.
        """
        self._write(CHANGES, (message, *_gone(self._shard, left)))
        self.write_images()

    def _write(self, kind: int, entries: Any) -> int:
        """Write one record with the deferred entries first; images have none."""
        before = list(self._later.values())
        if kind == IMAGES and before:
            self.flush()
            before = []
        body: list[Buffer] = pieces_of([*before, *entries])
        self.log.append(kind, 0, body)
        self._later.clear()
        return sum(len(piece) for piece in body)

    # --- images -------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Return True if images are due before many more changes; a broken shard has none to write."""
        if self._shard.broken:
            return False
        return self._is_due or (self._round is not None and self._owed > 0)

    @property
    def is_late(self) -> bool:
        """Return True if requests must wait for due images, to bound the log."""
        return max(self._images_bytes() / 8, 64 * BATCH_BYTES) < self._owed < float("inf")

    def write_images(self) -> None:
        """Begin a round at any log length, with all of it due, so that older records can be removed."""
        self._round, self._is_due, self._forced, self._per_byte = None, True, True, float("inf")

    def pace(self) -> None:
        """Write a few due images between two requests: one unit or several small ones.

        A log without disk space resumes when more is due.
        """
        if not self.owes:
            return
        try:
            if self._round is None:
                self._begin()
            assert self._round is not None
            self._owed -= self._write_batch(self._round)
            if not self._round:
                self.log.trim(self._began)
                self.rounds += 1
                self._round, self._owed, self._per_byte = None, 0.0, 0.0
        except LogFullError as error:
            log.warning("pslib: images of shard thread %d: %s", self._shard.index, error)
            self._is_due, self._owed = False, 0.0

    def _write_batch(self, left: list[int]) -> int:
        units: list[int] = []
        size, shard = 0, self._shard
        while left and size < BATCH_BYTES:
            unit = left[-1]
            unit_bytes = _unit_bytes(shard, unit)
            if units and size + unit_bytes > BATCH_BYTES:
                break
            units.append(left.pop())
            size += unit_bytes
        try:
            owned = [unit for unit in units if shard.owned >> unit & 1]
            return self._write(IMAGES, images_of(shard, owned)) if owned else 0
        except LogFullError:
            left += reversed(units)
            raise

    def _images_bytes(self) -> int:
        shard = self._shard
        rows = sum(store.rows * _row_bytes(shard, name) for name, store in shard.stores.items())
        return rows + (8 * shard.dense.spec.length if shard.dense else 0)

    def _is_long(self) -> bool:
        """Return True if a round must begin: its images and the changes meanwhile would exceed the limit.

        With R bytes of images and a limit L >= 3 R, a round allows changes of P = (L - R) / 4. It leaves a
        log of R + P, and the next one begins at L - R - P, which is no less.
        """
        images = self._images_bytes()
        limit = max(self._log_bytes, 3 * images)
        self._per_byte = 1.25 * images / max((limit - images) / 4, 1)
        return self.log.size_bytes + images + (limit - images) // 4 >= limit

    def _begin(self) -> None:
        self.flush()
        self.log.roll()
        self._write(CHANGES, state_of(self._shard))
        self._began = self.log.last
        self._round = units_of_mask(self._shard.owned).tolist()[::-1]
        self._is_due = self._forced = False
        self._owed = max(1.0, self._per_byte)


def _gone(shard: Shard, left: Sequence[Note]) -> list[Note]:
    """Notes of rows that are absent now; a later increment of the checkpoint may contain one again."""
    notes: list[Note] = []
    for table in dict.fromkeys(note["table"] for note in left):
        keys = np.frombuffer(b"".join(note["keys"] for note in left if note["table"] == table), np.uint64)
        known = _known_among(shard, table, keys)
        notes.append({"note": "left", "table": table, "keys": keys[~known].tobytes()})
    return notes


def _known_among(shard: Shard, table: str, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Keys that have a row or a count."""
    store, is_counted = shard.stores[table], isinstance(shard.tables[table].admission, ByCount)
    known = np.zeros(keys.size, np.bool_)
    if not is_counted and store.missing(keys) == keys.size:
        return known
    partitions = partition_of(keys, shard.partition_bits)
    for partition in np.unique(partitions).tolist():
        there = [store.export_partition(partition, narrow)[0] for narrow in (False, True)]
        if is_counted:
            there.append(store.export_counts(partition)[0])
        some = np.flatnonzero(partitions == partition)
        known[some] = np.isin(keys[some], np.concatenate(there))
    return known


def _row_bytes(shard: Shard, table: str) -> int:
    layout = RowLayout.of(shard.tables[table])
    return KEY_BYTES + 4 * (layout.dim + layout.state_floats)


def _unit_bytes(shard: Shard, unit: int) -> int:
    """Approximate image bytes of a unit."""
    if unit >= shard.partitions:
        return 8 * shard.dense.bounds.size if shard.dense else 0
    return sum(store.partition_rows(unit) * _row_bytes(shard, name) for name, store in shard.stores.items())


def _units_of(number: int, read: Callable[[int, int], bytes]) -> list[int]:
    """Units of a record of images, from its header."""
    try:
        return units_of_images(first_note(read))
    except Exception as error:
        raise not_a_record(f"record {number}", error) from error


def recover(log_: RollingLog, shard: Shard, load: Callable[[Shard, Load], Any]) -> int:
    """Replay the log into an empty shard; return the number of records applied.

    Parameters
    ----------
    log_ : RollingLog
    shard : Shard
        Shard without units, tables or journal.
    load : callable
        Loads a checkpoint into the shard.

    Raises
    ------
    LogCorruptError
        If a record is damaged.
    """
    newest: dict[int, int] = {}
    for head, read in log_.heads() if IMAGES in log_.kinds else ():
        if head.kind == IMAGES:
            newest.update(dict.fromkeys(_units_of(head.number, read), head.number))
    limit, shard.room.limit_bytes = shard.room.limit_bytes, 0  # evictions are recorded
    replay, records = Replay(shard, newest, load), 0
    for record in log_.records():
        entries = entries_of(record.body, f"record {record.number}")
        try:
            replay.take(record.number, entries)
        except Exception as error:
            if isinstance(error, PslibError) and not isinstance(error, ConfigurationError):
                raise
            # Fields of other types than a message has, or settings that no table can have.
            raise not_a_record(f"record {record.number}", error) from error
        records += 1
    shard.room.limit_bytes = limit
    shard.room.forget()
    return records
