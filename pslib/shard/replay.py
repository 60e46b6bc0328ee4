"""Replay of a log into a shard: the recorded messages, to the same methods.

A unit begins with its newest image: until that record the shard does not own it, so earlier records of it
have no effect. State of no single unit begins with the state at the front of a trimmed log, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pslib.errors import ConfigurationError
from pslib.shard.log_records import units_in
from pslib.shard.partition_image import adopt_block, adopt_rows, image_of
from pslib.shard.serving import apply_steps, finish, replay_push
from pslib.shard.shard import Shard
from pslib.shard.state import ShardCounters
from pslib.shard.stores import DenseBlocks, make_store
from pslib.table.optimizers import optimizer_from_dict
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.table.tables import DenseSpec, TableSpec
from pslib.wire.fields import Message, Plain
from pslib.wire.journal import Entry, Note
from pslib.wire.messages import Adopt, Erase, Image, Load, Maintain, Push, Release, Setup

Newest = Mapping[int, int]
"""Record number of the newest image of each unit."""


def images_of(shard: Shard, units: Sequence[int]) -> list[Entry]:
    """Build a record with images of some owned units."""
    moved = shard.moves.moved
    images: list[Entry] = []
    for unit in units:
        image = image_of(shard, unit, moved.get(unit, 0))
        streams = [stream for stream in image.marks["streams"] if stream[3]]  # the others are in the state
        image.marks["streams"][:] = streams
        arrays = (*image.keys.values(), *image.content.values())
        if streams or image.map_version or any(array.size for array in arrays):
            images.append(image)
    return [{"note": "images", "units": list(units)}, *images]


def state_of(shard: Shard) -> list[Note | Image]:
    """Return the state of no owned unit: a note, and images kept for moves.

    With the images of its units it is the whole shard.
    """
    dense, moves = shard.dense, shard.moves
    note = {
        "note": "counters",
        "counters": asdict(shard.counters),
        "tables": [spec.to_dict() for spec in shard.tables.values()],
        "models": list(shard.models.values()),
        "dense": [dense.spec.length, dense.spec.optimizer.to_dict()] if dense else None,
        "moved": dict(moves.moved),
        "hints": dict(moves.hints),
        "declined": {unit: [version, str(why)] for unit, (version, why) in moves.declined.items()},
        "published": moves.published,
        "streams": shard.marks.floors(),
        "done_below": shard.marks.done_below,
    }
    return [note, *moves.released.values()]


def units_of_images(note: Note) -> list[int]:
    """Return the units of a record of images, from its first note; empty: it is another record."""
    return list(note["units"]) if note.get("note") == "images" else []


class Replay:
    """Replay of records into a shard that owns nothing yet.

    Parameters
    ----------
    shard : Shard
        Without a journal and without a limit of memory.
    newest : mapping of unit to record number
        Record of the newest image of each unit; units without one begin with the first record.
    load : callable
        Loads a checkpoint into the shard, by a message.
    """

    def __init__(self, shard: Shard, newest: Newest, load: Callable[[Shard, Load], Any]) -> None:
        self._shard, self._newest, self._load = shard, newest, load
        self._number = 0
        self._notes: dict[str, Callable[[Note], None]] = {
            "own": self._own,
            "seen": lambda note: shard.marks.saw(note["stream"], note["epoch"], note["below"]),
            "done": lambda note: shard.finish_streams(note["below"]),
            "forget": lambda note: shard.moves.forget_images(note["version"]),
            "declined": lambda note: shard.moves.decline(
                note["unit"], note["version"], ConfigurationError(note["why"])
            ),
            "left": self._left,
            "bare": lambda _note: setattr(shard, "bare", True),
            "back": lambda _note: setattr(shard, "bare", False),
        }

    def take(self, number: int, entries: Sequence[Entry]) -> None:
        """Apply one record."""
        self._number = number
        first = entries[0]
        if isinstance(first, Message) or first["note"] not in ("images", "counters"):
            self._changes(entries)
        elif first["note"] == "images":
            self._images(first, entries[1:])
        elif not self._shard.tables and not self._shard.owned and not self._shard.marks:
            self._state(first, entries[1:])

    def _is_older(self, unit: int) -> bool:
        """Return True if a newer image of the unit follows."""
        return self._newest.get(unit, 0) > self._number

    # --- state of no single unit --------------------------------------------------------------------------

    def _state(self, note: Note, images: Sequence[Entry]) -> None:
        shard = self._shard
        shard.counters = ShardCounters(**note["counters"])
        shard.make_tables([TableSpec.from_dict(plain) for plain in note["tables"]])
        shard.models = {str(one["table"]): one for one in note.get("models", ())}
        if note["dense"]:
            length, optimizer = note["dense"]
            shard.dense = DenseBlocks(DenseSpec(length, optimizer_from_dict(optimizer)), shard.dense_blocks)
        moves = shard.moves
        moves.moved.update(note["moved"])
        moves.hints.update(note["hints"])
        for image in images:
            assert isinstance(image, Image)
            moves.released[image.unit] = image
        for unit, (version, why) in note["declined"].items():
            moves.decline(unit, version, ConfigurationError(why))
        moves.forget_images(note["published"])
        shard.marks.finish_below(note["done_below"])
        for stream, epoch, floor in note["streams"]:
            shard.marks.saw(stream, epoch, floor)

    # --- units --------------------------------------------------------------------------------------------

    def _own(self, note: Note) -> None:
        self._shard.own(np.array([unit for unit in note["units"] if not self._is_older(unit)], np.int64))

    def _images(self, note: Note, images: Sequence[Entry]) -> None:
        """Begin the units whose newest image this is; those without an image here are empty."""
        shard, moves = self._shard, self._shard.moves
        begun = [unit for unit in note["units"] if self._newest[unit] == self._number]
        shard.own(np.array(begun, np.int64))
        for unit in begun:
            moves.hints.pop(unit, None)
            moves.released.pop(unit, None)
        for image in images:
            assert isinstance(image, Image)
            if image.unit in begun:
                (adopt_rows if image.unit < shard.partitions else adopt_block)(shard, _adopted(image))
                shard.marks.adopt(image.unit, image.marks)
                if image.map_version:
                    moves.moved[image.unit] = image.map_version

    # --- changes ------------------------------------------------------------------------------------------

    def _changes(self, entries: Sequence[Entry]) -> None:
        step: Note | None = None
        for entry in entries:
            if isinstance(entry, Push) and step is None:
                shard = self._shard
                if replay_push(shard, entry, units_in(shard, entry)):  # the fast path, with its own counts
                    continue
            if isinstance(entry, Message):
                counters, counted = self._shard.counters, self._counted(entry, step)
                self._shard.counters = ShardCounters()
                self._message(entry, step)
                self._shard.counters = counters
                counters.add(counted)
            elif entry["note"] == "step":
                step = entry
            else:
                self._notes[entry["note"]](entry)

    def _message(self, message: Message, step: Note | None) -> None:
        shard = self._shard
        if isinstance(message, Push):
            if step is None:
                shard.push(message)
            else:
                self._step(message, step)
        elif isinstance(message, Erase):
            finish(shard.erase_steps(message))
        elif isinstance(message, Maintain):
            shard.maintain(message)
        elif isinstance(message, Setup):
            shard.setup(message)
        elif isinstance(message, Load):
            self._load(shard, message)
        else:
            assert isinstance(message, Release | Adopt)
            self._move(message)

    def _move(self, message: Release | Adopt) -> None:
        if self._is_older(message.unit):
            if isinstance(message, Adopt):  # the image that follows has no streams without numbers
                self._saw(message.marks)
            return
        if isinstance(message, Release):
            self._shard.release(message)
        else:
            self._shard.moves.take(message)

    def _saw(self, marks: Plain) -> None:
        """Take the streams from the marks of a unit, and nothing of the unit."""
        own = self._shard.marks
        own.finish_below(marks["done_below"])
        for stream, epoch, floor, _numbers in marks["streams"]:
            own.saw(stream, epoch, floor)

    def _step(self, message: Push, step: Note) -> None:
        shard = self._shard
        finish(apply_steps(shard, message))
        ready = _mask(step["ready"]) & shard.owned
        for table in shard.tables if step["maintain"] else ():
            shard.maintain_units(table, ready, message.step + 1, message.time_s)
        for one in step["pushes"]:
            shard.marks.saw(one["stream"], one["epoch"], one["below"])
            shard.marks.record(one["stream"], one["number"], _mask(one["units"]) & shard.owned)

    def _left(self, note: Note) -> None:
        shard, table = self._shard, note["table"]
        if table in shard.stores:
            store = shard.stores[table]
            if store.erase(np.frombuffer(note["keys"], np.uint64)) > store.rows:
                self._move_rows(table)

    def _move_rows(self, table: str) -> None:
        """Move rows into a new table: one that has had far more rows keeps unused memory."""
        shard = self._shard
        old, new = shard.stores[table], make_store(shard.tables[table], shard.partition_bits)
        for unit in units_of_mask(shard.owned & (1 << shard.partitions) - 1).tolist():
            shard.stores[table] = old
            image = image_of(shard, unit, 0, [table])  # filters of other tables would be added to themselves
            shard.stores[table] = new
            adopt_rows(shard, _adopted(image), bounded=False)

    def _counted(self, message: Message, step: Note | None) -> ShardCounters:
        """Return the counts of a request when it was applied; a replay may apply less of it."""
        if isinstance(message, Maintain):
            return ShardCounters(maintained=int(message.home in message.units))
        if not isinstance(message, Push | Erase):
            return ShardCounters()
        rows = sum(keys.size for keys in message.keys.values()) if isinstance(message, Push) else 0
        if step is None:
            units = units_in(self._shard, message)
            return ShardCounters(units >> message.home & 1, units.bit_count(), rows)
        pushes = step["pushes"]
        maintained = bool(step["maintain"]) and message.home in step["ready"]
        applied, updates = sum(one["counts"] for one in pushes), sum(one["touched"] for one in pushes)
        return ShardCounters(applied, updates, rows, maintained=int(maintained))


def _adopted(image: Image) -> Adopt:
    return Adopt(image.unit, image.map_version, image.marks, image.content, image.keys)


def _mask(units: Sequence[int]) -> int:
    return mask_of_units(np.asarray(units, np.int64))
