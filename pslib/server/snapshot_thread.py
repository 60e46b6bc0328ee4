"""Scheduling of image pieces in a shard thread, and the thread that writes them to files."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from pslib.errors import CheckpointError
from pslib.shard.shard import Shard
from pslib.shard.snapshot import Piece
from pslib.shard.state import ShardState

ROOM_BYTES = 4 << 20
"""Bytes of pieces that wait to be encoded; as many again wait to be written."""
REST_S = 0.005

SHARE = 0.15
"""Share of a busy thread's time: requests keep the rest, which bounds what a save costs them."""
RATE_BYTES_S = 375e6
"""Maximum rate of one server's images while it serves: encoding and writing them takes CPU time from
trainers. Without a bound an image of 76 MB was written in half a second, in which a trainer made 0.45 of
its steps. Files are written at some 0.85 of it (`benchmarks/train.py --saves`).
"""
PACE_REST_S, FILE_REST_S = 0.002, 0.0005
"""Pauses of an idle thread before it checks again: whether its image may go on, or whether files have taken
what it gave them, which is some 1.5 ms of their work.
"""
BUSY_S = 0.05
"""Time after the last request from which a server counts as idle."""
COPIES_BYTES = 1 << 20
COPIES_SHARE = 0.08
"""Limit of the memory of rows copied aside, as a share of the tables' memory and at least ``COPIES_BYTES``;
beyond it an image goes first.
"""


class SnapshotTurns:
    """Scheduler of a thread's time between requests and the image of a shard.

    Parameters
    ----------
    shard : Shard
        Held by the caller of each method.

    Attributes
    ----------
    rest_s : float
        Pause after a `step` that had nothing to write.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.rest_s = FILE_REST_S
        self._began_s = self._spent_s = 0.0
        self._began_bytes = self._copies_limit = 0
        self._served_s = float("-inf")
        self._image = 0
        """Number of the image that this state belongs to; 0: of none yet."""

    def served(self) -> None:
        """Record that a request was served just now."""
        self._served_s = time.perf_counter()

    def step(self) -> bool:
        """Write a piece; return False when there is nothing to write just now."""
        began_s = time.perf_counter()
        is_fast = self._is_fast_enough(began_s)
        self.rest_s = PACE_REST_S if is_fast else FILE_REST_S
        if is_fast:
            return False
        moved = self._shard.cuts.step()
        self._note(began_s, time.perf_counter())
        return moved

    @property
    def due(self) -> bool:
        """Return True if the image has a turn although requests wait."""
        if not self._shard.cuts.active:
            return False
        if self._image != self._shard.cuts.begun:
            return True
        elapsed_s = time.perf_counter() - self._began_s
        return self._spent_s < SHARE * elapsed_s or self._is_urgent()

    def _is_fast_enough(self, now_s: float) -> bool:
        """Return True if the image may yield to requests without falling behind."""
        if self._image != self._shard.cuts.begun or now_s - self._served_s > BUSY_S:
            return False
        written = self._shard.cuts.copied_bytes - self._began_bytes
        allowed = RATE_BYTES_S / self._shard.shards * (now_s - self._began_s)
        return written > allowed and not self._is_urgent()

    def _is_urgent(self) -> bool:
        return self._shard.cuts.copies_bytes > self._copies_limit

    def _note(self, began_s: float, ended_s: float) -> None:
        """Add a time span; old ones decay, so that shares are of the last second or two."""
        begun = self._shard.cuts.begun
        if self._image != begun:  # once an image: it looks at every partition
            held = sum(store.stats()["resident_bytes"] for store in self._shard.stores.values())
            self._copies_limit = max(COPIES_BYTES, int(COPIES_SHARE * held))
        if self._image != begun or ended_s - self._began_s > 2.0:
            self._image, self._began_s, self._spent_s = begun, began_s, 0.0
            self._began_bytes = self._shard.cuts.copied_bytes
        self._spent_s += ended_s - began_s


class SnapshotThread:
    """Thread that writes the pieces of one image to files.

    Parameters
    ----------
    shard : ShardState
        Its tables, as they are now.
    path : str
        Folder of the checkpoint, created when missing.
    stem : str
        Goes into the names of files, with the number of the shard.
    """

    def __init__(self, shard: ShardState, path: str, stem: str) -> None:
        self._what = path, f"{stem}-{shard.index}", dict(shard.tables), shard.partition_bits
        self._entries: list[dict[str, Any]] = []
        self._error: CheckpointError | None = None
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._put_bytes = self._taken_bytes = 0
        self._moved = threading.Event()
        self._wanted, self.done = True, False
        self._thread = threading.Thread(target=self._run, name="pslib-image", daemon=True)
        self._thread.start()

    @property
    def room(self) -> bool:
        """Return True if another piece may come without too much waiting in memory."""
        return self._put_bytes - self._taken_bytes < ROOM_BYTES

    def put(self, piece: Piece) -> None:
        """Queue a piece; never waits."""
        self._put_bytes += piece.bytes
        self._pieces.put(piece)

    def rest(self) -> None:
        """Wait until there may be room, a few milliseconds at most."""
        self._moved.wait(REST_S)
        self._moved.clear()

    def finish(self) -> None:
        """End the sequence of pieces."""
        self._pieces.put(None)

    def abandon(self) -> None:
        """Abandon the files."""
        self._wanted = False
        self._pieces.put(None)

    def outcome(self) -> list[dict[str, Any]]:
        """Return one manifest entry a file, in plain form, when it is done.

        Raises
        ------
        CheckpointError
            When the folder can't be written.
        """
        self._thread.join()
        if self._error:
            raise self._error
        return self._entries

    def _run(self) -> None:
        try:
            from pslib.checkpoint import ImageWriter  # pyarrow: half a second that no request may wait for

            with ImageWriter(*self._what) as writer:
                while (piece := self._pieces.get()) is not None and self._wanted:
                    writer.take(piece)
                    self._taken_bytes += piece.bytes
                    self._moved.set()
            self._entries = [entry.to_dict() for entry in writer.entries]
        except CheckpointError as error:
            self._error = error
        except BaseException as error:  # the shard's thread must get any error
            self._error = CheckpointError(f"internal: {type(error).__name__}: {error}")
        finally:
            self.done = True
            self._moved.set()
