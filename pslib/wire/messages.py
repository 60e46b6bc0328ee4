"""Every message of pslib, as data.

A new message touches three places: its class here, the session that sends it, the session that answers it.
Fields are plain values (checked against their annotation by the codec), one array, or `Arrays` (named
arrays); arrays travel as frames of their own and are never copied. The grammar of the bytes stands in
``docs/design/wire.md``.
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
from pslib.wire.fields import ArrayRule, Arrays, Message, Plain, PlainList, array, arrays, no_arrays

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
"""Owner in a refusal when the server does not know one: ask again a little later, or wait for the map."""


# --- between client and server -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup(Message):
    """Make these tables and dense parameters, or check that they are the same as those that exist.

    ``tables`` holds ``tables`` (`TableSpec.to_dict`) and, where trainers say it, ``models``, whose they are
    (`pslib.table.descriptions`). ``dense`` are the first values of dense blocks that have none. Servers tell
    each other of their tables ``without_values``: blocks come with theirs.
    """

    tables: Plain
    dense_length: int
    dense_optimizer: Plain
    dense: NDArray[np.float32] = array(np.float32)
    without_values: bool = False


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Read rows and dense blocks; creates nothing.

    ``step`` and ``time_s`` are the reader's time: weight decay that a row has missed shows in the answer.
    ``rows_as`` (one of `ROW_TYPES`) and ``dense_as`` (of `DENSE_TYPES`) say how they are to travel, ``known``
    which version of each block the client has already (`KnownDense`).
    """

    keys: Arrays = arrays(np.uint64)
    blocks: NDArray[np.uint32] = array(np.uint32)
    step: int = 0
    time_s: float = 0.0
    rows_as: str = "float32"
    dense_as: str = "float32"
    known: Arrays = no_arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Pulled(Message):
    """Rows in the order of the keys (int8: and scales), dense blocks side by side; refusals by unit.

    ``pushes_before`` is 1 and how many pushes and erases the server's first shard thread had applied, since
    the server started, when it read the rows; 0: it read none. With `Pushed.pushes_before` it tells how stale
    gradients are (`StalenessCounter`).
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
    """Gradients of distinct keys and of dense blocks, named (stream, number).

    ``epoch`` fences the holder of a lease; all numbers below ``all_acked_below`` are applied everywhere;
    ``home`` is the one unit by which the whole push is counted (`pushes_applied`). ``step`` and ``time_s``
    are its time: a server never looks at a clock. ``shows`` and ``clicks`` say how often each key was shown
    and clicked, of the tables that need it (`TableSpec.takes_counts`); without them 1 and 0. How gradients
    are packed is said by their dtypes, and by ``gradient_scales`` where the type has scales
    (`QuantizedRows`).

    Learning rates count ``rate`` times. With ``delta`` gradients are added to weights, and no step is taken.

    With ``sync`` it is one of the pushes that make step ``step``: ``contributors`` (n,) are the ranks of all
    of them, ``rank`` is its own, and ``units`` (k,) are those for which it speaks, with gradients or without.
    It is answered when all contributors have spoken for them and the step is applied; with ``maintain`` the
    tables are maintained after it.
    """

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
    """Erase rows; named like a push, because a late second copy must not erase a row that has come back."""

    stream: int
    number: int
    epoch: int
    all_acked_below: int
    home: int
    keys: Arrays = arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Maintain(Message):
    """Let counts of ``table`` fade (``decay``) and rows leave by its rules, in these ``units``.

    Named and marked like a push, by unit: a second copy does nothing. Answered by `Pushed`.
    """

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
    """All that this server owns of the push is applied (now or before); the rest comes back by unit.

    ``pushes_before`` counts as in `Pulled`, up to this push; 0: the first shard thread has applied nothing of
    it now, or it was a part of a sync step.
    """

    refused_units: NDArray[np.uint32] = array(np.uint32)
    refused_owners: NDArray[np.uint16] = array(np.uint16)
    pushes_before: int = 0


@dataclass(frozen=True, slots=True)
class Reserve(Message):
    """Ask for credit: so many bytes for the request, and its answer, that will have this ``request_id``.

    Answered by `Done` when they are granted, which may be late or never: ask again. ``last`` is the attempt
    before, 0 for none; while the server works on that, there is no grant. 0 bytes give a grant back, and are
    not answered.
    """

    request_id: int
    bytes: int
    last: int


@dataclass(frozen=True, slots=True)
class Stats(Message):
    """Ask a server for its counters; answered by `Result`."""


@dataclass(frozen=True, slots=True)
class Witness(Message):
    """Ask whether a server knows pushes that it, or its predecessor, has acknowledged.

    Push ``numbers[i]`` of ``streams[i]`` touched ``units[i]``; all are (n,). Answered by `Result` with how
    many it does not know (``unknown``), of units that it owns. One that has lost what its predecessor knew
    says when that was (``began_with``, one a shard): all that it has acknowledged since is lost.
    """

    streams: NDArray[np.uint64] = array(np.uint64)
    numbers: NDArray[np.uint64] = array(np.uint64)
    units: NDArray[np.uint32] = array(np.uint32)


@dataclass(frozen=True, slots=True)
class TrimLog(Message):
    """Write images of all units to the log, so that nothing older is kept; answered by `Done` at once.

    Heartbeats count rounds of images (``log_rounds``, of each shard thread) as they are over.
    """


@dataclass(frozen=True, slots=True)
class Release(Message):
    """Stop owning ``unit``, which goes to server ``owner``; answered by `Image`, also when asked again.

    ``map_version`` is the version of the map that this move makes: it names the move, as (stream, number)
    names a push, so that a copy which comes late, when the unit is back here, moves nothing.
    """

    unit: int
    owner: int
    map_version: int


@dataclass(frozen=True, slots=True)
class Image(Message):
    """Rows, state and marks of one unit; `Marks.export` says what ``marks`` holds."""

    unit: int
    map_version: int
    marks: Plain
    content: Arrays = arrays(ndim=2)
    keys: Arrays = arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Adopt(Message):
    """Own ``unit`` from ``map_version`` on, with this content. Answered by `Done`.

    A second copy changes nothing, also when it comes after the unit has moved on.
    """

    unit: int
    map_version: int
    marks: Plain
    content: Arrays = arrays(ndim=2)
    keys: Arrays = arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Keep(Message):
    """Own ``unit`` again, which was released under ``map_version``: its new owner has refused it.

    Answered by `Done`, also when asked again.
    """

    unit: int
    map_version: int


# --- answers of both ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Done, nothing to tell."""


@dataclass(frozen=True, slots=True)
class Result(Message):
    """Plain values."""

    values: Plain


@dataclass(frozen=True, slots=True)
class Failure(Message):
    """The request was refused. Asked again under the same name, it is exact.

    A push that one shard refuses may have been applied by another (``fenced``, ``memory-limit``,
    ``log-full``, ``internal``): marks say to which units, so the same push under the same name still counts
    once. All other refusals change nothing. ``code`` is one of protocol, configuration, forbidden, fenced,
    memory-limit, unknown-table, checkpoint, checkpoint-full and log-full (ask again: there is no space just
    now), unavailable, internal.
    """

    code: str
    text: str


ALL_MESSAGES: Mapping[str, type[Message]] = {cls.kind: cls for cls in Message.__subclasses__()}
