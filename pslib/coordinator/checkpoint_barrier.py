"""Checkpoint barrier: takes a consistent cut during training, as a pure state machine.

    idle -> near     a cut is due: trainers are told, and send heartbeats faster from then on
    near -> pause    all live trainers know: each stops pushing at a batch boundary, waits until every push
                     is acknowledged, then reports the position of each of its leases (`CutReady`)
    pause -> begin   all are ready: positions are recorded, the leader tells the servers to mark the instant
    begin -> write   servers have marked it: trainers resume; the leader waits for files, writes the manifest
    write -> idle    the checkpoint is committed, or has failed
    write -> held    it is committed, and was the last one of a run: trainers, which have not resumed, stay
                     paused until they are asked to leave, at most ``Timing.drain_s``

A requested cut is also taken in a call that only reads, such as an evaluation, or before the next call has
begun: nothing is pushed then. Its table marks all earlier calls as done, and nothing of this one.

The steps up to ``begin`` are bounded by ``Timing.cut_s``; a cut that is late, or loses a member, is cancelled
and retried as a new one. A lease taken over from a dead trainer may have applied batches that were never
reported; so no cut begins before that lease is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pslib.coordinator.events import Events
from pslib.coordinator.jobs import CollectiveJob, JobRegistry
from pslib.coordinator.leases import RankedLeases
from pslib.coordinator.membership import Member, Membership
from pslib.storage import shown
from pslib.wire.fields import Message, json_array
from pslib.wire.messages import NOWHERE, CutReady, CutStep, CutTable, Done, Failure, Result, SaveSoon

AGAIN_S = 1.0
"""Delay after a cancelled cut; it doubles each time, up to a minute."""
AGAIN_MAX_S = 60.0
CUTS_A_TERM = 1 << 20
READING = ("evaluate", "predict", "rank", "window", "vote", "")
"""Calls without pushes, and no call at all; all earlier pushes are acknowledged by then."""
PAUSED = ("pause", "begin", "held")
"""Phases, as trainers are told, in which they push nothing."""
LOOKING = ("recommend", "export")
"""Other calls that change no rows."""


@dataclass(slots=True)
class _Cut:
    """State of the cut under way."""

    number: int
    job: int
    leader: int
    began_s: float
    asked: bool = False
    last: bool = False
    what: str = "fit"
    phase: str = "near"
    heard: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    target: int = -1
    positions: dict[int, int] = field(default_factory=dict)
    paused_s: float = 0.0
    pause_s: float = 0.0
    held_s: float = 0.0
    table: dict[str, Any] = field(default_factory=dict)

    @property
    def told_phase(self) -> str:
        """Phase as trainers are told: they stay paused while the last checkpoint of a run is written."""
        return "held" if self.last and self.phase == "write" else self.phase


class CheckpointBarrier:
    """Scheduler of cuts; it takes each cut through its steps.

    Parameters
    ----------
    members : Membership
    registry : JobRegistry
        Its jobs; the details of a job have the schedule (``checkpoint``: ``every_s``, ``every_batches``).
    events : Events
    term : int
        The coordinator's term: part of a cut's number, since cuts are not journalled.

    Attributes
    ----------
    base : str
        Name of the last committed checkpoint; an increment is based on it.
    asked : bool
        True if an unscheduled checkpoint is requested.
    on_saved : callable
        Called with path and moment of each committed checkpoint.
    """

    def __init__(self, members: Membership, registry: JobRegistry, events: Events, term: int = 0) -> None:
        self._members, self._registry, self._events = members, registry, events
        self._cut: _Cut | None = None
        self._number = term * CUTS_A_TERM
        self._last_s: float | None = None
        self._last_batches = 0
        self._not_before_s = 0.0
        self._again_s = AGAIN_S
        self._held_in_vain = False
        self.base = ""
        self.asked = self._asked_last = False
        self.on_saved = registry.note_saved

    @property
    def busy(self) -> bool:
        """Return True if a cut is under way: no unit may move meanwhile."""
        return self._cut is not None

    @property
    def holds_leases(self) -> bool:
        """Return True if no lease may be granted now, except leases by rank, needed to reach the step."""
        cut = self._cut
        paused = cut is not None and cut.told_phase in PAUSED and not self._by_rank(cut)
        return paused or self._holds_a_beginning()

    def ask(self, now_s: float, message: SaveSoon) -> Message:
        """Take a cut as soon as possible, whatever the schedule; `asked` holds until it is committed.

        Between two fits of one call, each of which is an epoch, the cut is taken at the latest when the next
        fit begins. A cut under way will do unless trainers have gone on, or are about to.
        """
        cut = self._cut
        if cut is not None and cut.phase == "held":  # nothing was trained since
            return Result({"asked": False})
        soon = self._running() is not None or bool(self._last_fit().get("epochs_to_come"))
        self.asked, self._held_in_vain = soon and bool(self._members.live("trainer")), False
        self._asked_last = self.asked and (message.last or self._asked_last)
        if cut is not None:
            cut.asked = self.asked and (cut.last or cut.phase in ("near", "pause"))
            cut.last = cut.last or (cut.asked and self._asked_last)
        return Result({"asked": self.asked})

    # --- time, and what members say -----------------------------------------------------------------------

    def tick(self, now_s: float, busy: bool, since_s: float) -> None:
        """Advance the time. ``busy``: units move, or the run ends; ``since_s`` is the cluster's time."""
        if self._cut is not None:
            self._watch(self._cut, now_s, busy, since_s)
        elif not busy and now_s >= self._not_before_s and self._is_due(now_s):
            self._begin(now_s)

    def heard(self, now_s: float, member: Member, since_s: float) -> None:
        """Handle a trainer's heartbeat; its progress names the cut that it knows of."""
        cut = self._cut
        if cut is not None and member.role == "trainer" and member.progress.get("cut") == cut.number:
            cut.heard.add(member.rank)
            self._advance(cut, now_s, since_s)

    def beat(self, role: str) -> dict[str, Any]:
        """Return the cut's part of a heartbeat reply."""
        cut = self._cut
        if cut is None or role != "trainer":
            return {}
        about = {"number": cut.number, "phase": cut.told_phase, "leader": cut.leader, "step": cut.target}
        return about | {"last": cut.last}

    def ready(self, now_s: float, message: CutReady, since_s: float) -> Message:
        """Record where a trainer has stopped; ``paused``: all its pushes are acknowledged."""
        cut = self._cut
        if cut is None or message.cut != cut.number or cut.phase not in ("near", "pause"):
            return Failure("unavailable", f"cut {message.cut} is not under way any more")
        if self._members.find("trainer", message.rank, message.incarnation) is None:
            return Failure("fenced", "this trainer is not a member of the cluster")
        if not message.paused and message.rank in cut.ready and message.reached == cut.reached[message.rank]:
            return Done()  # stale: the trainer has since resumed
        cut.reached[message.rank] = message.reached
        if message.paused:
            cut.ready.add(message.rank)
            positions = zip(message.streams.tolist(), message.batches.tolist(), strict=False)
            cut.positions |= {stream & 0xFFFFFFFF: n for stream, n in positions if stream >> 32 == cut.job}
        else:
            cut.ready.discard(message.rank)
        self._advance(cut, now_s, since_s)
        return Done()

    def step(self, now_s: float, message: CutStep) -> Message:
        """Handle the leader's step: ``begun``, ``commit`` (may I?), ``saved`` or ``failed``."""
        cut = self._cut
        if cut is None or message.cut != cut.number or message.rank != cut.leader:
            return Failure("unavailable", f"cut {message.cut} was given up")
        if message.state == "begun":
            if cut.phase not in ("begin", "write"):
                return Failure("unavailable", f"cut {message.cut} has not come so far")
            if cut.phase == "begin":
                cut.phase, cut.pause_s = "write", now_s - cut.paused_s
            return CutTable(json_array(cut.table))
        if message.state == "saved":
            self._saved(now_s, cut, message.details)
        elif message.state == "failed":
            self._cancel(now_s, str(message.details.get("reason", "")))
        return Done()

    # --- when ---------------------------------------------------------------------------------------------

    def _running(self) -> int | None:
        """Return the number of the job to cut: the first open one, where it trains or only reads."""
        number = self._registry.first_open
        what = self._what(number)
        if not self._last_fit() or (what == "" and self._what(number - 1) == "save"):  # that is a checkpoint
            return None
        return number if what == "fit" or what in READING else None

    def _what(self, number: int) -> str:
        """Return the kind of a job; empty for a job that is not open."""
        return self._registry.jobs[number].what if number < len(self._registry.jobs) else ""

    def _is_taken_over(self, number: int) -> bool:
        """Return True if more may be applied than a job's table says: of this job, or of a later one."""
        later = self._registry.jobs[number + 1 :]
        if any(one.what not in (*READING, *LOOKING, "save") and one.book.begun for one in later):
            return True
        return self._what(number) == "fit" and self._registry.jobs[number].book.taken_over

    def _last_fit(self) -> Mapping[str, Any]:
        """Return the details of the last fit, if it may be saved: not one given up half way."""
        last = next((job for job in reversed(self._registry.jobs) if job.what == "fit"), None)
        return last.details if last and last.details.get("checkpoint") and not last.given_up else {}

    def _holds_a_beginning(self) -> bool:
        """Return True if a fit waits with its first lease for a cut: it may end before one is possible.

        Once a cut has failed for another reason, no fit waits any more.
        """
        number = self._running() if self.asked and not self._held_in_vain else None
        if number is None or self._what(number) != "fit":
            return False
        book = self._registry.jobs[number].book
        if isinstance(book, RankedLeases) or self._is_taken_over(number):
            return False
        return not (book.done_count or book.holders())

    def _is_due(self, now_s: float) -> bool:
        number = self._running()
        if number is None or not self._leaders(number):
            return False
        batches = self._batches()
        if self._last_s is None:
            self._last_s, self._last_batches = now_s, batches
        fits = self._what(number) == "fit"
        wanted: Mapping[str, Any] = self._registry.jobs[number].details["checkpoint"] if fits else {}
        every_s, every = float(wanted.get("every_s", 0)), int(wanted.get("every_batches", 0))
        by_time = every_s > 0 and now_s - self._last_s >= every_s
        by_work = every > 0 and batches - self._last_batches >= every
        return (by_time or by_work or self.asked) and not self._is_taken_over(number)

    def _batches(self) -> int:
        """Sum the batches of all trainers, dead ones too: successors count from 0, the sum must not fall."""
        return sum(int(one.progress.get("staleness_count", 0)) for one in self._members.ever("trainer"))

    def _begin(self, now_s: float) -> None:
        number = self._running()
        assert number is not None
        self._number += 1
        leader = min(self._leaders(number))
        last, what = self.asked and self._asked_last, self._what(number)
        self._cut = _Cut(self._number, number, leader, now_s, self.asked, last, what)

    def _leaders(self, number: int) -> list[int]:
        """Return the trainers that can lead a cut of a job: those in it. A lone client has no checkpoints."""
        call = min(number, len(self._registry.jobs) - 1)
        return [member.rank for member in self._members.live("trainer") if member.call >= call]

    # --- from phase to phase ------------------------------------------------------------------------------

    def _by_rank(self, cut: _Cut) -> bool:
        return self._what(cut.job) == "fit" and isinstance(self._registry.jobs[cut.job].book, RankedLeases)

    def _live(self) -> set[int]:
        return {member.rank for member in self._members.live("trainer")}

    def _advance(self, cut: _Cut, now_s: float, since_s: float) -> None:
        live = self._live()
        if cut.phase == "near" and live <= cut.heard:
            cut.phase, cut.paused_s = "pause", now_s
        if cut.phase != "pause":
            return
        if self._by_rank(cut) and live <= set(cut.reached):
            stands = [step for step in cut.reached.values() if step != NOWHERE]
            cut.target = max([cut.target, *stands])
        if not self._is_still_on(cut):
            self._cancel(now_s, "the fit that it was for is over")
        elif all(self._is_ready(cut, rank) for rank in live):
            cut.phase, cut.table = "begin", self._table(cut, since_s)

    def _is_still_on(self, cut: _Cut) -> bool:
        """Return True if no later job may have applied batches, and none has been opened since."""
        current = self._registry.first_open
        if cut.what == "fit":
            return cut.job == min(current, len(self._registry.jobs) - 1)
        return cut.job == current and self._what(current) in READING

    def _is_ready(self, cut: _Cut, rank: int) -> bool:
        if rank not in cut.ready or not self._by_rank(cut):
            return rank in cut.ready
        if cut.reached[rank] == NOWHERE:  # it holds no lease: has it done all of its part?
            return not self._registry.jobs[cut.job].needs(rank)
        return cut.target >= 0 and cut.reached[rank] >= cut.target

    def _watch(self, cut: _Cut, now_s: float, busy: bool, since_s: float) -> None:
        timing = self._members.config.timing
        late_s = timing.cut_s + (2 * timing.silence_s if cut.phase == "near" else 0.0)
        since_phase_s = now_s - (cut.began_s if cut.phase == "near" else cut.paused_s)
        if cut.phase == "held":
            if now_s - cut.held_s > timing.drain_s:  # who asked for it is gone
                self._cut = None
        elif cut.leader not in self._live():
            self._cancel(now_s, f"trainer {cut.leader}, which leads it, is gone")
        elif cut.phase == "write":
            return
        elif busy:
            self._cancel(now_s, "something else has begun")
        elif self._is_taken_over(cut.job):
            self._cancel(now_s, "a lease has another holder, or a trainer has gone on to a later call")
        elif since_phase_s > late_s:
            late = sorted(self._live() - (cut.heard if cut.phase == "near" else cut.ready))
            who = f"trainers {late} are not ready" if late else "servers did not answer"
            self._cancel(now_s, f"{who} after {since_phase_s:.1f} s")
        else:
            self._advance(cut, now_s, since_s)

    def _table(self, cut: _Cut, since_s: float) -> dict[str, Any]:
        """Return the done jobs, and the position of each lease of the one under way."""
        if cut.what != "fit":
            return self._table_of_done(cut.job, since_s)
        job = self._registry.jobs[cut.job]
        job.book.set_positions(cut.positions)
        return {
            "jobs": [_about(one) for one in self._registry.jobs[: cut.job + 1]],
            "job": cut.job,
            "leases": job.book.table(),
            "ranks": _ranks(job),
            "since_s": since_s,
        }

    def _table_of_done(self, number: int, since_s: float) -> dict[str, Any]:
        """Return the jobs done before a read-only one; on resume, that one or another begins anew."""
        jobs = self._registry.jobs
        while jobs[number - 1].what == "window":  # its file may be gone after a repair
            number -= 1
        fits = [job for job in jobs[:number] if job.what == "fit"]
        return {
            "jobs": [_about(one) for one in jobs[:number]],
            "job": number,
            "ranks": _ranks(fits[-1]),
            "since_s": since_s,
        }

    # --- ends ---------------------------------------------------------------------------------------------

    def _saved(self, now_s: float, cut: _Cut, details: Mapping[str, Any]) -> None:
        path, self.base = str(details.get("path", "")), str(details.get("name", ""))
        self.on_saved(path, moment_of_cut(cut.number))
        self.asked = self.asked and not cut.asked
        self._cut, self._again_s = None, AGAIN_S
        if cut.last:
            cut.phase, cut.held_s, self._cut, self._asked_last = "held", now_s, cut, False
        self._last_s, self._last_batches = cut.began_s, self._batches()
        size, took_s = int(details.get("bytes", 0)), now_s - cut.paused_s
        kind = "an increment" if details.get("increment") else "all"
        about: dict[str, Any] = {"path": shown(path)}
        about |= {"kind": "increment" if details.get("increment") else "full"}
        about |= {"bytes": size, "took_s": took_s, "pause_s": cut.pause_s}
        text = f"saved {shown(path)} ({kind}, {size / 1e6:.0f} MB) in {took_s:.1f} s, "
        self._events.saved(f"{text}pause {cut.pause_s:.3f} s", about)

    def _cancel(self, now_s: float, why: str) -> None:
        if self._cut is not None:
            self._held_in_vain = self._cut.what == "fit" and not self._registry.jobs[self._cut.job].over
        self._cut = None
        self._not_before_s = now_s + self._again_s
        self._events.tell(f"checkpoint not made: {why}; again in {self._again_s:.0f} s", "unsaved")
        self._again_s = min(2 * self._again_s, AGAIN_MAX_S)


def moment_of_cut(number: int) -> str:
    """Return the moment of a cut: all trainers have paused."""
    return f"cut {number}"


def _ranks(job: CollectiveJob) -> list[int]:
    """Return the trainers that share a job whose leases go by rank."""
    return list(job.book.ranks) if isinstance(job.book, RankedLeases) else []


def _about(job: CollectiveJob) -> dict[str, Any]:
    """Return a job as plain values."""
    return {"what": job.what, "fingerprint": job.fingerprint, "outcome": job.outcome}
