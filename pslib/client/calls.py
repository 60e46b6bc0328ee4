"""State of a client session: its calls, their parts, and its push streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError, PslibError
from pslib.table.partition_map import BlockBounds
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.dense_delta import VERSIONS, KnownDense
from pslib.wire.fields import Message
from pslib.wire.messages import Erase, Maintain, Pull, Push
from pslib.wire.quantization import QuantizedRows
from pslib.wire.staleness import Seen

NO_VERSIONS = np.empty(0, np.uint64)
Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]
NO_UNITS = np.empty(0, np.uint32)
NO_FLOATS = np.empty(0, np.float32)
SHOWS_MIN = float(np.finfo(np.float32).tiny)
"""Smallest show count of a pushed key: a pushed key was shown."""


@dataclass(frozen=True, slots=True)
class PushName:
    """Name of a push: the same on every server, in every retry and however the push is split again."""

    stream: int
    number: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """Time of a record: batch number in the training, and seconds; a table uses one of the two."""

    step: int = 0
    time_s: float = 0.0


BEGINNING = Moment()
"""Default moment for calls without a time: no row has missed any decay."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Shows and clicks of each key of a push, (n,) float32 each."""

    shows: Rows
    clicks: Rows


@dataclass(frozen=True, slots=True)
class Manner:
    """Options that say how a push is applied.

    Attributes
    ----------
    rate : float
        Factor of the learning rates.
    delta : bool
        Add to weights instead of taking a step.
    rank : int
        Rank of the sender among the contributors of a sync step.
    contributors : tuple of int
        Ranks of all contributors to the step, ascending; empty: the push is applied alone, at once.
    maintain : bool
        True if tables are maintained after the sync step.
    """

    rate: float = 1.0
    delta: bool = False
    rank: int = 0
    contributors: tuple[int, ...] = ()
    maintain: bool = False


PLAINLY = Manner()
"""Default: a step of its own, at the full learning rate."""


@dataclass(frozen=True, slots=True)
class Completed:
    """Result of a completed call; ``error`` is None on success."""

    call: int
    error: PslibError | None


@dataclass(slots=True)
class Acked:
    """Numbers of one stream that are applied everywhere: all below ``floor``, and those in ``above``."""

    floor: int
    above: set[int] = field(default_factory=set)

    def add(self, number: int) -> None:
        """Add one number."""
        if number >= self.floor:
            self.above.add(number)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1


@dataclass(slots=True)
class PullCall:
    """Pull in flight: outputs that fill as replies to its parts arrive."""

    keys: Mapping[str, Keys]
    rows: dict[str, Rows]
    dense: Rows
    moment: Moment = BEGINNING
    started_s: float = 0.0
    rows_as: str = "float32"
    dense_as: str = "float32"
    known: KnownDense | None = None
    versions: NDArray[np.uint64] = field(default_factory=lambda: NO_VERSIONS)
    seen: Seen = field(default_factory=Seen)
    open_parts: int = 0

    def has_seen(self, server: int, pushes_before: int) -> None:
        """Record how many pushes a server had applied when it read the first rows of this pull."""
        if pushes_before:
            self.seen.setdefault(server, pushes_before)


@dataclass(slots=True)
class PushCall:
    """Push (or, without gradients, erase) in flight; ``since`` is what its pull has seen."""

    name: PushName
    home: int
    gradients: Mapping[str, QuantizedRows] | None
    keys: Mapping[str, Keys]
    dense: NDArray[Any]
    moment: Moment = BEGINNING
    counts: Mapping[str, Counts] = field(default_factory=dict)
    manner: Manner = PLAINLY
    started_s: float = 0.0
    since: Seen = field(default_factory=Seen)
    open_parts: int = 0


@dataclass(slots=True)
class MaintainCall:
    """Maintenance of one table in flight; it has no keys, and the units of its parts are partitions."""

    name: PushName
    home: int
    table: str
    decay: bool
    moment: Moment
    keys: Mapping[str, Keys] = field(default_factory=dict)
    started_s: float = 0.0
    open_parts: int = 0


@dataclass(slots=True)
class Part:
    """Part of a call: the content of one message to one server.

    ``places`` index the call's arrays (None: all). ``blocks`` are dense blocks; for a maintenance they are
    partitions. ``units`` are those that a sync push covers.
    """

    call: int
    server: int
    places: dict[str, NDArray[np.int32] | None]
    blocks: NDArray[np.uint32]
    bounces: int
    units: NDArray[np.uint32] = field(default_factory=lambda: NO_UNITS)


Call = PullCall | PushCall | MaintainCall


def keys_of(call: Call, table: str, places: NDArray[np.int32] | None) -> Keys:
    """Return the keys of a call at some places (None: all)."""
    return _taken(call.keys[table], places)


def gradient_of(call: Call, blocks: NDArray[np.uint32], bounds: BlockBounds) -> NDArray[Any]:
    """Return the gradient of these dense blocks, concatenated; empty when the call has none."""
    if not isinstance(call, PushCall):
        return NO_FLOATS
    dense = call.dense
    if not dense.size:
        return dense
    pieces = [dense[first:last] for first, last in bounds.runs(blocks)]
    if len(pieces) == 1:  # all blocks, or adjacent ones
        return pieces[0]
    return np.concatenate(pieces) if pieces else dense[:0]


def message_of(call: Call, part: Part, floor: int, dense: NDArray[Any]) -> Message:
    """Build the message for one part of a call.

    Parameters
    ----------
    call, part
        The call, and the places and blocks of it that this server owns.
    floor : int
        All numbers of the call's stream below it are applied everywhere.
    dense : (n,)
        The gradient of the part's blocks, in its wire type.
    """
    keys = {table: keys_of(call, table, some) for table, some in part.places.items()}
    step, time_s = call.moment.step, call.moment.time_s
    if isinstance(call, PullCall):
        known = {VERSIONS: call.known.versions[part.blocks]} if call.known and part.blocks.size else {}
        return Pull(keys, part.blocks, step, time_s, call.rows_as, call.dense_as, known)
    name = call.name
    named = (name.stream, name.number, name.epoch, floor, call.home)
    if isinstance(call, MaintainCall):
        return Maintain(*named, call.table, step, time_s, call.decay, part.blocks)
    if call.gradients is None:
        return Erase(*named, keys)
    packed = {table: call.gradients[table].take(some) for table, some in part.places.items()}
    gradients = {table: rows.values for table, rows in packed.items()}
    scales = {table: rows.scales for table, rows in packed.items() if rows.scales.size}
    shows: dict[str, Rows] = {}
    clicks: dict[str, Rows] = {}
    if call.counts:
        counted = [(table, some) for table, some in part.places.items() if table in call.counts]
        shows = {table: _taken(call.counts[table].shows, some) for table, some in counted}
        clicks = {table: _taken(call.counts[table].clicks, some) for table, some in counted}
    manner, sync = call.manner, {}
    if manner.contributors:
        sync = {"contributors": np.asarray(manner.contributors, np.uint32), "units": part.units}
    how = (manner.rate, manner.delta, manner.rank, manner.maintain, sync)
    return Push(*named, keys, gradients, part.blocks, dense, step, time_s, shows, clicks, scales, *how)


def answer_bytes_of(message: Message, dims: Mapping[str, int], floats: int) -> int:
    """Return the bytes of rows and dense parameters in the reply to a part, for its credit.

    Parameters
    ----------
    message
        The request for the part.
    dims : mapping of str to int
        Floats a row of each table.
    floats : int
        Floats of its dense blocks.
    """
    if not isinstance(message, Pull):
        return 0
    scale_bytes = 4 if message.rows_as == "int8" else 0
    value_bytes = ROW_TYPES[message.rows_as].itemsize
    rows = sum(keys.size * (dims[name] * value_bytes + scale_bytes) for name, keys in message.keys.items())
    return rows + floats * DENSE_TYPES[message.dense_as].itemsize


def _taken(array: NDArray[Any], places: NDArray[np.int32] | None) -> NDArray[Any]:
    return array if places is None else array[places]


def home_of(touched: NDArray[np.uint32]) -> int:
    """Return the one unit under which a push is counted."""
    return int(touched[0]) if touched.size else 0


def check_keys(keys: Mapping[str, Keys], dims: Mapping[str, int]) -> None:
    """Raise ConfigurationError when a table is unknown, or keys are not (n,) uint64."""
    if unknown := sorted(set(keys) - set(dims)):
        raise ConfigurationError(f"table {unknown[0]!r} is unknown; tables: {sorted(dims)}")
    for name, array in keys.items():
        if array.ndim != 1 or array.dtype != np.uint64:
            raise ConfigurationError(f"keys of {name}: expected (n,) uint64, got {array.shape} {array.dtype}")


def check_gradients(
    keys: Mapping[str, Keys],
    packed: Mapping[str, QuantizedRows],
    dims: Mapping[str, int],
    counts: Mapping[str, Counts],
) -> None:
    """Raise ConfigurationError unless gradients, shows and clicks have one entry for each key."""
    for table, rows in packed.items():
        if problem := rows.problem(keys[table].size, dims[table]):
            raise ConfigurationError(f"gradients of {table}: {problem}")
    for table, pair in counts.items():
        if not pair.shows.shape == pair.clicks.shape == keys[table].shape:
            raise ConfigurationError(f"counts of {table}: expected {keys[table].size} shows and clicks")


def check_dense(vector: NDArray[Any], dense_length: int) -> None:
    """Raise ConfigurationError unless the vector is a gradient of all dense parameters, or empty."""
    if vector.shape not in ((0,), (dense_length,)) or vector.dtype not in DENSE_TYPES.values():
        raise ConfigurationError(
            f"dense gradient: expected ({dense_length},) float32, got {vector.shape} {vector.dtype}"
        )


def check_known(known: KnownDense, dense_blocks: int, dense_length: int) -> None:
    """Raise ConfigurationError when known dense parameters are not those of this cluster."""
    shapes = known.versions.shape, known.vector.shape
    if shapes[0] != (dense_blocks,) or (shapes[1] != (dense_length,) and known.versions.any()):
        expected = f"({dense_blocks},) versions of ({dense_length},) floats"
        raise ConfigurationError(f"known dense parameters: expected {expected}, got {shapes}")
