"""The image of a shard at one instant, copied out in pieces while the shard goes on serving.

`Cuts` is what a shard knows of its images: which one is being written, what became of earlier ones, who waits
for files, and on top of which image an increment may be made. It has no thread, no clock and no file: pieces
go to an `ImageSink`, and whoever drives the shard calls `step` when there is time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pslib.errors import CheckpointError
from pslib.shard.state import ShardState
from pslib.table.policies import ByBloom, ByCount
from pslib.table.row_layout import RowLayout
from pslib.table.tables import TableSpec
from pslib.wire.messages import BeginSave, EndSave, Save, SaveFiles

__all__ = ["HELD", "Cuts", "ImageSink", "Piece"]

PIECE_ROWS = 8192
PIECE_BYTES = 1 << 20
"""One step: so long may a request wait for it, half a millisecond."""
KEPT = 8
"""Outcomes that are remembered; a client has one save at a time on its way."""


class _Held:
    """Outcome of a request that waits: for the others of its sync step, or for the files of an image."""


HELD = _Held()


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some of an image.

    Attributes
    ----------
    table : str
        Empty for dense blocks.
    kind : {"rows", "narrow", "counts", "filters", "gone", "dense", "end"}
        The last piece of a table is its end, without arrays.
    arrays : tuple of ndarray
        As the methods ``image_...`` of a Store give them.
    """

    table: str
    kind: str
    arrays: tuple[Any, ...] = ()

    @property
    def bytes(self) -> int:
        """What its arrays hold."""
        return sum(array.nbytes for array in self.arrays if isinstance(array, np.ndarray))


class ImageSink(Protocol):
    """Takes pieces and makes files of them, in a thread of its own."""

    @property
    def room(self) -> bool:
        """Whether another piece may come without too much waiting in memory."""
        ...

    @property
    def done(self) -> bool:
        """Whether all is written, or nothing will be any more."""
        ...

    def put(self, piece: Piece) -> None:
        """Take a piece; never waits."""
        ...

    def rest(self) -> None:
        """Wait until there may be room, a few milliseconds at most."""
        ...

    def finish(self) -> None:
        """No more pieces come."""
        ...

    def abandon(self) -> None:
        """Nobody wants the files."""
        ...

    def outcome(self) -> list[dict[str, Any]]:
        """One manifest entry a file, in plain form, when it is done. Raises `CheckpointError`."""
        ...


Opener = Callable[[ShardState, str, str], ImageSink]
"""Makes the sink for a shard, below a path, for files with a stem in their names."""


def dense_piece(shard: ShardState) -> Iterator[Piece]:
    """All dense blocks of a shard, copied."""
    if shard.dense is None:
        return
    blocks = list(shard.owned_blocks())
    first = np.array([shard.dense.bounds(block)[0] for block in blocks], np.int64)
    weights = [shard.dense.weights[block].copy() for block in blocks]
    yield Piece("", "dense", (first, weights, [shard.dense.state[block].copy() for block in blocks]))


class _Image:
    """One image that is being copied out."""

    def __init__(self, shard: ShardState, sink: ImageSink, stem: str, increment: bool, keep: bool) -> None:
        self.sink, self.stem, self.keep = sink, stem, keep
        self._stores, self._tables = dict(shard.stores), dict(shard.tables)
        self._increment, self._partitions = increment, shard.partitions
        self._waiting = list(dense_piece(shard))
        self.copied = self.broken = False
        for store in self._stores.values():
            store.image_begin(increment, keep)
        self._pieces = self._all_pieces()

    @property
    def copies_bytes(self) -> int:
        """Memory that it takes of what was about to change."""
        return sum(store.tracking_bytes for store in self._stores.values())

    def copy_piece(self) -> int:
        """Hand on the next pieces, of one range of partitions; their bytes."""
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
        """No more of the tables is wanted; ``broken`` says whether one has lost count of what has changed."""
        for store in self._stores.values():
            self.broken = self.broken or (not self.copied and _has_lost_count(store))
            store.image_end()
        self.copied = True

    def _all_pieces(self) -> Iterator[list[Piece]]:
        for name in sorted(self._tables):
            spec, store = self._tables[name], self._stores[name]
            if self._increment:
                yield [Piece(name, "gone", (store.image_gone(),))]
            first, rows = 0, piece_rows(spec)
            while first < self._partitions:
                stop = store.image_stop(first, rows)
                pieces = list(_pieces_of(store, spec, first, stop))
                store.image_written(first, stop)
                first = stop
                yield pieces
            yield [Piece(name, "end")]
        yield self._waiting


def _has_lost_count(store: Any) -> bool:
    """Whether there was no memory for a copy: that row has changed, and no increment would hold it."""
    try:
        store.image_stop(0, 1)
    except MemoryError:
        return True
    return False


def piece_rows(spec: TableSpec) -> int:
    """Rows of one step."""
    layout = RowLayout.of(spec)
    return max(64, min(PIECE_ROWS, PIECE_BYTES // (8 + 4 * (layout.dim + layout.state_floats))))


def _pieces_of(store: Any, spec: TableSpec, first: int, stop: int) -> Iterator[Piece]:
    for narrow in (False, True) if spec.compact else (False,):
        rows: tuple[NDArray[Any], ...] = store.image_rows(first, stop, narrow)
        if rows[0].size:
            yield Piece(spec.name, "narrow" if narrow else "rows", rows)
    if isinstance(spec.admission, ByCount):
        counts = store.image_counts(first, stop)
        if counts[0].size:
            yield Piece(spec.name, "counts", counts)
    if isinstance(spec.admission, ByBloom):
        filters = store.image_filters(first, stop)
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
        Makes a sink; None where a shard has no files (`Save` is somebody else's business then).
    copied_bytes, begun : int
        Of all images since the shard began; how many images these were.
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
        """Of images that go on, or whose outcomes are known: by stem."""
        self._outcomes: dict[str, list[dict[str, Any]] | CheckpointError] = {}
        self._unsettled = ""
        """Stem of the image begun last, until it is known to be committed."""
        self._waiters: list[tuple[Any, str]] = []
        self._over: list[tuple[Any, Any]] = []

    @property
    def active(self) -> bool:
        """Whether an image is being written."""
        return self._image is not None

    @property
    def copying(self) -> bool:
        """Whether rows of an image are still to be copied out."""
        return self._image is not None and not self._image.copied

    def rest(self) -> None:
        """Wait a moment for the sink."""
        if self._image is not None:
            self._image.sink.rest()

    @property
    def copies_bytes(self) -> int:
        """Memory that the image being written takes of what was about to change."""
        return self._image.copies_bytes if self._image and not self._image.copied else 0

    def begin(self, message: BeginSave | Save) -> None:
        """This is the instant; a second copy of the request changes nothing.

        Raises
        ------
        CheckpointError
            When there is no image here that the increment could follow, or no memory.
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
                store.image_end()
            raise CheckpointError(f"no image of shard thread {self._shard.index}: {error}") from error
        self.begun += 1
        self._unsettled = stem
        self._places[stem] = message.path
        self._outcomes.pop(stem, None)

    def wait(self, request: Any, message: Save | SaveFiles) -> Any:
        """The files of an image, or `HELD`: the request is over when they are written.

        Raises
        ------
        CheckpointError
            What the image ended with, or that there was none.
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
        """What has become of an image: a committed one is what the next increment follows."""
        self.give_up("it was cancelled", message.stem)
        taken = isinstance(self._outcomes.get(message.stem), list)
        if not (message.committed and taken and message.stem == self._unsettled):
            return  # also a second copy that comes late: stores settle what was taken last, whatever it was
        self.base, self._unsettled = message.name, ""
        for store in self._shard.stores.values():
            store.image_settle(True)

    def step(self) -> bool:
        """Copy the next piece, or see whether all is written; False when there is nothing to do just now."""
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
        """End the image that is being written (with a stem: if it is that one); who waits hears why."""
        image = self._image
        if image is None or stem not in (None, image.stem):
            return
        image.sink.abandon()
        self._end(image)
        self._remember(image.stem, CheckpointError(f"image {image.stem} was given up: {why}"))

    def forget(self, why: str) -> None:
        """The tables are about to be replaced: no image goes on, no increment may follow."""
        self.give_up(why)
        self.base = ""
        for store in self._shard.stores.values():
            store.image_stop_keeping()

    def unit_came(self) -> None:
        """No increment may follow, nor one of an image that is under way.

        Keys that left the unit before are known where it was, and that server may be gone.
        """
        self.base = self._unsettled = ""

    def take_over(self) -> list[tuple[Any, Any]]:
        """Requests that waited for files and are over, with their outcomes or errors."""
        over, self._over = self._over, []
        return over

    def _end(self, image: _Image) -> None:
        image.end()
        self._image = None
        if image.broken:
            self.base = self._unsettled = ""  # what changes from here on is noted for the next full one

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
