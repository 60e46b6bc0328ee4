"""Collective calls of all trainers: leases, clocks and outcome of each, as a pure state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.coordinator.events import Tell
from pslib.coordinator.leases import (
    Ballots,
    Grant,
    JobClocks,
    LeaseBook,
    RankedLeases,
    book_of,
    stream_of,
)
from pslib.coordinator.membership import Member, Membership
from pslib.coordinator.results import RESULTS_TOLD
from pslib.metrics.metrics import ScoreCounts
from pslib.metrics.ranking import plain_ranks
from pslib.storage import shown
from pslib.text import counted
from pslib.wire.fields import Message, plain_of
from pslib.wire.messages import (
    Clock,
    Clocks,
    Done,
    EndLease,
    Failure,
    JobResult,
    Lease,
    NextLease,
    OpenJob,
    Result,
)

UNTOLD = ("window", "vote")
"""Kinds of calls in which trainers agree on something: their outcomes are no results of the run."""
BESIDE = ("evaluate", "predict", "rank", "recommend", "export", "save")
"""Calls that change no row: an interrupted fit may go on after them."""
SCORES_KEPT = 16
"""Parts of an evaluation kept before they are merged."""
IN_STEP = "with consistency sync every step waits for every trainer"
"""Reason that a run can't go on without a trainer."""
START_AGAIN = "start again from"
"""Part of the reason of an end after which the same run would end in the same way, and of no other error."""


@dataclass(slots=True)
class CollectiveJob:
    """A `fit`, `evaluate`, `save` or `load` that all trainers have called.

    Attributes
    ----------
    what, fingerprint, details
        As the first trainer opened it.
    book : LeaseBook
        The assignment of leases to trainers.
    opened_s : float
    scores : list of ScoreCounts
        Scores of an evaluation so far.
    outcome : dict or None
        The outcome, once all leases are done.
    clocks : JobClocks
        The clocks of trainers, where they report them (ssp).
    words : dict
        The textual results of its leases, if any: they become part of the outcome.
    given_up : bool
        True if all trainers have left it.
    examples_before : int
        Examples of a fit that were trained in an earlier run, which this one continues.
    failed_at : set of (int, int)
        Trainers, with incarnations, whose call has failed or was interrupted, and was not retried since.
    paused_s : float
        When a trainer was interrupted in it (a fit) and has not gone on since; 0: it goes on.
    """

    what: str
    fingerprint: int
    details: Mapping[str, Any]
    book: LeaseBook
    opened_s: float
    scores: list[ScoreCounts] = field(default_factory=list)
    outcome: dict[str, Any] | None = None
    clocks: JobClocks = field(default_factory=JobClocks)
    words: dict[str, Any] = field(default_factory=dict)
    given_up: bool = False
    examples_before: int = 0
    failed_at: set[tuple[int, int]] = field(default_factory=set)
    paused_s: float = 0.0

    @property
    def over(self) -> bool:
        """Return True if it is over: done, or given up."""
        return self.given_up or self.book.done

    @property
    def examples(self) -> int:
        """Examples that it trains on; for a job given up, those that were trained."""
        return self._examples_applied if self.given_up else int(self.details.get("examples", 0))

    @property
    def examples_trained(self) -> int:
        """Examples whose batches are applied everywhere; exact once the job is over."""
        return self.examples if self.over else self._examples_applied

    @property
    def _examples_applied(self) -> int:
        sizes = [int(self.details.get(name, 0)) for name in ("examples", "lease_rows", "batch_rows")]
        return self.book.examples_trained(*sizes)

    @property
    def epochs_done(self) -> int:
        """Epochs of this job whose leases are all done."""
        epochs, leases = int(self.details.get("epochs", 0)), self.book.windows.size
        return epochs * self.book.done_count // leases if leases else epochs

    @property
    def is_of_before(self) -> bool:
        """Return True if an earlier run trained all of it."""
        return self.examples_before == self.examples

    def go_on(self, now_s: float) -> None:
        """Continue the job in a new run: earlier examples count as trained before, its time begins now."""
        self.examples_before, self.opened_s = self.examples_trained, now_s

    def give(self, holder: tuple[int, int], holding: Iterable[int], since_s: float) -> Grant | None:
        """Grant a lease to a trainer, as `LeaseBook.next` does."""
        working = self.book.holders()
        grant = self.book.next(holder, holding, since_s)
        self.failed_at.discard(holder)
        if grant and holder not in working:
            self.clocks.begin(holder, working)
        return grant

    def take_back(self, holder: tuple[int, int]) -> None:
        """Free a trainer's leases after its call has failed; that trainer might never retry."""
        self.book.trainer_lost(holder)
        self.failed_at.add(holder)

    def left(self, now_s: float, holder: tuple[int, int], payload: Mapping[str, NDArray[Any]]) -> bool:
        """Let a trainer leave it before it is done; return False if its lease ends in order.

        One that was interrupted (``paused``) keeps its leases, to go on later.
        """
        if "given_back" in payload:
            self.take_back(holder)
        elif "paused" in payload:
            self.failed_at.add(holder)
            self.paused_s = now_s
        else:
            return False
        return True

    def end_pause(self, now_s: float) -> None:
        """Go on after an interruption, which counts as no time of training."""
        self.opened_s, self.paused_s = self.opened_s + now_s - self.paused_s, 0.0

    def needs(self, rank: int) -> bool:
        """Return True if the job can't be done without this trainer."""
        return isinstance(self.book, RankedLeases) and self.book.needs(rank)

    def add_scores(self, scores: ScoreCounts) -> None:
        """Add the scores of one lease of an evaluation."""
        self.scores.append(scores)
        if len(self.scores) >= SCORES_KEPT:  # merge equal scores to bound memory
            self.scores[:] = [ScoreCounts.merge(self.scores)]

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `of_plain`."""
        counts: list[tuple[NDArray[Any], ...]] = [
            (one.scores, one.positives, one.negatives) for one in self.scores
        ]
        return {
            "what": self.what,
            "fingerprint": self.fingerprint,
            "details": dict(self.details),
            "book": self.book.plain(),
            "opened_s": self.opened_s,
            "scores": [[array.tobytes() for array in arrays] for arrays in counts],
            "outcome": self.outcome,
            "clocks": self.clocks.plain(),
            "words": self.words,
            "given_up": self.given_up,
            "examples_before": self.examples_before,
            "failed_at": [list(holder) for holder in sorted(self.failed_at)],
            "paused_s": self.paused_s,
        }

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> CollectiveJob:
        """Build the job that returned this `plain`."""
        kinds = (np.float32, np.uint64, np.uint64)
        counts = [map(np.frombuffer, arrays, kinds) for arrays in plain["scores"]]
        book, clocks = book_of(plain["book"]), JobClocks.of(plain["clocks"])
        about = (plain["what"], plain["fingerprint"], plain["details"])
        scores = [ScoreCounts(*arrays) for arrays in counts]
        opened_s, outcome, words = plain["opened_s"], plain["outcome"], plain["words"]
        given_up, before = bool(plain.get("given_up")), int(plain.get("examples_before", 0))
        failed_at = {(rank, incarnation) for rank, incarnation in plain.get("failed_at", ())}
        job = CollectiveJob(*about, book, opened_s, scores, outcome, clocks, words, given_up, before)
        job.failed_at, job.paused_s = failed_at, float(plain.get("paused_s", 0.0))
        return job

    def give_up(self, now_s: float) -> None:
        """Give the job up: all trainers have left it, and no lease of it is granted any more."""
        self.given_up = True
        for holder in self.book.holders():
            self.book.trainer_lost(holder)
        self.scores.clear()
        if self.what == "fit":  # the time of a partial fit counts; a part of any other job is void
            took = {"kind": "fit", "seconds": now_s - self.opened_s, "given_up": True}
            self.outcome = {**self.details, **took, "examples": self.examples}

    def finish(self, now_s: float) -> bool:
        """Write the outcome, once; return whether this call did it."""
        if self.outcome is not None:
            return False
        self.outcome = {"kind": self.what, "seconds": now_s - self.opened_s, **self.details, **self.words}
        if self.what == "evaluate":
            counts = ScoreCounts.merge(self.scores) if self.scores else ScoreCounts.empty()
            self.outcome |= asdict(counts.result())
            self.scores.clear()
        if self.what == "rank":
            self.outcome |= plain_ranks(ScoreCounts.merge(self.scores), self.details.get("at", ()))
            self.scores.clear()
        return True


class JobRegistry:
    """Registry of all jobs of a cluster, in the order in which scripts call them.

    Parameters
    ----------
    members : Membership
        The cluster's members.
    fail : callable
        Ends the run, with the reason, when work can no longer be done.
    tell : Tell
        Adds an event.

    Attributes
    ----------
    jobs : list of CollectiveJob
    saved : str
        Path of the last saved checkpoint, credentials in it included; empty before the first.
    saves : int
        Number of checkpoints saved, as far as this coordinator knows of them.
    basis : list of dict
        Checkpoints that, loaded in order, restore the last state that was saved or loaded: fields of
        `Load` without a stem. Empty: initial values.
    moment : str
        The moment of that state: trainers count what is acknowledged since.
    on_saved : callable
        Called with path and seconds of a checkpoint that all trainers have saved.
    """

    def __init__(self, members: Membership, fail: Callable[[str], None], tell: Tell) -> None:
        self._members, self._fail, self._tell = members, fail, tell
        self.jobs: list[CollectiveJob] = []
        self._first_open = 0
        self.saved = self.moment = ""
        self.saves = 0
        self.basis: list[dict[str, Any]] = []
        self.on_saved: Callable[[str, float], None] = lambda _path, _seconds: None

    def note_saved(self, path: str, moment: str) -> None:
        """Record a checkpoint of all servers, as they were at a moment."""
        self.saved, self.basis, self.moment = path, [{"path": path}], moment
        self.saves += 1

    # --- requests -----------------------------------------------------------------------------------------

    def open_job(self, now_s: float, message: OpenJob) -> Message:
        """Start or join a call; all trainers must make the same calls in the same order."""
        if problem := _details_problem(message.details):
            return Failure("configuration", f"{message.what}: {problem}")
        resume: Mapping[str, Any] = plain_of(message.resume) if message.resume.size else {}
        self._pass_over(now_s, message.job, resume)
        if message.job > len(self.jobs):
            return Failure("configuration", f"job {message.job} opened before job {len(self.jobs)}")
        if message.job == len(self.jobs):
            about = (message.what, message.fingerprint, message.details)
            opened = CollectiveJob(*about, self._book_for(message), now_s)
            if resume and (problem := _restored(now_s, opened, resume)):
                return Failure("configuration", f"the checkpoint's training can't go on: {problem}")
            self.jobs.append(opened)
        job = self.jobs[message.job]
        if (job.what, job.fingerprint) != (message.what, message.fingerprint):
            return Failure(
                "configuration",
                f"trainer {message.rank}: its call number {message.job} is {message.what!r}, the others' is "
                f"{job.what!r} or has other data or settings; all trainers must run the same script",
            )
        if job.given_up:
            return _given_up(message, job)
        self._leave_earlier(now_s, message)
        self._end_pause(now_s, message, job)
        if job.book.done:
            self._finish(now_s, message.job)
        told: dict[str, Any] = {"examples_before": job.examples_before} if job.examples_before else {}
        told |= {"ranks": list(job.book.ranks)} if isinstance(job.book, RankedLeases) else {}
        return Result(told) if told else Done()

    def _book_for(self, message: OpenJob) -> LeaseBook:
        """Build the leases of a new job; votes and leases by rank go to the run's trainers and the opener.

        Each vote or step waits for all of these trainers. A guest, such as a notebook that reads rows, might
        never make the call, so a guest is waited for only if it opens the call; if it comes second, the
        others already know their ranks.
        """
        if not (message.by_rank or message.what == "vote"):
            return LeaseBook(message.windows)
        ranks = [member.rank for member in self._members.live("trainer")]
        own = [rank for rank in ranks if rank == message.rank or not self._members.is_guest(rank)]
        return RankedLeases(message.windows, own) if message.by_rank else Ballots(own)

    def _pass_over(self, now_s: float, number: int, resume: Mapping[str, Any]) -> None:
        """Reserve the numbers of jobs that a checkpoint marks as done: names of pushes contain them."""
        for about in resume.get("jobs", [])[len(self.jobs) : number]:
            details = _counts_in(about["outcome"] or {})
            job = CollectiveJob(about["what"], about["fingerprint"], details, LeaseBook(NO_LEASES), now_s)
            job.outcome = about["outcome"]
            job.go_on(now_s)
            self.jobs.append(job)
        if number == 1 and not self.jobs:  # 0 is reserved for a load before all others
            self.jobs.append(CollectiveJob("begin", 0, {}, LeaseBook(NO_LEASES), now_s))

    def next_lease(self, now_s: float, message: NextLease, since_s: float) -> Message:
        """Grant a lease to a trainer; ``since_s`` is the time since the cluster began."""
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        if failure := self.fenced(message):
            return failure
        self._members.heard(now_s, "trainer", message.rank, message.incarnation, 0)
        if job.given_up:  # the trainer must not take it for done
            return _given_up(message, job)
        if job.book.done:
            return Lease("done", 0, 0, 0, 0)
        holding = [int(stream) & 0xFFFFFFFF for stream in message.holding if int(stream) >> 32 == message.job]
        grant = job.give((message.rank, message.incarnation), holding, since_s)
        if grant is None:
            return Lease("wait", 0, 0, 0, 0)
        stream = stream_of(message.job, grant.index)
        return Lease("held", stream, grant.index, grant.epoch, grant.first_batch, grant.time_s)

    def fenced(self, message: NextLease) -> Failure | None:
        """Return the failure for a trainer that is not live; also while all wait, when one asks to save."""
        member = self._members.find("trainer", message.rank, message.incarnation)
        if member is None or member.state != "live":
            return Failure("fenced", "this trainer counts as lost; its leases have gone to others")
        return None

    def end_lease(self, now_s: float, message: EndLease) -> Message:
        """End a lease whose batches are all applied; a lease that ends twice counts once."""
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        index = message.stream & 0xFFFFFFFF
        if message.stream >> 32 != message.job or index >= job.book.windows.size:
            return Failure("configuration", f"job {message.job} has no lease {message.stream}")
        was_done = job.book.is_done(index)
        if job.left(now_s, (message.rank, message.incarnation), message.payload):
            return Done()
        payload = message.payload  # read before the lease ends: a broken one must not lose its scores
        words, place = _words_of(job, payload), _place_of(payload)
        scores = "scores" in payload and ScoreCounts.from_arrays(
            payload["scores"], payload["positives"], payload["negatives"]
        )
        if not job.book.end((message.rank, message.incarnation), index, message.epoch):
            return Failure("fenced", f"lease {message.stream} has another holder by now")
        if scores and not was_done:
            job.add_scores(scores)
        if not was_done:
            job.words |= words
        if job.book.done:
            self._finish(now_s, message.job, place)
        return Done()

    def clock(self, now_s: float, message: Clock) -> Message:
        """Record a trainer's clock; reply with the slowest one."""
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        clock = job.clocks.report((message.rank, message.incarnation), message.clock)
        return Clocks(clock, job.clocks.slowest(job.book.holders(), otherwise=clock))

    def job_result(self, now_s: float, message: JobResult) -> Message:
        """Return a job's outcome, once it has one."""
        if message.job >= len(self.jobs):
            return Failure("configuration", f"job {message.job} has not been opened")
        if self.jobs[message.job].book.done:  # the last vote may be void: no trainer has ended it
            self._finish(now_s, message.job)
        outcome = self.jobs[message.job].outcome
        return Result({"done": outcome is not None, "outcome": outcome or {}})

    @property
    def first_open(self) -> int:
        """Number below which all jobs are over; a stream of months opens a hundred thousand jobs."""
        while self._first_open < len(self.jobs) and self.jobs[self._first_open].over:
            self._first_open += 1
        return self._first_open

    # --- what heartbeats and losses mean for leases -------------------------------------------------------

    def progress(self, member: Member, streams: Iterable[tuple[int, int]]) -> None:
        """Record, per stream of a trainer, the batch below which everything is acknowledged."""
        for stream, acked_below in streams:
            job = stream >> 32
            if job < len(self.jobs):
                holder = (member.rank, member.incarnation)
                self.jobs[job].book.progress(holder, {stream & 0xFFFFFFFF: acked_below})

    def streams_done_below(self) -> int:
        """Return the stream number below which all streams of leases are over."""
        number = self.first_open
        return stream_of(number, self.jobs[number].book.done_below if number < len(self.jobs) else 0)

    def is_about_files(self, number: int) -> bool:
        """Return True if a job saves or loads all units, so that no unit may move meanwhile."""
        return number < len(self.jobs) and self.jobs[number].what in ("save", "load")

    @property
    def at_files(self) -> bool:
        """Return True if a trainer is in a save or load; without one, the job waits for moves."""
        numbers = range(self.first_open, len(self.jobs))
        return any(self.is_about_files(number) and self.jobs[number].book.holders() for number in numbers)

    def goes_on_before(self, number: int) -> bool:
        """Return True if a trainer is in an earlier call and has, or may get, work of it.

        A client that trains nothing is in no call.
        """
        return any(call < number for call in self._calls_open())

    def _calls_open(self) -> list[int]:
        """Return the numbers of calls, from the first open one on, that trainers are in.

        A trainer without a call is in none, and neither is one whose call has failed: both might never make
        another.
        """
        first = self.first_open
        live = [one for one in self._members.live("trainer") if one.call >= first]
        return [
            one.call
            for one in live
            if one.call >= len(self.jobs) or (one.rank, one.incarnation) not in self.jobs[one.call].failed_at
        ]

    def is_at_files_after(self, number: int) -> bool:
        """Return True if a trainer saves or loads in a later call than this one."""
        later = range(max(number + 1, self.first_open), len(self.jobs))
        return any(self.is_about_files(one) and self.jobs[one].book.holders() for one in later)

    def is_at_files_before(self, number: int) -> bool:
        """Return True if an earlier save or load is open with a trainer in it or due to reach it.

        A trainer that caught the error of the save or load has left it: another trainer does it or repeats
        it.
        """
        at = min(self._calls_open(), default=number)
        return any(self.is_about_files(one) and not self.jobs[one].over for one in range(at, number))

    @property
    def all_done(self) -> bool:
        """Return True if no job is open."""
        return self.first_open == len(self.jobs)

    def needs(self, rank: int) -> bool:
        """Return True if a job can't be done without a trainer of this rank."""
        return any(job.needs(rank) for job in self.jobs[self.first_open :])

    def free_leases(self, member: Member, why: str, below: int | None = None, fatal: bool = True) -> int:
        """Free a trainer's leases (of jobs ``below``) for others; return their number.

        If no other trainer may take them, the run ends, unless a successor is awaited (not ``fatal``).
        """
        freed = 0
        for job in self.jobs[self.first_open : below]:
            freed += len(job.book.trainer_lost((member.rank, member.incarnation)))
            if fatal and job.needs(member.rank):
                saved = shown(self.saved)
                kept = f"checkpoint {saved}" if saved else "beginning: there is no checkpoint"
                who = f"trainer {member.rank} ({member.where})"
                self._fail(f"{who} {why}, and {IN_STEP}; {START_AGAIN} the {kept}")
        return freed

    def has_left(self, now_s: float, member: Member, well: bool) -> None:
        """Handle a trainer's leave; ``well``: its script had finished all its calls, done or not."""
        if well:
            member.call = max(member.call, len(self.jobs))
        self.give_up(now_s)
        self.free_leases(member, "has left before the job was done")

    def give_up(self, now_s: float) -> None:
        """Give up each call that every trainer has left: its script caught the error that ended it.

        While the successor of a lost trainer is awaited, it may still do the call. A trainer that left with
        an error is not counted, nor is a guest that has made no call at all.
        """
        awaited = self._members.awaited(now_s, "trainer")
        trainers = [one for one in self._members.trainers if one.state != "lost" or one in awaited]
        trainers = [one for one in trainers if one.call >= 0 or not self._members.is_guest(one.rank)]
        calls = [one.call for one in trainers if one.state != "left" or one.call >= len(self.jobs)]
        self._give_up_all(now_s, range(self.first_open, min([*calls, len(self.jobs)] if calls else [0])))

    def _give_up_all(self, now_s: float, numbers: Iterable[int]) -> None:
        """Give up the calls of these numbers that are not over."""
        for number in numbers:
            job = self.jobs[number]
            if job.over:
                continue
            job.give_up(now_s)
            leases = counted(job.book.windows.size, "lease")
            self._tell(
                f"call {number} ({job.what}) is given up, with {job.book.done_count} of {leases} done",
                "given_up",
            )

    def _leave_earlier(self, now_s: float, message: OpenJob) -> None:
        """Release a trainer's leases of earlier calls: it is through with them, done or not.

        A fit that it was interrupted in stays its call as long as others only read or save.
        """
        if member := self._members.at("trainer", message.rank):
            if message.what in BESIDE and self._is_paused(member):
                return
            member.call = max(member.call, message.job)
            self.give_up(now_s)
            self.free_leases(member, "has gone on without its part of a sync job", below=message.job)

    def _end_pause(self, now_s: float, message: OpenJob, job: CollectiveJob) -> None:
        """Go on with an interrupted fit; calls that its trainer made beside it and left are given up."""
        if not job.paused_s:
            return
        job.end_pause(now_s)
        at = [one.call for one in self._members.live("trainer") if one.rank != message.rank]
        first = max([message.job, *at]) + 1
        self._give_up_all(now_s, range(first, len(self.jobs)))

    def _is_paused(self, member: Member) -> bool:
        """Return whether a trainer was interrupted in its call, and may go on with it."""
        open_calls = range(self.first_open, len(self.jobs))
        return member.call in open_calls and bool(self.jobs[member.call].paused_s)

    def _job_of(self, message: NextLease | EndLease | Clock) -> CollectiveJob | Failure:
        if self._members.find("trainer", message.rank, message.incarnation) is None:
            return Failure("fenced", "this trainer is not a member of the cluster")
        if message.job >= len(self.jobs):
            return Failure("configuration", f"job {message.job} has not been opened")
        return self.jobs[message.job]

    def _finish(self, now_s: float, number: int, place: str = "") -> None:
        """Write a job's outcome, once; ``place`` is the actual checkpoint that was saved or loaded.

        The path in the details is for display: without credentials, or the folder of several checkpoints of
        which the last are kept.
        """
        job = self.jobs[number]
        if not job.finish(now_s):
            return
        moment, load = moment_of_job(number), job.details.get("load")
        place = place or str(job.details.get("path", ""))
        if job.what == "save":
            self.note_saved(place, moment)
            self.on_saved(shown(place), now_s - job.opened_s)
        elif job.what == "load" and load:
            before = self.basis if load["tables"] else []
            self.basis, self.moment = [*before, {**load, "path": place}], moment


NO_LEASES = np.empty(0, np.uint32)
_COUNTS = ("examples", "epochs", "first_epoch", "epochs_to_come", "lease_rows", "batch_rows")
"""Details that the coordinator computes with."""


def moment_of_job(number: int) -> str:
    """Return the moment at which a save or load of all trainers is done."""
    return f"job {number}"


def _details_problem(details: Mapping[str, Any]) -> str:
    """Validate the numbers that the coordinator computes with later; return the problem or nothing."""
    for name in _COUNTS:
        if type(details.get(name, 0)) is not int or details.get(name, 0) < 0:
            return f"{name}: expected a whole number from 0 on, got {str(details[name])[:80]}"
    wanted = details.get("checkpoint") or {}
    if not isinstance(wanted, Mapping):
        return f"checkpoint: expected a mapping, got {str(wanted)[:80]}"
    for name in ("every_s", "every_batches"):
        value = wanted.get(name, 0)
        if type(value) not in (int, float) or not 0 <= value < inf:
            return f"checkpoint.{name}: expected a number from 0 on, got {str(value)[:80]}"
    return ""


def _counts_in(outcome: Mapping[str, Any]) -> dict[str, int]:
    """Return the details of a job done in an earlier run, from its outcome."""
    return {name: int(outcome[name]) for name in _COUNTS if name in outcome}


def _restored(now_s: float, job: CollectiveJob, table: Mapping[str, Any]) -> str:
    """Restore the leases of a cut; return the problem, or an empty string.

    A cut in a call that only reads has no leases: the call begins anew.
    """
    if "leases" not in table:
        return ""
    book = job.book
    ranks = list(book.ranks) if isinstance(book, RankedLeases) else []
    if ranks != list(table.get("ranks", ())):
        saved = len(table.get("ranks", ()))
        return f"with consistency sync it needs the {saved} trainers that it was made with, got {len(ranks)}"
    try:
        book.restore(table["leases"])
    except (KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    job.go_on(now_s)
    return ""


def _words_of(job: CollectiveJob, payload: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return what a window has found or a trainer has voted, empty for other jobs; reject an invalid one."""
    words = plain_of(payload["words"]) if "words" in payload else {}
    if not isinstance(words, dict) or (words and job.what not in UNTOLD):
        raise ValueError(
            f"words: expected a mapping, of a window or a vote, got {str(words)[:80]} of {job.what}"
        )
    return words


def _place_of(payload: Mapping[str, NDArray[Any]]) -> str:
    """Return the path of a completed save or load; empty where it is not reported."""
    place = plain_of(payload["place"]) if "place" in payload else ""
    if not isinstance(place, str):
        raise ValueError(f"place: expected a text, got {str(place)[:80]}")
    return place


def _given_up(message: OpenJob | NextLease, job: CollectiveJob) -> Failure:
    return Failure(
        "configuration",
        f"trainer {message.rank}: call {message.job} ({job.what}) was given up by the trainers that made it, "
        "and a later trainer can't make up for it; start again",
    )


# --- figures of a status ----------------------------------------------------------------------------------


def results_of(jobs: Sequence[CollectiveJob], until_s: float) -> dict[str, Any]:
    """Return the entries ``results``, ``results_before`` by kind, and ``fit_seconds`` of this run's fits.

    A fit under way counts until ``until_s``: an abandoned one has no other end.
    """
    under_way = (one for one in jobs if one.what == "fit" and not one.over)
    fit_s = next((max(0.0, (one.paused_s or until_s) - one.opened_s) for one in under_way), 0.0)
    done = [(job.what, job.outcome) for job in jobs if job.outcome is not None and job.what not in UNTOLD]
    own = [job.outcome for job in jobs if job.what == "fit" and job.outcome and not job.is_of_before]
    return {
        "results": [outcome for _, outcome in done[-RESULTS_TOLD:]],
        "results_before": dict(Counter(what for what, _ in done[:-RESULTS_TOLD])),
        "fit_seconds": fit_s + sum(float(outcome.get("seconds", 0.0)) for outcome in own),
    }


def examples_of(fits: Sequence[CollectiveJob]) -> tuple[int, int]:
    """Return the trained examples of the whole training, and those from before this run.

    The numbers come from leases, not from trainers' reports: a resumed run has other trainers than the one
    before, a dead trainer's last report may lack applied batches, and a successor may report some again.
    """
    return sum(job.examples_trained for job in fits), sum(job.examples_before for job in fits)


def planned_of(fits: Sequence[CollectiveJob], over: bool) -> tuple[int, int]:
    """Return the planned epochs of the training and the planned examples of all fits, done ones included.

    A call of many epochs is several jobs, one after the other. When all is ``over``, nothing more is planned,
    even if the call requested it: a fit may stop early.
    """
    epochs = _begun_after(fits) + (int(fits[-1].details.get("epochs", 0)) if fits else 0)
    examples = sum(job.examples for job in fits)
    last = fits[-1].details if fits and not over else {}
    to_come, of_last = int(last.get("epochs_to_come", 0)), int(last.get("epochs", 0))
    more = int(last.get("examples", 0)) * to_come // of_last if of_last else 0
    return epochs + to_come, examples + more


def epochs_done(fits: Sequence[CollectiveJob]) -> int:
    """Return the completed epochs of the training."""
    if not fits:
        return 0
    return _begun_after(fits) + fits[-1].epochs_done


def _begun_after(fits: Sequence[CollectiveJob]) -> int:
    """Return the epochs before the last fit, including those of earlier runs that it continues."""
    before = sum(int(job.details.get("epochs", 0)) for job in fits[:-1])
    return int(fits[-1].details.get("first_epoch", before)) if fits else 0
