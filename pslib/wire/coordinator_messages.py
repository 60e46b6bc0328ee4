"""Messages between any process and the coordinator; see `pslib.wire.messages`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
)

__all__ = [
    "NOWHERE",
    "Beat",
    "Clock",
    "Clocks",
    "CutReady",
    "CutStep",
    "CutTable",
    "EndLease",
    "Hand",
    "Heartbeat",
    "JobResult",
    "Lease",
    "Leave",
    "Missing",
    "NextHand",
    "NextLease",
    "OpenJob",
    "Register",
    "Registered",
    "SaveSoon",
    "Scale",
    "Status",
    "Stop",
]

NOWHERE = (1 << 64) - 1
"""Value of `CutReady.reached` for a trainer without a next batch."""


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
    ``ranks``, those that share the job, fixed when the first trainer opens it.

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
    ``given_back`` in it the lease has failed here, and is returned to other trainers.
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
class Stop(Message):
    """Request: end the cluster. Reply: `Done`."""

    senders = SERVING
    reason: str
    failed: bool


@dataclass(frozen=True, slots=True)
class SaveSoon(Message):
    """Request: a checkpoint of the training as soon as possible (`CheckpointBarrier`).

    Reply: `Result`; ``asked`` is false where no training goes on that can be saved.
    """

    senders = TRAINING


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
