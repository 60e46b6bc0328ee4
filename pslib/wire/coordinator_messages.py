"""Messages between any process and the coordinator; see `pslib.wire.messages`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pslib.wire.fields import Arrays, Message, Plain, PlainList, array, arrays, no_array

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
"""`CutReady.reached` of a trainer that stands before no batch."""


@dataclass(frozen=True, slots=True)
class Register(Message):
    """Join the cluster as ``role``; asked again until `Registered.ready`.

    ``incarnation`` is a number that no other process has. ``rank`` is the place to take, 2^32-1 for any free
    one; of two that want the same the one of the higher ``generation`` has it, and the other is fenced. A
    server is ``empty`` that knows nothing of what an earlier one at its place knew.
    """

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
    """Rank in the role, the cluster's settings and, once all servers are there, the map.

    ``term`` is the coordinator's, as in `Beat`: whoever has joined it obeys no earlier one.
    ``begins`` tells a server that has lost what it knew how it begins (`Recovery.begins`).
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
    """I am alive; ``progress`` holds cumulative counters, ``term`` is the highest that was heard."""

    role: str
    rank: int
    incarnation: int
    map_version: int
    progress: Plain
    term: int = 0


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """Answer to a heartbeat: what to do (``go``, ``leave`` or ``fail``), and the map when it has changed.

    ``hand`` tells a server that units of it are to move: it asks which with `NextHand`.
    ``term`` counts how often the coordinator has been started: who has heard a higher one ignores this.
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
    """A trainer stops for cut ``cut`` before the batch that is step ``reached`` (2^64-1: it has none).

    With ``paused`` all that it has pushed is acknowledged, and of each of ``streams`` so many ``batches`` are
    applied. Answered by `Done`, or `Failure` where that cut is over.
    """

    rank: int
    incarnation: int
    cut: int
    reached: int
    paused: bool
    streams: NDArray[np.uint64] = array(np.uint64)
    batches: NDArray[np.uint64] = array(np.uint64)


@dataclass(frozen=True, slots=True)
class CutStep(Message):
    """What the leader of a cut has done: ``begun``, ``commit`` (may I?), ``saved`` or ``failed``.

    Answered by `Done`, ``begun`` by `CutTable`, and by `Failure` where that cut is over.
    """

    rank: int
    incarnation: int
    cut: int
    state: str
    details: Plain


@dataclass(frozen=True, slots=True)
class CutTable(Message):
    """The table of jobs at a cut: JSON, since a stream of months has more of them than a header may hold."""

    table: NDArray[np.uint8] = array(np.uint8)


@dataclass(frozen=True, slots=True)
class OpenJob(Message):
    """Start, or join, collective call number ``job``; all trainers must say the same. Answered by `Done`.

    With ``by_rank`` each trainer gets leases of its own (`RankedLeases`); answered by `Result`
    with ``ranks``, those that share the job, fixed when the first trainer opens it.

    ``resume`` is empty, or the table of a `CutTable`: jobs before this one are passed over, and this one goes
    on with its leases.
    """

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
    """Ask for work; ``holding`` are the streams that this trainer knows it holds."""

    rank: int
    incarnation: int
    job: int
    holding: NDArray[np.uint64] = array(np.uint64)


@dataclass(frozen=True, slots=True)
class Lease(Message):
    """A lease (``state`` "held"), none now ("wait") or none any more ("done").

    ``time_s`` is the coordinator's time, since the cluster began, when it first gave this lease to anybody:
    the time of all records of the lease, whoever sends them.
    """

    state: str
    stream: int
    index: int
    epoch: int
    first_batch: int
    time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EndLease(Message):
    """All batches of the lease are applied everywhere; ``payload`` is what it yielded. Answered by `Done`.

    Of a save or load it has the ``place`` (JSON) of the checkpoint itself, as servers find it. With
    ``given_back`` in it the lease is not done, but has failed here: others may have it.
    """

    rank: int
    incarnation: int
    job: int
    stream: int
    epoch: int
    payload: Arrays = arrays()


@dataclass(frozen=True, slots=True)
class Clock(Message):
    """So many batches of a job are applied for this trainer. Answered by `Clocks`."""

    rank: int
    incarnation: int
    job: int
    clock: int


@dataclass(frozen=True, slots=True)
class Clocks(Message):
    """The clock of whom has asked, as the coordinator counts it, and of the slowest trainer that has work."""

    clock: int
    slowest: int


@dataclass(frozen=True, slots=True)
class JobResult(Message):
    """Ask for the outcome of a job; answered by `Result` with ``done`` true or false."""

    job: int


@dataclass(frozen=True, slots=True)
class Missing(Message):
    """A server that came back does not have ``pushes`` of ``asked`` pushes that it had acknowledged to us.

    Answered by `Done`.
    """

    rank: int
    incarnation: int
    server: int
    pushes: int
    asked: int


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Ask the coordinator how the cluster is; answered by `Result`; with ``details``, of every member."""

    details: bool = False


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Ask the coordinator to end the cluster. Answered by `Done`."""

    reason: str
    failed: bool


@dataclass(frozen=True, slots=True)
class SaveSoon(Message):
    """Ask the coordinator for a checkpoint of the training as soon as it can be made (`CheckpointBarrier`).

    Answered by `Result`: ``asked`` is false where no training goes on that can be saved.
    """


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """This process has flushed all its work and goes. Answered by `Done`.

    ``preempted``: it was asked to, though there is work; it, or another one, may come again.
    """

    role: str
    rank: int
    incarnation: int
    progress: Plain
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class Scale(Message):
    """``servers`` shall own all units from now on (0: as many as now), and those in ``drain`` none.

    The highest ranks go when there are too many. Answered by `Result` with the progress of the moves. A wish
    that has come before (the same ``name``, any number) is answered and not granted again, however late.
    """

    servers: int
    drain: PlainList
    name: int


@dataclass(frozen=True, slots=True)
class NextHand(Message):
    """A server asks which of its units it shall hand over, and says what has become of earlier ones.

    Of the wave ``version`` the units in ``done`` have arrived, and those in ``kept`` are here again because
    of ``reason``. ``bytes`` were sent since the last such message. ``owners`` are ``[rank, address]`` of
    those whom it gives units, as far as it knows: one that has come back elsewhere may have lost them.
    """

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
    """Hand these ``units`` to the servers ``owners`` under map ``version`` (``state`` "hand").

    "wait": nothing now, ask again; "done": nothing moves any more. Both with the ``version`` of the published
    map, up to which all moves are complete.
    """

    state: str
    version: int
    addresses: PlainList
    units: NDArray[np.uint32] = array(np.uint32)
    owners: NDArray[np.uint16] = array(np.uint16)
