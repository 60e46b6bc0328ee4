"""Messages of pslib, as data classes.

A new message touches three places: its class here, the session that sends it, the session that answers it.
Fields are plain values (checked against their annotation by the codec), one array, or `Arrays` (named
arrays); large arrays travel as frames of their own and are never copied. ``docs/design/wire.md`` has the
grammar of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.fields import (
    ANYBODY,
    MEMBERS,
    SERVING,
    TRAINING,
    Arrays,
    Message,
    Plain,
    PlainList,
    array,
    arrays,
    no_array,
    no_arrays,
)

CLIENT_STREAMS = 1 << 63
"""First number of the streams of pushes that belong to clients: streams of leases are below it."""
NOBODY = 0xFFFF
"""Owner in a refusal when the server does not know one: retry a little later, or wait for the map."""
NOWHERE = (1 << 64) - 1
"""Value of `CutReady.reached` for a trainer without a next batch."""
STACKS = "stacks"
"""Reason of a `Beat` whose order is ``go``: the next heartbeat is to have the stacks of its process, under
this name in its progress."""


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
class Changes(Message):
    """Request: read what has changed of ``table``, and the partitions ``units`` whole; blocks as in `Pull`.

    ``since`` is that of the last `Changed` of this server; another or an empty one reads no change.
    """

    senders = ANYBODY
    table: str
    since: NDArray[np.uint64] = array(np.uint64)
    units: NDArray[np.uint32] = array(np.uint32)
    blocks: NDArray[np.uint32] = array(np.uint32)
    rows_as: str = "float32"
    dense_as: str = "float32"
    known: Arrays = no_arrays(np.uint64)


@dataclass(frozen=True, slots=True)
class Changed(Message):
    """Reply: distinct keys and their rows up to position ``since`` of ``ends``; see `pslib.shard.changes`."""

    since: NDArray[np.uint64] = array(np.uint64)
    ends: NDArray[np.uint64] = array(np.uint64)
    owned: NDArray[np.uint32] = array(np.uint32)
    stale: NDArray[np.uint32] = array(np.uint32)
    stale_rows: NDArray[np.uint32] = array(np.uint32)
    keys: NDArray[np.uint64] = array(np.uint64)
    rows: NDArray[Any] = array(*ROW_TYPES.values(), ndim=2)
    row_scales: NDArray[np.float32] = array(np.float32)
    dense: NDArray[Any] = array(*DENSE_TYPES.values())
    dense_versions: Arrays = no_arrays(np.uint64)


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


# --- checkpoints of a server --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Save(Message):
    """Request: write all rows and dense blocks of this server below ``path``. Reply: `Result` with the files.

    ``stem`` goes into the file names: it differs for every checkpoint and server, so nothing is overwritten.
    """

    senders = TRAINING
    path: str
    stem: str


@dataclass(frozen=True, slots=True)
class BeginSave(Message):
    """Request: take an image of this instant; it is written while pushes go on. Reply: `Done`, at once.

    ``path`` and ``stem`` as for `Save`. With ``base`` it is an increment of the committed image of that name,
    or refused (``checkpoint``) where that is not the last one; with ``keep`` the next may be one of this.
    """

    senders = TRAINING
    path: str
    stem: str
    base: str = ""
    keep: bool = False


@dataclass(frozen=True, slots=True)
class SaveFiles(Message):
    """Request: the files of an image begun by `BeginSave`. Reply: as for `Save`, when they are written."""

    senders = TRAINING
    stem: str


@dataclass(frozen=True, slots=True)
class EndSave(Message):
    """Request: end an image, ``committed`` under ``name`` or abandoned. Reply: `Done`."""

    senders = TRAINING
    stem: str
    name: str
    committed: bool


@dataclass(frozen=True, slots=True)
class CheckLoad(Message):
    """Request: check a `Load` of the same fields, as far as possible without reading files whole.

    Changes no row. Reply: `Done`, or the refusal of the load. ``stem`` differs for every load, so that a copy
    does not repeat the check.
    """

    senders = TRAINING
    path: str
    stem: str
    state: bool = True
    tables: str = ""
    stream: int = CLIENT_STREAMS
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class DescribeTables(Message):
    """Request: describe the tables of the checkpoint at ``path``, for a client that may not see it.

    Reply: `Result` with ``tables``, each as this server has it, or as it was saved if it has none. With no
    ``path``: all tables of this server, for a client that reads their rows and has not created them.
    """

    senders = TRAINING
    path: str = ""


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Request: read all that this server owns from the checkpoint at ``path``. Reply: `Result` with counts.

    ``stem`` differs for every load: a late copy must not undo later pushes. Without ``state`` the optimizer's
    begins anew; ``tables`` names those to load, separated by commas, or is empty for all of them and the
    dense parameters. Rows that are loaded without state, or by name, count as seen last at ``step`` and
    ``time_s``.

    ``stream`` and ``epoch`` are those of the load's lease. A server that knows of a later holder (from a
    `Load` or a `CheckLoad`), or that the lease is over, refuses it (``fenced``). Streams from 2^63 on are of
    no lease.
    """

    senders = TRAINING
    path: str
    stem: str
    state: bool = True
    tables: str = ""
    step: int = 0
    time_s: float = 0.0
    stream: int = CLIENT_STREAMS
    epoch: int = 0


# --- between any process and the coordinator ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register(Message):
    """Request: join the cluster as ``role``; repeated until `Registered.ready`.

    ``incarnation`` is a number that no other process has. ``rank`` is the rank to take, 2^32-1 for any free
    one; of two processes that ask for the same, the one of the higher ``generation`` has it, and the other is
    fenced. ``empty``: a server without the state of its predecessor.
    """

    senders = MEMBERS
    role: str
    address: str
    incarnation: int
    pid: int
    host: str
    rank: int = 0xFFFFFFFF
    generation: int = 0
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Registered(Message):
    """Reply: rank in the role, the cluster's settings and, once all servers are there, the map.

    ``term`` is the coordinator's, as in `Beat`: a process that has joined it ignores earlier ones.
    ``begins`` tells a server that has lost its state how it begins (`Recovery.begins`).
    """

    rank: int
    ready: bool
    missing: str
    config: Plain
    map_version: int
    addresses: PlainList
    owners: NDArray[np.uint16] = array(np.uint16)
    term: int = 0
    begins: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Request: heartbeat; ``progress`` holds cumulative counters, ``term`` is the highest received."""

    senders = MEMBERS
    role: str
    rank: int
    incarnation: int
    map_version: int
    progress: Plain
    term: int = 0


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """Reply to a heartbeat: an order (``go``, ``leave`` or ``fail``), and the map when it has changed.

    With ``go`` the reason is empty or `STACKS`.
    ``hand`` tells a server that units of it are to move: it asks which with `NextHand`.
    ``term`` counts the starts of the coordinator: a process that knows a higher one ignores this.
    ``cut`` tells a trainer of a cut that is under way: its ``number``, ``phase``, ``leader`` and ``step``
    (`CheckpointBarrier`).
    """

    order: str
    reason: str
    streams_done_below: int
    map_version: int
    addresses: PlainList
    owners: NDArray[np.uint16] = array(np.uint16)
    hand: bool = False
    term: int = 0
    cut: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CutReady(Message):
    """Request: a trainer stops for cut ``cut`` before the batch of step ``reached`` (2^64-1: it has none).

    With ``paused`` all its pushes are acknowledged, and ``batches`` are the batches applied of each of
    ``streams``. Reply: `Done`, or `Failure` where that cut is over.
    """

    senders = TRAINING
    rank: int
    incarnation: int
    cut: int
    reached: int
    paused: bool
    streams: NDArray[np.uint64] = array(np.uint64)
    batches: NDArray[np.uint64] = array(np.uint64)


@dataclass(frozen=True, slots=True)
class CutStep(Message):
    """Request: progress of a cut's leader: ``begun``, ``commit`` (asks consent), ``saved``, ``failed``.

    Reply: `Done`, to ``begun`` `CutTable`, and `Failure` where that cut is over.
    """

    senders = TRAINING
    rank: int
    incarnation: int
    cut: int
    state: str
    details: Plain


@dataclass(frozen=True, slots=True)
class CutTable(Message):
    """Reply: the table of jobs at a cut, as JSON, since a stream of months exceeds the limits of a header."""

    table: NDArray[np.uint8] = array(np.uint8)


@dataclass(frozen=True, slots=True)
class OpenJob(Message):
    """Request: start, or join, collective call number ``job``; all trainers must agree. Reply: `Done`.

    With ``by_rank`` each trainer gets leases of its own (`RankedLeases`); the reply is `Result` with
    ``ranks``, those that share the job, fixed when the first trainer opens it. It is `Result`, too, where an
    earlier run has trained ``examples_before`` of the job's examples. A ``vote`` has a lease for each
    trainer, whatever ``windows`` say.

    ``resume`` is empty, or the table of a `CutTable`: jobs before this one are skipped, and this one
    continues with its leases.
    """

    senders = TRAINING
    rank: int
    job: int
    what: str
    fingerprint: int
    details: Plain
    windows: NDArray[np.uint32] = array(np.uint32)
    by_rank: bool = False
    resume: NDArray[np.uint8] = no_array(np.uint8)


@dataclass(frozen=True, slots=True)
class NextLease(Message):
    """Request: ask for a lease; ``holding`` are the streams that this trainer knows it holds."""

    senders = TRAINING
    rank: int
    incarnation: int
    job: int
    holding: NDArray[np.uint64] = array(np.uint64)


@dataclass(frozen=True, slots=True)
class Lease(Message):
    """Reply: a lease (``state`` "held"), none now ("wait") or none any more ("done").

    ``time_s`` is the coordinator's time, since the cluster began, when it first granted this lease: the time
    of all records of the lease, whichever trainer sends them.
    """

    state: str
    stream: int
    index: int
    epoch: int
    first_batch: int
    time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EndLease(Message):
    """Request: end a lease, all batches applied everywhere; ``payload`` is its result. Reply: `Done`.

    For a save or load it has the ``place`` (JSON) of the checkpoint itself, as servers find it. With
    ``given_back`` in it the lease has failed here, and is returned to other trainers. With ``paused`` the
    sender leaves this fit, keeps its leases, and may go on with it.
    """

    senders = TRAINING
    rank: int
    incarnation: int
    job: int
    stream: int
    epoch: int
    payload: Arrays = arrays()


@dataclass(frozen=True, slots=True)
class Clock(Message):
    """Request: the number of batches of a job applied for this trainer. Reply: `Clocks`."""

    senders = TRAINING
    rank: int
    incarnation: int
    job: int
    clock: int


@dataclass(frozen=True, slots=True)
class Clocks(Message):
    """Reply: the clocks of the sender, as the coordinator counts it, and of the slowest trainer with work."""

    clock: int
    slowest: int


@dataclass(frozen=True, slots=True)
class JobResult(Message):
    """Request: the outcome of a job. Reply: `Result` with ``done`` true or false."""

    senders = ANYBODY
    job: int


@dataclass(frozen=True, slots=True)
class Missing(Message):
    """Request: report that a restarted server lacks ``pushes`` of ``asked`` pushes it had acknowledged to us.

    Reply: `Done`.
    """

    senders = TRAINING
    rank: int
    incarnation: int
    server: int
    pushes: int
    asked: int


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Request: the state of the cluster; with ``details``, of every member. Reply: `Result`."""

    senders = ANYBODY
    details: bool = False


@dataclass(frozen=True, slots=True)
class Events(Message):
    """Request: the last events of the run, with numbers above ``after``.

    Reply: `Result` with ``events`` (`pslib.coordinator.events`), and ``last``, the number of the last one.
    """

    senders = ANYBODY
    after: int


@dataclass(frozen=True, slots=True)
class DumpStacks(Message):
    """Request: the stacks of a process, which it sends with one of its next heartbeats (`Beat.reason`).

    Reply: `Result` with ``stacks``, None until they are there: ask again. They are given once.
    """

    senders = SERVING
    role: str
    rank: int


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Request: end the cluster. Reply: `Done`."""

    senders = SERVING
    reason: str
    failed: bool


@dataclass(frozen=True, slots=True)
class SaveSoon(Message):
    """Request: a checkpoint of the training as soon as possible (`CheckpointBarrier`).

    Reply: `Result`; ``asked`` is false where no training goes on that can be saved. ``last``: the run is to
    end, and no trainer goes on after the checkpoint.
    """

    senders = TRAINING
    last: bool = False


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """Request: this process has flushed all its work and leaves. Reply: `Done`.

    ``preempted``: it leaves by request, with work left; it, or another one, may join again.
    """

    senders = MEMBERS
    role: str
    rank: int
    incarnation: int
    progress: Plain
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class Scale(Message):
    """Request: scale to ``servers`` owners of units (0: as many as now), with none on those in ``drain``.

    The highest ranks leave when there are too many. Reply: `Result` with the progress of the moves. A
    repeated request (same ``name``, any number) is answered and not applied again, however late.
    """

    senders = SERVING
    servers: int
    drain: PlainList
    name: int


@dataclass(frozen=True, slots=True)
class NextHand(Message):
    """Request: a server asks which of its units to hand over, and reports earlier ones.

    Of the wave ``version`` the units in ``done`` have arrived, and those in ``kept`` are here again because
    of ``reason``. ``bytes`` were sent since the last such message. ``owners`` are the known ``[rank,
    address]`` of the receivers of units: one that has come back elsewhere may have lost them.
    """

    senders = SERVING
    rank: int
    incarnation: int
    version: int
    bytes: int
    reason: str
    done: NDArray[np.uint32] = array(np.uint32)
    kept: NDArray[np.uint32] = array(np.uint32)
    owners: PlainList = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hand(Message):
    """Reply: hand these ``units`` to the servers ``owners`` under map ``version`` (``state`` "hand").

    "wait": nothing now, ask again; "done": no unit moves any more. Both with the ``version`` of the published
    map, up to which all moves are complete.
    """

    state: str
    version: int
    addresses: PlainList
    units: NDArray[np.uint32] = array(np.uint32)
    owners: NDArray[np.uint16] = array(np.uint16)


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
