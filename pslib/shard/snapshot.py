"""Snapshot of a shard: its image at one instant, copied out in pieces while the shard goes on serving.

`Cuts` is the record of a shard's images: the one being written, the outcomes of earlier ones, the requests
that wait for files, and the base of the next increment. It has no thread, no clock and no file: pieces go to
an `ImageSink`, and the driver of the shard calls `step` when there is time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.images import (
    image_begin,
    image_counts,
    image_end,
    image_filters,
    image_gone,
    image_rows,
    image_settle,
    image_stop,
    image_stop_keeping,
    image_written,
)
from pslib.errors import CheckpointError
from pslib.shard.state import ShardState
from pslib.table.policies import ByBloom, ByCount
from pslib.table.tables import RowLayout, TableSpec
from pslib.wire.messages import BeginSave, EndSave, Save, SaveFiles

PIECE_ROWS = 8192
PIECE_BYTES = 1 << 20
"""Bytes of one step: a request may wait for it, half a millisecond."""
KEPT = 8
"""Outcomes that are kept; a client has one save in flight at a time."""


class _Held:
    """Outcome of a request that waits: for the others of its sync step, or for the files of an image."""


HELD = _Held()


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Piece of an image.

    Attributes
    ----------
    table : str
        Empty for dense blocks.
    kind : {"rows", "narrow", "counts", "filters", "gone", "dense", "end"}
        The last piece of a table is its end, without arrays.
    arrays : tuple of ndarray
        As returned by the functions of `cython_ext.table.images`.
    """

    table: str
    kind: str
    arrays: tuple[Any, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays if isinstance(array, np.ndarray))


class ImageSink(Protocol):
    """Sink that writes pieces to files, in a thread of its own."""

    @property
    def room(self) -> bool:
        """Return True if another piece may come without too much waiting in memory."""
        ...

    @property
    def done(self) -> bool:
        """Return True if all is written, or nothing will be any more."""
        ...

    def put(self, piece: Piece) -> None:
        """Queue a piece; never waits."""
        ...

    def rest(self) -> None:
        """Wait until there may be room, a few milliseconds at most."""
        ...

    def finish(self) -> None:
        """End the sequence of pieces."""
        ...

    def abandon(self) -> None:
        """Abandon the files."""
        ...

    def outcome(self) -> list[dict[str, Any]]:
        """Return one manifest entry a file, in plain form, when it is done. Raises `CheckpointError`."""
        ...


Opener = Callable[[ShardState, str, str], ImageSink]
"""Opens the sink of a shard, below a path, for files with a stem in their names."""


def dense_piece(shard: ShardState) -> Iterator[Piece]:
    """Yield all dense blocks of a shard, copied."""
    if shard.dense is None:
        return
    blocks = list(shard.owned_blocks())
    first = np.array([shard.dense.bounds(block)[0] for block in blocks], np.int64)
    weights = [shard.dense.weights[block].copy() for block in blocks]
    yield Piece("", "dense", (first, weights, [shard.dense.state[block].copy() for block in blocks]))


class _Image:
    """Image that is being copied out."""

    def __init__(self, shard: ShardState, sink: ImageSink, stem: str, increment: bool, keep: bool) -> None:
        self.sink, self.stem, self.keep = sink, stem, keep
        self._stores, self._tables = dict(shard.stores), dict(shard.tables)
        self._increment, self._partitions = increment, shard.partitions
        self._waiting = list(dense_piece(shard))
        self.copied = self.broken = False
        for store in self._stores.values():
            image_begin(store, increment, keep)
        self._pieces = self._all_pieces()

    @property
    def copies_bytes(self) -> int:
        """Return the memory of rows copied aside before they changed."""
        return sum(store.tracking_bytes for store in self._stores.values())

    def copy_piece(self) -> int:
        """Put the next pieces, of one range of partitions; return their bytes."""
        copied = 0
        try:
            for piece in next(self._pieces):
                copied += piece.bytes
                self.sink.put(piece)
        except StopIteration:
            self.end()
            self.sink.finish()
        return copied

    def end(self) -> None:
        """End the image of the tables; ``broken`` says whether one has lost track of its changes."""
        for store in self._stores.values():
            self.broken = self.broken or (not self.copied and _has_lost_count(store))
            image_end(store)
        self.copied = True

    def _all_pieces(self) -> Iterator[list[Piece]]:
        for name in sorted(self._tables):
            spec, store = self._tables[name], self._stores[name]
            if self._increment:
                yield [Piece(name, "gone", (image_gone(store),))]
            first, rows = 0, piece_rows(spec)
            while first < self._partitions:
                stop = image_stop(store, first, rows)
                pieces = list(_pieces_of(store, spec, first, stop))
                image_written(store, first, stop)
                first = stop
                yield pieces
            yield [Piece(name, "end")]
        yield self._waiting


def _has_lost_count(store: Any) -> bool:
    """Return True if there was no memory for a copy: that row has changed, and no increment would hold it."""
    try:
        image_stop(store, 0, 1)
    except MemoryError:
        return True
    return False


def piece_rows(spec: TableSpec) -> int:
    """Return the rows of one step."""
    layout = RowLayout.of(spec)
    return max(64, min(PIECE_ROWS, PIECE_BYTES // (8 + 4 * (layout.dim + layout.state_floats))))


def _pieces_of(store: Any, spec: TableSpec, first: int, stop: int) -> Iterator[Piece]:
    for narrow in (False, True) if spec.compact else (False,):
        rows: tuple[NDArray[Any], ...] = image_rows(store, first, stop, narrow)
        if rows[0].size:
            yield Piece(spec.name, "narrow" if narrow else "rows", rows)
    if isinstance(spec.admission, ByCount):
        counts = image_counts(store, first, stop)
        if counts[0].size:
            yield Piece(spec.name, "counts", counts)
    if isinstance(spec.admission, ByBloom):
        filters = image_filters(store, first, stop)
        if filters[0].size:
            yield Piece(spec.name, "filters", filters)


class Cuts:
    """Images of one shard.

    Parameters
    ----------
    shard : ShardState

    Attributes
    ----------
    opener : callable or None
        Opens a sink; None where a shard has no files (and `Save` is handled elsewhere).
    copied_bytes, begun : int
        Bytes, and number, of all images since the shard began.
    base : str
        Name of the committed image that an increment may follow; empty: none.
    """

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self.opener: Opener | None = None
        self.base = ""
        self.copied_bytes = self.begun = 0
        self._image: _Image | None = None
        self._places: dict[str, str] = {}
        """Paths, by stem, of images that go on, or whose outcomes are known."""
        self._outcomes: dict[str, list[dict[str, Any]] | CheckpointError] = {}
        self._unsettled = ""
        """Stem of the image begun last, until it is known to be committed."""
        self._waiters: list[tuple[Any, str]] = []
        self._over: list[tuple[Any, Any]] = []

    @property
    def active(self) -> bool:
        """Return True if an image is being written."""
        return self._image is not None

    @property
    def copying(self) -> bool:
        """Return True if rows of an image are still to be copied out."""
        return self._image is not None and not self._image.copied

    def rest(self) -> None:
        """Wait a moment for the sink."""
        if self._image is not None:
            self._image.sink.rest()

    @property
    def copies_bytes(self) -> int:
        """Return the memory of rows copied aside for the image being written."""
        return self._image.copies_bytes if self._image and not self._image.copied else 0

    def begin(self, message: BeginSave | Save) -> None:
        """Begin an image of this instant; a second copy of the request changes nothing.

        Raises
        ------
        CheckpointError
            When there is no base for the increment here, or no memory.
        """
        stem = message.stem
        if self._places.get(stem) == message.path:
            return
        base, keep = (message.base, message.keep) if isinstance(message, BeginSave) else ("", False)
        stores: Mapping[str, Any] = self._shard.stores
        if base and not (base == self.base and all(store.keeps_changes for store in stores.values())):
            raise CheckpointError(
                f"shard thread {self._shard.index} has no image {base!r} that an increment could follow: "
                "ask for a full one"
            )
        self.give_up("another one was asked for")
        assert self.opener is not None
        sink = self.opener(self._shard, message.path, stem)
        try:
            self._image = _Image(self._shard, sink, stem, bool(base), keep)
        except (MemoryError, ValueError) as error:
            sink.abandon()
            for store in stores.values():
                image_end(store)
            raise CheckpointError(f"no image of shard thread {self._shard.index}: {error}") from error
        self.begun += 1
        self._unsettled = stem
        self._places[stem] = message.path
        self._outcomes.pop(stem, None)

    def wait(self, request: Any, message: Save | SaveFiles) -> Any:
        """Return the files of an image, or `HELD`: the request is over when they are written.

        Raises
        ------
        CheckpointError
            The error of the image, or that there was none.
        """
        outcome = self._outcomes.get(message.stem)
        if isinstance(outcome, CheckpointError):
            raise outcome
        if outcome is not None:
            return {"files": outcome}
        if self._image is None or self._image.stem != message.stem:
            raise CheckpointError(f"this server has begun no image {message.stem!r} since it started")
        self._waiters.append((request, message.stem))
        return HELD

    def settle(self, message: EndSave) -> None:
        """Record the outcome of an image: a committed one is the base of the next increment."""
        self.give_up("it was cancelled", message.stem)
        taken = isinstance(self._outcomes.get(message.stem), list)
        if not (message.committed and taken and message.stem == self._unsettled):
            return  # also a late second copy: stores settle the image taken last, whichever it was
        self.base, self._unsettled = message.name, ""
        for store in self._shard.stores.values():
            image_settle(store, True)

    def step(self) -> bool:
        """Copy the next piece, or check whether all is written; return False when nothing is to do now."""
        image = self._image
        if image is None:
            return False
        if image.sink.done:
            self._conclude(image)
            return True
        if image.copied or not image.sink.room:
            return False
        try:
            self.copied_bytes += image.copy_piece()
        except MemoryError as error:
            self.give_up(str(error))
        return True

    def give_up(self, why: str, stem: str | None = None) -> None:
        """Abandon the image being written (with a stem: if it is that); waiting requests get the reason."""
        image = self._image
        if image is None or stem not in (None, image.stem):
            return
        image.sink.abandon()
        self._end(image)
        self._remember(image.stem, CheckpointError(f"image {image.stem} was given up: {why}"))

    def forget(self, why: str) -> None:
        """Drop all images before the tables are replaced: none goes on, no increment may follow."""
        self.give_up(why)
        self.base = ""
        for store in self._shard.stores.values():
            image_stop_keeping(store)

    def unit_came(self) -> None:
        """Forbid an increment after a unit arrived, also on an image in progress.

        Keys that left the unit before are known where it was, and that server may be gone.
        """
        self.base = self._unsettled = ""

    def take_over(self) -> list[tuple[Any, Any]]:
        """Take the finished requests that waited for files, with their outcomes or errors."""
        over, self._over = self._over, []
        return over

    def _end(self, image: _Image) -> None:
        image.end()
        self._image = None
        if image.broken:
            self.base = self._unsettled = ""  # changes from here on are tracked for the next full one

    def _conclude(self, image: _Image) -> None:
        self._end(image)
        try:
            self._remember(image.stem, image.sink.outcome())
        except CheckpointError as error:
            self._remember(image.stem, error)

    def _remember(self, stem: str, outcome: list[dict[str, Any]] | CheckpointError) -> None:
        while len(self._outcomes) >= KEPT:
            oldest = next(iter(self._outcomes))
            del self._outcomes[oldest], self._places[oldest]
        self._outcomes[stem] = outcome
        result: Any = outcome if isinstance(outcome, CheckpointError) else {"files": outcome}
        self._over += [(request, result) for request, wanted in self._waiters if wanted == stem]
        self._waiters = [(request, wanted) for request, wanted in self._waiters if wanted != stem]
