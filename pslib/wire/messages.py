"""Messages of pslib, as data classes.

A new message touches three places: its class here, the session that sends it, the session that answers it.
Fields are plain values (checked against their annotation by the codec), one array, or `Arrays` (named
arrays); arrays travel as frames of their own and are never copied. ``docs/design/wire.md`` has the grammar of
the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.checkpoint_messages import (
    BeginSave,
    CheckLoad,
    DescribeTables,
    EndSave,
    Load,
    Save,
    SaveFiles,
)
from pslib.wire.coordinator_messages import (
    NOWHERE,
    Beat,
    Clock,
    Clocks,
    CutReady,
    CutStep,
    CutTable,
    EndLease,
    Hand,
    Heartbeat,
    JobResult,
    Lease,
    Leave,
    Missing,
    NextHand,
    NextLease,
    OpenJob,
    Register,
    Registered,
    SaveSoon,
    Scale,
    Status,
    Stop,
)
from pslib.wire.fields import (
    ANYBODY,
    MEMBERS,
    SERVING,
    TRAINING,
    ArrayRule,
    Arrays,
    Message,
    Plain,
    PlainList,
    array,
    arrays,
    no_arrays,
)

__all__ = [
    "ALL_MESSAGES",
    "NOBODY",
    "NOWHERE",
    "Adopt",
    "ArrayRule",
    "Arrays",
    "Beat",
    "BeginSave",
    "CheckLoad",
    "Clock",
    "Clocks",
    "CutReady",
    "CutStep",
    "CutTable",
    "DescribeTables",
    "Done",
    "EndLease",
    "EndSave",
    "Erase",
    "Failure",
    "Hand",
    "Heartbeat",
    "Image",
    "JobResult",
    "Keep",
    "Lease",
    "Leave",
    "Load",
    "Maintain",
    "Message",
    "Missing",
    "NextHand",
    "NextLease",
    "OpenJob",
    "Plain",
    "PlainList",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "Register",
    "Registered",
    "Release",
    "Reserve",
    "Result",
    "Save",
    "SaveFiles",
    "SaveSoon",
    "Scale",
    "Setup",
    "Stats",
    "Status",
    "Stop",
    "Witness",
]

NOBODY = 0xFFFF
"""Owner in a refusal when the server does not know one: retry a little later, or wait for the map."""


# --- between client and server -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup(Message):
    """Request: create these tables and dense parameters, or check that they equal the existing ones.

    ``tables`` holds ``tables`` (`TableSpec.to_dict`) and, where trainers give it, ``models``, which own them
    (`pslib.table.descriptions`). ``dense`` are the initial values of dense blocks that have none. Servers
    describe their tables to each other ``without_values``: blocks come with theirs.
    """

    senders = MEMBERS
    tables: Plain
    dense_length: int
    dense_optimizer: Plain
    dense: NDArray[np.float32] = array(np.float32)
    without_values: bool = False


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Request: read rows and dense blocks; creates nothing.

    ``step`` and ``time_s`` are the reader's time: the reply includes weight decay that a row has missed.
    ``rows_as`` (one of `ROW_TYPES`) and ``dense_as`` (of `DENSE_TYPES`) are the wire types, ``known`` the
    version of each block that the client has already (`KnownDense`).
    """

    senders = ANYBODY
    keys: Arrays = arrays(np.uint64)
    blocks: NDArray[np.uint32] = array(np.uint32)
    step: int = 0
    time_s: float = 0.0
    rows_as: str = "float32"
    dense_as: str = "float32"
    known: Arrays = no_arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Pulled(Message):
    """Reply: rows in the order of the keys (int8: and scales), dense blocks concatenated; refusals by unit.

    ``pushes_before`` is 1 plus the pushes and erases that the server's first shard thread had applied, since
    the server started, when it read the rows; 0: it read none. With `Pushed.pushes_before` it gives the
    staleness of gradients (`StalenessCounter`).
    """

    rows: Arrays = arrays(*ROW_TYPES.values(), ndim=2)
    dense: NDArray[Any] = array(*DENSE_TYPES.values())
    refused_units: NDArray[np.uint32] = array(np.uint32)
    refused_owners: NDArray[np.uint16] = array(np.uint16)
    row_scales: Arrays = no_arrays(np.float32)
    dense_versions: Arrays = no_arrays(np.uint64)
    pushes_before: int = 0


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Request: apply gradients of distinct keys and of dense blocks, named (stream, number).

    ``epoch`` fences the holder of a lease; all numbers below ``all_acked_below`` are applied everywhere;
    ``home`` is the one unit by which the whole push is counted (`pushes_applied`). ``step`` and ``time_s``
    are its time: a server never looks at a clock. ``shows`` and ``clicks`` count how often each key was shown
    and clicked, for the tables that need it (`TableSpec.takes_counts`); the defaults are 1 and 0. The dtypes
    of gradients give their packing, with ``gradient_scales`` where the type has scales (`QuantizedRows`).

    Learning rates are multiplied by ``rate``. With ``delta`` gradients are added to weights, and no step is
    taken.

    With ``sync`` it is one of the pushes that make step ``step``: ``contributors`` (n,) are the ranks of all
    of them, ``rank`` is its own, and ``units`` (k,) are those that it covers, with gradients or without. The
    reply comes when all contributors have covered them and the step is applied; with ``maintain`` the tables
    are maintained after it.
    """

    senders = TRAINING
    stream: int
    number: int
    epoch: int
    all_acked_below: int
    home: int
    keys: Arrays = arrays(np.uint64)
    gradients: Arrays = arrays(*ROW_TYPES.values(), ndim=2)
    blocks: NDArray[np.uint32] = array(np.uint32)
    dense: NDArray[Any] = array(*DENSE_TYPES.values())
    step: int = 0
    time_s: float = 0.0
    shows: Arrays = no_arrays(np.float32)
    clicks: Arrays = no_arrays(np.float32)
    gradient_scales: Arrays = no_arrays(np.float32)
    rate: float = 1.0
    delta: bool = False
    rank: int = 0
    maintain: bool = False
    sync: Arrays = no_arrays(np.uint32)


@dataclass(frozen=True, slots=True)
class Erase(Message):
    """Request: erase rows; named like a push, because a late copy must not erase a row created since."""

    senders = TRAINING
    stream: int
    number: int
    epoch: int
    all_acked_below: int
    home: int
    keys: Arrays = arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Maintain(Message):
    """Request: decay counts of ``table`` (``decay``) and evict rows by its rules, in these ``units``.

    Named and marked like a push, by unit: a second copy does nothing. Reply: `Pushed`.
    """

    senders = TRAINING
    stream: int
    number: int
    epoch: int
    all_acked_below: int
    home: int
    table: str
    step: int
    time_s: float
    decay: bool
    units: NDArray[np.uint32] = array(np.uint32)


@dataclass(frozen=True, slots=True)
class Pushed(Message):
    """Reply: the part of a push that this server owns is applied (now or before); the rest returns by unit.

    ``pushes_before`` counts as in `Pulled`, up to this push; 0: the first shard thread has applied nothing of
    it now, or it was a part of a sync step.
    """

    refused_units: NDArray[np.uint32] = array(np.uint32)
    refused_owners: NDArray[np.uint16] = array(np.uint16)
    pushes_before: int = 0


@dataclass(frozen=True, slots=True)
class Reserve(Message):
    """Request: reserve credit for the request that will have this ``request_id``, and its reply.

    Reply: `Done` when it is granted, which may be late or never: ask again. ``last`` is the attempt before, 0
    for none; while the server works on that, there is no grant. 0 bytes give a grant back, and are not
    answered.
    """

    senders = ANYBODY
    request_id: int
    bytes: int
    last: int


@dataclass(frozen=True, slots=True)
class Stats(Message):
    """Request: the counters of a server. Reply: `Result`."""

    senders = ANYBODY


@dataclass(frozen=True, slots=True)
class Witness(Message):
    """Request: ask whether a server knows pushes that it, or its predecessor, has acknowledged.

    Push ``numbers[i]`` of ``streams[i]`` touched ``units[i]``; all are (n,). Reply: `Result` with the number
    that it does not know (``unknown``), of units that it owns. A server that has lost its predecessor's state
    names the moment of the state that it began with (``began_with``, one a shard): pushes acknowledged since
    are lost.
    """

    senders = TRAINING
    streams: NDArray[np.uint64] = array(np.uint64)
    numbers: NDArray[np.uint64] = array(np.uint64)
    units: NDArray[np.uint32] = array(np.uint32)


@dataclass(frozen=True, slots=True)
class TrimLog(Message):
    """Request: write images of all units to the log, so that nothing older is kept. Reply: `Done` at once.

    Heartbeats count completed rounds of images (``log_rounds``, of each shard thread).
    """

    senders = TRAINING


@dataclass(frozen=True, slots=True)
class Release(Message):
    """Request: stop owning ``unit``, which goes to server ``owner``. Reply: `Image`, also when repeated.

    ``map_version`` is the version of the map that this move makes: it names the move, as (stream, number)
    names a push, so that a late copy, when the unit is back here, moves nothing.
    """

    senders = SERVING
    unit: int
    owner: int
    map_version: int


@dataclass(frozen=True, slots=True)
class Image(Message):
    """Reply: rows, state and marks of one unit; `Marks.export` describes ``marks``."""

    unit: int
    map_version: int
    marks: Plain
    content: Arrays = arrays(ndim=2)
    keys: Arrays = arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Adopt(Message):
    """Request: own ``unit`` from ``map_version`` on, with this content. Reply: `Done`.

    A second copy changes nothing, also when it comes after the unit has moved on.
    """

    senders = SERVING
    unit: int
    map_version: int
    marks: Plain
    content: Arrays = arrays(ndim=2)
    keys: Arrays = arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """Request: own ``unit`` again, which was released under ``map_version``: its new owner has refused it.

    Reply: `Done`, also when repeated.
    """

    senders = SERVING
    unit: int
    map_version: int


# --- answers of both ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Reply: done, without content."""


@dataclass(frozen=True, slots=True)
class Result(Message):
    """Reply: plain values."""

    values: Plain


@dataclass(frozen=True, slots=True)
class Failure(Message):
    """Reply: the request was refused. A retry under the same name is exact.

    A push that one shard refuses may have been applied by another (``fenced``, ``memory-limit``,
    ``log-full``, ``internal``): marks record to which units, so the same push under the same name still
    counts once. All other refusals change nothing. ``code`` is one of protocol, configuration, forbidden,
    fenced, memory-limit, unknown-table, checkpoint, checkpoint-full and log-full (retry: there is no space
    just now), unavailable, internal.
    """

    code: str
    text: str


ALL_MESSAGES: Mapping[str, type[Message]] = {cls.kind: cls for cls in Message.__subclasses__()}
