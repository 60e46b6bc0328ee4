"""Shard thread of a server: serves requests in order, and writes images of checkpoints and log in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from cython_ext.common.cores import CoreTurns
from pslib.clock import SystemClock
from pslib.errors import (
    CheckpointError,
    LogError,
    LogFullError,
    MemoryLimitError,
    PslibError,
    UnknownTableError,
)
from pslib.server.requests import ShardRequest, ShardTurns, Work, run_on_shard, saves_over, shard_stats
from pslib.server.snapshot_thread import SnapshotThread, SnapshotTurns
from pslib.shard.shard import Shard
from pslib.update_log.shard_log import ShardLog
from pslib.wire.journal import Note
from pslib.wire.messages import CheckLoad, DescribeTables, Load

SHORT_ROWS = 1024
"""Rows (or 16 dense parameters each) that the receive thread serves itself: some 50 us, less than handing
them to another thread and their reply back.
"""
DRAIN_FROM = 32
"""Waiting requests from which the queue is drained to the last one."""
TURN_S = 0.0003
"""Time slice of the thread on its core while it serves a long request, about the duration of one slice of it.

Otherwise it keeps other threads waiting for 3 to 4 ms: a client that has just sent a short request, or is to
get its reply, is mostly on the core of the thread that woke it.
"""
LOADS_KEPT = 16
"""Outcomes of loads and their checks that are kept; a client has one in flight at a time."""


class _Loads:
    """Loads of one shard, and the checks before them, each run once.

    A load takes longer than the retry interval. Running a second copy would discard the pushes since then; so
    it gets the first one's reply.
    """

    def __init__(self, log: ShardLog | None = None) -> None:
        self._log = log
        self._done: dict[Load | CheckLoad, dict[str, Any] | PslibError] = {}

    def __call__(self, shard: Shard, message: Load | CheckLoad | DescribeTables) -> dict[str, Any]:
        if isinstance(message, DescribeTables):
            return {"tables": describe_tables(shard, message)}
        if message not in self._done:
            if len(self._done) == LOADS_KEPT:
                del self._done[next(iter(self._done))]
            if isinstance(message, CheckLoad):
                self._done[message] = self._check(shard, message)
            else:
                self._done[message] = self._do(shard, message)
        outcome = self._done[message]
        if isinstance(outcome, PslibError):
            raise outcome
        return outcome

    @staticmethod
    def _check(shard: Shard, message: CheckLoad) -> dict[str, Any] | PslibError:
        try:
            check_load(shard, message)
        except (CheckpointError, MemoryLimitError) as error:
            return error
        return {}

    def _do(self, shard: Shard, message: Load) -> dict[str, Any] | PslibError:
        left: list[Note] = []  # not to `Journal.later`, which would put them before the load
        tell, shard.room.tell = shard.room.tell, None if self._log is None else left.append
        try:
            outcome = load_into(shard, message)
        except (CheckpointError, MemoryLimitError, UnknownTableError) as error:
            # a late copy may find room, or its tables: it gets this, too
            return error
        finally:
            shard.room.tell = tell
        if self._log is not None:
            try:
                self._log.loaded(message, left)
            except LogFullError as error:  # its rows have changed, and the log will not record it
                raise LogError(f"loaded a checkpoint that the log does not name: {error}") from error
        return outcome


def load_into(shard: Shard, message: Load) -> dict[str, Any]:
    """Load a checkpoint into a shard, by a message.

    It creates no tables, which other servers might have with another description: the server of the lowest
    rank decides. A rejoining server has no other source, and takes the saved descriptions.
    """
    return _load(shard, message, new_tables=shard.bare)


def load_again(shard: Shard, message: Load) -> dict[str, Any]:
    """Repeat a load from the log: tables that it has created are created again."""
    return _load(shard, message, new_tables=True)


def _load(shard: Shard, message: Load, new_tables: bool) -> dict[str, Any]:
    from pslib.checkpoint import LoadOptions, load_shard  # pyarrow: 40 MB for files alone

    options = LoadOptions(message.state, _names(message), message.step, message.time_s, new_tables)
    return load_shard(shard, message.path, options)


def check_load(shard: Shard, message: CheckLoad) -> None:
    """Check whether a shard can load a checkpoint."""
    from pslib.checkpoint import LoadOptions, check_shard

    options = LoadOptions(message.state, _names(message), new_tables=shard.bare)
    check_shard(shard, message.path, options)


def describe_tables(shard: Shard, message: DescribeTables) -> list[dict[str, Any]]:
    """Return the tables of a checkpoint in plain form: as the shard has them, or else as they were saved."""
    from pslib.checkpoint import read_manifest  # pyarrow: 40 MB for files alone

    mine = dict(shard.tables)
    saved = read_manifest(message.path).tables
    return [mine[plain["name"]].to_dict() if plain["name"] in mine else dict(plain) for plain in saved]


def _names(message: Load | CheckLoad) -> tuple[str, ...] | None:
    return tuple(message.tables.split(",")) if message.tables else None


class ShardThread:
    """Thread that serves requests on one shard, in the order of `ShardTurns`; a fatal error calls ``failed``.

    While it has none, the receive thread serves short ones itself (`serve_now`): two hand-overs between
    threads cost more than a few rows. A thread that touches the shard holds ``turn``.
    """

    def __init__(
        self,
        shard: Shard,
        done: Callable[[ShardRequest, int, Any], None],
        failed: Callable[[BaseException], None],
        log: ShardLog | None = None,
    ) -> None:
        self.shard, self._log = shard, log
        self.stats = shard_stats(shard)
        self.held, self.step_waits = 0, list[list[Any]]()
        """Waiting pushes of a sync step, and the ranks they wait for, ``[step, ranks]``; as of the last
        heartbeat.
        """
        self._done, self._failed = done, failed
        self._loads = _Loads(log)
        self._turns = ShardTurns(shard, self._loads)
        self._now_s = SystemClock().now_s
        shard.cuts.opener = SnapshotThread
        self._image = SnapshotTurns(shard)
        self.turn = threading.Lock()
        self._counting = threading.Lock()
        self.given = self.settled = 0
        """Number of queued pieces of work; and the same number when none was left to do."""
        self._taken = 0
        self.busy_s = 0.0
        """Work of this thread on requests."""
        self._drained = threading.Event()
        self._work: SimpleQueue[ShardRequest | Work | None] = SimpleQueue()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=f"pslib-shard-{shard.index}", daemon=True)
        self._thread.start()

    def put(self, work: ShardRequest | Work) -> None:
        """Queue some work."""
        with self._counting:
            self.given += 1
        self._work.put(work)

    def load(self, shard: Shard, message: Load) -> None:
        """Load a checkpoint into the shard, in its thread."""
        self._loads(shard, message)

    def serve_now(self, request: ShardRequest) -> tuple[Any] | None:
        """Return the outcome of a request, served if no other work exists; None: it is untouched."""
        if not self._begin():
            return None
        try:
            outcome = (run_on_shard(self.shard, request, self._loads),)
            if self._log is not None and self._log.owes:
                self.put(lambda _shard: None)  # the thread does not sleep while it owes images
            return outcome
        finally:
            self.turn.release()

    def drain(self, patience_s: float) -> None:
        """Wait, at most ``patience_s``, until nothing is left to do, if many short and no long requests wait.

        Otherwise they could go on waiting as long as clients send requests: each new one finds the thread at
        work and is handed over to it, which takes over ten times as long. With 256 pulls of 8 rows in flight
        one piece of work of 20 ms left 6,200 replies a second of 243,500, for good (2026-11-25).
        """
        if self.waiting < DRAIN_FROM or self._turns.has_long:
            return
        self._drained.clear()
        if self.given != self.settled:
            self._drained.wait(patience_s)

    def _begin(self) -> bool:
        """Take the shard's turn, unless work waits or is in progress."""
        if not self.turn.acquire(blocking=False):
            return False
        if self.given == self.settled:
            return True
        self.turn.release()
        return False

    def finish(self) -> None:
        """Finish the queued work, then end the thread."""
        self._work.put(None)
        self._thread.join()
        if self._log is not None:
            with suppress(PslibError):
                self._log.flush()
        self.stats = shard_stats(self.shard)

    def _run(self) -> None:
        turns: CoreTurns | None = None
        try:
            while self._take():
                turns = self._core_turns(turns)
                with self.turn:
                    began_s = self._now_s()
                    over = self._turns.turn()
                    self.busy_s += self._now_s() - began_s
                for request, result in over:
                    self._done(request, self.shard.index, result)
                if turns is not None and self.waiting:
                    turns.give_way()
                if self.shard.cuts.active:
                    self._image.served()
                    if self._image.due:
                        self._write_image()
                if self._log is not None and self._log.owes:
                    self._write_log_images(self._log)
            self.shard.cuts.give_up("the server leaves")
        except BaseException as error:  # requests for these partitions would get no reply any more
            self._failed(error)

    def _core_turns(self, turns: CoreTurns | None) -> CoreTurns | None:
        """Request short time slices while a long request is served, and only then.

        A thread with short slices takes the core at once from the thread that it wakes up beside. Among many
        servers of one machine each small request costs a third more then
        (benchmarks/notebook/shared_memory.md).
        """
        if self._turns.has_long:
            return turns or CoreTurns(TURN_S)
        if turns is not None:
            turns.end()
        return None

    def _take(self) -> bool:
        """Take in new work, and wait for it only when nothing is left to do; return False at the end."""
        while not (self._turns and (self._ending or self._work.empty())):
            if not self._turns:
                self.settled = self._taken
                if self.settled == self.given:  # otherwise it has woken for the first of many
                    self._drained.set()
            if self._ending:
                return False
            work = self._next_work()
            if work is None:
                self._ending = True
            else:
                self._turns.put(work)
                self._taken += 1
        return True

    def _next_work(self) -> ShardRequest | Work | None:
        """Return the next piece of work; while there is none, write an image."""
        while self.shard.cuts.active:
            try:
                return self._work.get_nowait()
            except Empty:
                if not self._write_image():
                    with suppress(Empty):
                        return self._work.get(timeout=self._image.rest_s)
        return self._work.get()

    def _write_image(self) -> bool:
        """Write a piece of an image; return whether there was one."""
        with self.turn:
            moved = self._image.step()
            over = saves_over(self.shard)
        for request, result in over:
            self._done(request, self.shard.index, result)
        return moved

    def _write_log_images(self, log: ShardLog) -> None:
        """Write images due to the log: one batch if work waits, unless they are late; else all of them."""
        while log.owes and not self._turns.in_request:
            with self.turn:
                log.pace()
            if not log.is_late and (self._turns or not self._work.empty()):
                break

    def refresh_stats(self, _shard: Shard) -> None:
        """Refresh the counters of the next heartbeat, in the thread that owns them."""
        self.stats = shard_stats(self.shard)
        if self._log is not None:
            log = self._log.log
            self.stats |= {"log_bytes": log.disk_bytes, "log_replay_bytes": log.size_bytes}
            self.stats["log_rounds"] = [self._log.rounds]
        self.held, self.step_waits = self.shard.sync.held, self.shard.sync.missing()

    @property
    def waiting(self) -> int:
        """Return the pieces of work that are not done; nearly exact, read without a lock."""
        return self.given - self._taken + len(self._turns)
