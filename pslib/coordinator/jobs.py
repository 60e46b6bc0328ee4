"""Registry of collective jobs: which trainer holds which lease, and results of jobs. A pure machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.coordinator.job import CollectiveJob
from pslib.coordinator.leases import LeaseBook, RankedLeases, stream_of
from pslib.coordinator.membership import Member, Membership
from pslib.metrics.metrics import ScoreCounts
from pslib.storage import shown
from pslib.text import counted
from pslib.wire.fields import plain_of
from pslib.wire.messages import (
    Clock,
    Clocks,
    Done,
    EndLease,
    Failure,
    JobResult,
    Lease,
    Message,
    NextLease,
    OpenJob,
    Result,
)

__all__ = ["JobRegistry", "moment_of_job"]


class JobRegistry:
    """All jobs of a cluster, in the order in which scripts call them.

    Parameters
    ----------
    members : Membership
        Who is here.
    fail : callable
        Ends the run, with the reason: when work can't be done any more.
    tell : callable
        Takes one line for people.

    Attributes
    ----------
    jobs : list of CollectiveJob
    saved : str
        Path of the last checkpoint that was saved, with keys that are in it; empty before.
    basis : list of dict
        Which checkpoints, loaded one after the other, give the last state that was saved or loaded: fields of
        `Load` without a stem. Empty: the first values.
    moment : str
        When that was: trainers count what is acknowledged since.
    """

    def __init__(self, members: Membership, fail: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._members, self._fail, self._tell = members, fail, tell
        self.jobs: list[CollectiveJob] = []
        self._first_open = 0
        self.saved = self.moment = ""
        self.basis: list[dict[str, Any]] = []

    def note_saved(self, path: str, moment: str) -> None:
        """There is a checkpoint of all servers, as they were at a moment."""
        self.saved, self.basis, self.moment = path, [{"path": path}], moment

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
        if job.book.done:
            self._finish(now_s, message.job)
        return Result({"ranks": list(job.book.ranks)}) if isinstance(job.book, RankedLeases) else Done()

    def _book_for(self, message: OpenJob) -> LeaseBook:
        """The leases of a new job; those that go by rank are the run's own trainers' and its opener's.

        Each step waits for all of them. A guest, such as a notebook that reads rows, may never make the call,
        so only one that makes it first is waited for; when it comes second, the others know their ranks.
        """
        if not message.by_rank:
            return LeaseBook(message.windows)
        ranks = [member.rank for member in self._members.live("trainer")]
        own = [rank for rank in ranks if rank == message.rank or not self._members.is_guest(rank)]
        return RankedLeases(message.windows, own)

    def _pass_over(self, now_s: float, number: int, resume: Mapping[str, Any]) -> None:
        """Jobs that a checkpoint says are done keep their numbers, which stand in the names of pushes."""
        for about in resume.get("jobs", [])[len(self.jobs) : number]:
            details = _counts_in(about["outcome"] or {})
            job = CollectiveJob(about["what"], about["fingerprint"], details, LeaseBook(NO_LEASES), now_s)
            job.outcome = about["outcome"]
            job.go_on(now_s)
            self.jobs.append(job)
        if number == 1 and not self.jobs:  # 0 is kept free for a load before all others
            self.jobs.append(CollectiveJob("begin", 0, {}, LeaseBook(NO_LEASES), now_s))

    def next_lease(self, now_s: float, message: NextLease, since_s: float) -> Message:
        """A lease for a trainer; ``since_s`` is the time since the cluster began."""
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        if failure := self.fenced(message):
            return failure
        self._members.heard(now_s, "trainer", message.rank, message.incarnation, 0)
        if job.given_up:  # which whoever asks must not take for done
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
        """What a trainer hears that is no live one; also while all wait, when it asks whether it may save."""
        member = self._members.find("trainer", message.rank, message.incarnation)
        if member is None or member.state != "live":
            return Failure("fenced", "this trainer counts as lost; its leases have gone to others")
        return None

    def end_lease(self, now_s: float, message: EndLease) -> Message:
        """All batches of a lease are applied; a lease that ends twice counts once."""
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        index = message.stream & 0xFFFFFFFF
        if message.stream >> 32 != message.job or index >= job.book.windows.size:
            return Failure("configuration", f"job {message.job} has no lease {message.stream}")
        was_done = job.book.is_done(index)
        if "given_back" in message.payload:
            job.take_back((message.rank, message.incarnation))
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
        """How far a trainer is; answered with how far the slowest is."""
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        clock = job.clocks.report((message.rank, message.incarnation), message.clock)
        return Clocks(clock, job.clocks.slowest(job.book.holders(), otherwise=clock))

    def job_result(self, now_s: float, message: JobResult) -> Message:
        """What a job came to, once it has."""
        if message.job >= len(self.jobs):
            return Failure("configuration", f"job {message.job} has not been opened")
        outcome = self.jobs[message.job].outcome
        return Result({"done": outcome is not None, "outcome": outcome or {}})

    @property
    def first_open(self) -> int:
        """All jobs below this number are over; a stream of months has made a hundred thousand of them."""
        while self._first_open < len(self.jobs) and self.jobs[self._first_open].over:
            self._first_open += 1
        return self._first_open

    # --- what heartbeats and losses mean for leases -------------------------------------------------------

    def progress(self, member: Member, streams: Iterable[tuple[int, int]]) -> None:
        """A trainer says, of each stream it holds, below which batch everything is acknowledged."""
        for stream, acked_below in streams:
            job = stream >> 32
            if job < len(self.jobs):
                holder = (member.rank, member.incarnation)
                self.jobs[job].book.progress(holder, {stream & 0xFFFFFFFF: acked_below})

    def streams_done_below(self) -> int:
        """All streams of leases below this one are over."""
        number = self.first_open
        return stream_of(number, self.jobs[number].book.done_below if number < len(self.jobs) else 0)

    def is_about_files(self, number: int) -> bool:
        """Whether a job saves or loads all units, so that none may be on its way meanwhile."""
        return number < len(self.jobs) and self.jobs[number].what in ("save", "load")

    @property
    def at_files(self) -> bool:
        """Whether somebody is at such a job; one that nobody is at waits for what moves, see `next_lease`."""
        numbers = range(self.first_open, len(self.jobs))
        return any(self.is_about_files(number) and self.jobs[number].book.holders() for number in numbers)

    def goes_on_before(self, number: int) -> bool:
        """Whether somebody is in a call before this one, and has work of it or may get some.

        A client that trains nothing is in none.
        """
        return any(call < number for call in self._calls_open())

    def _calls_open(self) -> list[int]:
        """Numbers of calls from the first open one on that trainers are in.

        Who has made no call is in none, nor is one at which its call has failed: both may never make another.
        """
        first = self.first_open
        live = [one for one in self._members.live("trainer") if one.call >= first]
        return [
            one.call
            for one in live
            if one.call >= len(self.jobs) or (one.rank, one.incarnation) not in self.jobs[one.call].failed_at
        ]

    def is_at_files_after(self, number: int) -> bool:
        """Whether somebody saves or loads in a later call than this one."""
        later = range(max(number + 1, self.first_open), len(self.jobs))
        return any(self.is_about_files(one) and self.jobs[one].book.holders() for one in later)

    def is_at_files_before(self, number: int) -> bool:
        """Whether a save or load before this call is not over, and somebody is in it or comes to it.

        Who has caught what ended it there has gone on alone: another one does it, or does it again.
        """
        at = min(self._calls_open(), default=number)
        return any(self.is_about_files(one) and not self.jobs[one].over for one in range(at, number))

    @property
    def all_done(self) -> bool:
        """Whether no job is open."""
        return self.first_open == len(self.jobs)

    def needs(self, rank: int) -> bool:
        """Whether a job can't be done without a trainer at this place."""
        return any(job.needs(rank) for job in self.jobs[self.first_open :])

    def free_leases(self, member: Member, why: str, below: int | None = None, fatal: bool = True) -> int:
        """Others may have a trainer's leases (of jobs ``below``); how many.

        If nobody else may have them, the run ends, unless a successor is awaited (not ``fatal``).
        """
        freed = 0
        for job in self.jobs[self.first_open : below]:
            freed += len(job.book.trainer_lost((member.rank, member.incarnation)))
            if fatal and job.needs(member.rank):
                saved = shown(self.saved)
                kept = f"checkpoint {saved}" if saved else "beginning: there is no checkpoint"
                self._fail(
                    f"trainer {member.rank} ({member.where}) {why}, and with consistency sync every step "
                    f"waits for every trainer; start again from the {kept}"
                )
        return freed

    def has_left(self, now_s: float, member: Member, well: bool) -> None:
        """A trainer has left; ``well``: its script was through with all that it has called, done or not."""
        if well:
            member.call = max(member.call, len(self.jobs))
        self.give_up(now_s)
        self.free_leases(member, "has left before the job was done")

    def give_up(self, now_s: float) -> None:
        """Give up each call that every trainer has gone on without: its script has caught what ended it.

        One that is lost may have a successor, which would do it, while that is awaited; one that has left
        with an error has no part in it any more, nor has a guest that has made no call at all.
        """
        awaited = self._members.awaited(now_s, "trainer")
        trainers = [one for one in self._members.trainers if one.state != "lost" or one in awaited]
        trainers = [one for one in trainers if one.call >= 0 or not self._members.is_guest(one.rank)]
        calls = [one.call for one in trainers if one.state != "left" or one.call >= len(self.jobs)]
        for number in range(self.first_open, min([*calls, len(self.jobs)] if calls else [0])):
            job = self.jobs[number]
            if job.over:
                continue
            job.give_up(now_s)
            leases = counted(job.book.windows.size, "lease")
            self._tell(f"call {number} ({job.what}) is given up, with {job.book.done_count} of {leases} done")

    def _leave_earlier(self, now_s: float, message: OpenJob) -> None:
        """A trainer that is here is through with earlier calls, well or not: others may have its leases."""
        if member := self._members.at("trainer", message.rank):
            member.call = max(member.call, message.job)
            self.give_up(now_s)
            self.free_leases(member, "has gone on without its part of a sync job", below=message.job)

    def _job_of(self, message: NextLease | EndLease | Clock) -> CollectiveJob | Failure:
        if self._members.find("trainer", message.rank, message.incarnation) is None:
            return Failure("fenced", "this trainer is not a member of the cluster")
        if message.job >= len(self.jobs):
            return Failure("configuration", f"job {message.job} has not been opened")
        return self.jobs[message.job]

    def _finish(self, now_s: float, number: int, place: str = "") -> None:
        """Write a job's outcome, once; ``place`` is the checkpoint itself that was saved or loaded.

        What details say is for people: without keys, or the folder of several of which the last are kept.
        """
        job = self.jobs[number]
        if not job.finish(now_s):
            return
        moment, load = moment_of_job(number), job.details.get("load")
        place = place or str(job.details.get("path", ""))
        if job.what == "save":
            self.note_saved(place, moment)
        elif job.what == "load" and load:
            before = self.basis if load["tables"] else []
            self.basis, self.moment = [*before, {**load, "path": place}], moment


NO_LEASES = np.empty(0, np.uint32)
_COUNTS = ("examples", "epochs", "first_epoch", "epochs_to_come", "lease_rows", "batch_rows")
"""Details with which the coordinator computes by itself."""


def moment_of_job(number: int) -> str:
    """The moment at which a save or load of all trainers is done."""
    return f"job {number}"


def _details_problem(details: Mapping[str, Any]) -> str:
    """What is wrong with the numbers with which the coordinator computes by itself later; or nothing."""
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
    """The details of a job that an earlier run has done, as its outcome tells them."""
    return {name: int(outcome[name]) for name in _COUNTS if name in outcome}


def _restored(now_s: float, job: CollectiveJob, table: Mapping[str, Any]) -> str:
    """Take up the leases of a cut, and go on with them; what is wrong with them, or nothing.

    A cut in a call that only read has none: the call begins anew.
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
    """What the one lease of a window has yielded, nothing of other jobs; refuses what is no outcome."""
    words = plain_of(payload["words"]) if "words" in payload else {}
    if not isinstance(words, dict) or (words and job.what != "window"):
        raise ValueError(
            f"words: expected a mapping that a window has found, got {str(words)[:80]} of {job.what}"
        )
    return words


def _place_of(payload: Mapping[str, NDArray[Any]]) -> str:
    """Where whoever did a save or load has done it; nothing where nobody says so."""
    place = plain_of(payload["place"]) if "place" in payload else ""
    if not isinstance(place, str):
        raise ValueError(f"place: expected a text, got {str(place)[:80]}")
    return place


def _given_up(message: OpenJob | NextLease, job: CollectiveJob) -> Failure:
    return Failure(
        "configuration",
        f"trainer {message.rank}: call {message.job} ({job.what}) was given up by the trainers that made it, "
        "and whoever comes later can't make up for it; start again",
    )
