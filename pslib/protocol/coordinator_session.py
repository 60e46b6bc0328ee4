"""The coordinator's side of the wire, as a pure machine: requests and time in, answers out.

It knows who is there (membership), gives out leases of collective jobs, sums up counters, and orders
everybody to leave in the right sequence: servers stay until every trainer has flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.config import ClusterConfig
from pslib.leases import LeaseBook, RankedLeases, stream_of
from pslib.membership import Member, Membership
from pslib.metrics import ScoreCounts
from pslib.protocol.collective_job import CollectiveJob, epochs_done, examples_of
from pslib.protocol.counters import SERVER_COUNTERS
from pslib.protocol.messages import (
    Beat,
    Clock,
    Clocks,
    Done,
    EndLease,
    Failure,
    Heartbeat,
    JobResult,
    Lease,
    Leave,
    Message,
    NextLease,
    OpenJob,
    Register,
    Registered,
    Result,
    Status,
    Stop,
)
from pslib.protocol.roles import refusal

__all__ = ["CoordinatorSession"]

FAILURE_CHARS_MAX = 1000
"""An error text must fit a message, whatever it quotes."""
NO_OWNERS = np.empty(0, np.uint16)
_PHASES = {"fit": "training", "evaluate": "evaluating", "save": "saving", "load": "loading"}
_SUMMED = (
    "examples",
    "loss_sum",
    "staleness_sum",
    "staleness_count",
    "pushes_sent",
    "updates_sent",
    "bytes_sent",
    "bytes_received",
    "cache_lookups",
    "cache_hits",
    "cache_bytes_saved",
)


class CoordinatorSession:
    """Answers every request of servers, trainers and watchers.

    Parameters
    ----------
    config : ClusterConfig
        What every process that joins is told.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.members = Membership(config)
        self.jobs: list[CollectiveJob] = []
        self.error = ""
        self.events: list[str] = []
        self.stopping = False
        self.saved: str = ""
        self._started_s: float | None = None
        self._handlers = {
            Register: self._register,
            Heartbeat: self._heartbeat,
            OpenJob: self._open_job,
            NextLease: self._next_lease,
            EndLease: self._end_lease,
            Clock: self._clock,
            JobResult: self._job_result,
            Status: self._status,
            Stop: self._stop,
            Leave: self._leave,
        }

    def handle(self, now_s: float, message: Message, role: str | None = None) -> Message:
        """Answer one request; unknown kinds get a `Failure`, and so does what ``role`` may not ask."""
        if forbidden := refusal(role, message):
            return forbidden
        if self._started_s is None:
            self._started_s = now_s
        handler: Any = self._handlers.get(type(message))
        if handler is None:
            return Failure("protocol", f"a coordinator does not take {message.kind}")
        try:
            answer: Message = handler(now_s, message)
        except Exception as error:  # one bad request must not end the one process that everybody needs
            answer = Failure("internal", f"{message.kind}: {type(error).__name__}: {error}")
        if isinstance(answer, Failure):
            return Failure(answer.code, answer.text[:FAILURE_CHARS_MAX])
        return answer

    def tick(self, now_s: float) -> None:
        """Notice who is silent: a trainer's leases go to others, a lost server ends the run."""
        for member in self.members.silent(now_s):
            if member.role == "server":
                self.fail(self._server_lost(member))
            else:
                freed = self._free_leases(member, self.jobs, "is lost")
                self.events.append(
                    f"trainer {member.rank} ({member.where}) is lost; its leases go to the others ({freed})"
                )
        if self._work_is_lost():
            self.fail("all trainers are lost before the work was done")

    def _work_is_lost(self) -> bool:
        """Whether nobody is left for work that is not done; only a trainer that leaves knows that all is."""
        if not self.members.trainers_over():
            return False
        nobody_left = all(member.state == "lost" for member in self.members.trainers)
        return nobody_left or any(not job.book.done for job in self.jobs)

    def fail(self, reason: str) -> None:
        """End the run: everybody is told the reason at the next heartbeat."""
        if not self.error:
            self.error = reason
            self.events.append(reason)

    @property
    def over(self) -> bool:
        """Whether all work is done (or has failed) and everybody has left or is lost."""
        gone = not self.members.live("trainer") and self.members.servers_over()
        return gone and (bool(self.error) or self.stopping or self.members.trainers_over())

    # --- membership ---------------------------------------------------------------------------------------

    def _register(self, now_s: float, message: Register) -> Message:
        if message.role not in ("server", "trainer"):
            return Failure("configuration", f"role: expected server or trainer, got {message.role!r:.80}")
        if self.error:  # whoever waits for others to join need not wait any longer
            return Failure("unavailable", self.error)
        where = f"pid {message.pid} on {message.host}"
        member = self.members.register(now_s, message.role, message.incarnation, message.address, where)
        if isinstance(member, str):
            return Failure("configuration", member)
        missing = self.members.missing(now_s, message.role)
        version, addresses, owners = (0, [], NO_OWNERS) if missing else self._map(0)
        config = self.config.to_dict()
        return Registered(member.rank, not missing, missing, config, version, addresses, owners)

    def _map(self, known_version: int) -> tuple[int, list[str], NDArray[np.uint16]]:
        current = self.members.map
        if current is None or current.version <= known_version:
            return known_version, [], NO_OWNERS
        return current.version, list(current.addresses), current.owners

    def _heartbeat(self, now_s: float, message: Heartbeat) -> Message:
        member = self.members.heard(
            now_s, message.role, message.rank, message.incarnation, message.map_version
        )
        if member is None:
            return self._beat(
                message, "fail", "the coordinator counts this process as lost: it was silent too long"
            )
        if member.state == "live":
            self._take_progress(member, message.progress)
        if self.error:
            return self._beat(message, "fail", self.error)
        if self.stopping or (message.role == "server" and self.members.trainers_over()):
            return self._beat(message, "leave", "")
        return self._beat(message, "go", "")

    def _beat(self, message: Heartbeat, order: str, reason: str) -> Beat:
        version, addresses, owners = self._map(message.map_version)
        return Beat(order, reason, self._streams_done_below(), version, addresses, owners)

    def _take_progress(self, member: Member, progress: Mapping[str, Any]) -> None:
        member.progress.update({key: value for key, value in progress.items() if key != "streams"})
        for stream, acked_below in progress.get("streams", ()):
            job = stream >> 32
            if job < len(self.jobs):
                index = stream & 0xFFFFFFFF
                holder = (member.rank, member.incarnation)
                self.jobs[job].book.progress(holder, {index: acked_below})

    def _streams_done_below(self) -> int:
        for number, job in enumerate(self.jobs):
            if not job.book.done:
                return stream_of(number, job.book.done_below)
        return stream_of(len(self.jobs), 0)

    def _leave(self, now_s: float, message: Leave) -> Message:
        member = self.members.heard(now_s, message.role, message.rank, message.incarnation, 0)
        if member:
            self._take_progress(member, message.progress)
            member.state = "left"
            self._free_leases(member, self.jobs, "has left before the job was done")
        return Done()

    def _stop(self, now_s: float, message: Stop) -> Message:
        if message.failed:
            self.fail(message.reason)
        self.stopping = True
        return Done()

    def _server_lost(self, member: Member) -> str:
        rows, updates = member.progress.get("rows", 0), member.progress.get("updates_applied", 0)
        kept = f"the checkpoint {self.saved} is the last state" if self.saved else "there is no checkpoint"
        return (
            f"server {member.rank} at {member.address} ({member.where}) has been silent for "
            f"{self.config.timing.silence_s:g} s and counts as lost, with about {rows} rows and {updates} "
            f"updates; {kept}"
        )

    # --- jobs ---------------------------------------------------------------------------------------------

    def _open_job(self, now_s: float, message: OpenJob) -> Message:
        if message.job > len(self.jobs):
            return Failure("configuration", f"job {message.job} opened before job {len(self.jobs)}")
        if message.job == len(self.jobs):
            ranks = [member.rank for member in self.members.live("trainer")]
            book = RankedLeases(message.windows, ranks) if message.by_rank else LeaseBook(message.windows)
            self.jobs.append(CollectiveJob(message.what, message.fingerprint, message.details, book, now_s))
        job = self.jobs[message.job]
        if (job.what, job.fingerprint) != (message.what, message.fingerprint):
            return Failure(
                "configuration",
                f"trainer {message.rank}: its call number {message.job} is {message.what!r}, the others' is "
                f"{job.what!r} or has other data or settings; all trainers must run the same script",
            )
        self._give_up_earlier(message)
        if job.book.done:
            self._finish(now_s, job)
        return Result({"ranks": list(job.book.ranks)}) if isinstance(job.book, RankedLeases) else Done()

    def _give_up_earlier(self, message: OpenJob) -> None:
        """A trainer that is here is through with earlier calls, well or not: others may have its leases."""
        if message.rank < len(self.members.trainers):
            member = self.members.trainers[message.rank]
            self._free_leases(member, self.jobs[: message.job], "has gone on without its part of a sync job")

    def _free_leases(self, member: Member, jobs: Iterable[CollectiveJob], why: str) -> int:
        """Others may have a trainer's leases; where nobody may, the run ends. How many leases there were."""
        freed = 0
        for job in jobs:
            freed += len(job.book.trainer_lost((member.rank, member.incarnation)))
            if job.needs(member.rank):
                kept = f"checkpoint {self.saved}" if self.saved else "beginning: there is no checkpoint"
                self.fail(
                    f"trainer {member.rank} ({member.where}) {why}, and with consistency sync every step "
                    f"waits for every trainer; start again from the {kept}"
                )
        return freed

    def _job_of(self, message: NextLease | EndLease | Clock) -> CollectiveJob | Failure:
        if self.members.find("trainer", message.rank, message.incarnation) is None:
            return Failure("fenced", "this trainer is not a member of the cluster")
        if message.job >= len(self.jobs):
            return Failure("configuration", f"job {message.job} has not been opened")
        return self.jobs[message.job]

    def _next_lease(self, now_s: float, message: NextLease) -> Message:
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        member = self.members.trainers[message.rank]
        if member.state != "live":
            return Failure("fenced", "this trainer counts as lost; its leases have gone to others")
        member.heard_s = now_s
        if job.book.done:
            return Lease("done", 0, 0, 0, 0)
        holding = [int(stream) & 0xFFFFFFFF for stream in message.holding if int(stream) >> 32 == message.job]
        since_s = now_s - (now_s if self._started_s is None else self._started_s)
        grant = job.give((message.rank, message.incarnation), holding, since_s)
        if grant is None:
            return Lease("wait", 0, 0, 0, 0)
        stream = stream_of(message.job, grant.index)
        return Lease("held", stream, grant.index, grant.epoch, grant.first_batch, grant.time_s)

    def _end_lease(self, now_s: float, message: EndLease) -> Message:
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        index = message.stream & 0xFFFFFFFF
        if message.stream >> 32 != message.job or index >= job.book.windows.size:
            return Failure("configuration", f"job {message.job} has no lease {message.stream}")
        was_done = job.book.is_done(index)
        payload = message.payload  # read before the lease ends: a broken one must not lose its scores
        scores = payload and ScoreCounts.from_arrays(
            payload["scores"], payload["positives"], payload["negatives"]
        )
        if not job.book.end((message.rank, message.incarnation), index, message.epoch):
            return Failure("fenced", f"lease {message.stream} has another holder by now")
        if scores and not was_done:
            job.add_scores(scores)
        if job.book.done:
            self._finish(now_s, job)
        return Done()

    def _finish(self, now_s: float, job: CollectiveJob) -> None:
        """Write a job's outcome, once."""
        if job.finish(now_s) and job.what == "save":
            self.saved = str(job.details.get("path", ""))

    def _clock(self, now_s: float, message: Clock) -> Message:
        job = self._job_of(message)
        if isinstance(job, Failure):
            return job
        clock = job.clocks.report((message.rank, message.incarnation), message.clock)
        return Clocks(clock, job.clocks.slowest(job.book.holders(), otherwise=clock))

    def _job_result(self, now_s: float, message: JobResult) -> Message:
        if message.job >= len(self.jobs):
            return Failure("configuration", f"job {message.job} has not been opened")
        outcome = self.jobs[message.job].outcome
        return Result({"done": outcome is not None, "outcome": outcome or {}})

    # --- status -------------------------------------------------------------------------------------------

    def _phase(self) -> str:
        if self.error:
            return "failed"
        if self.over:
            return "done"
        running = [job for job in self.jobs if not job.book.done]
        return _PHASES.get(running[0].what, "waiting") if running else "waiting"

    def _status(self, now_s: float, message: Status) -> Message:
        return Result(self.status(now_s))

    def status(self, now_s: float) -> dict[str, Any]:
        """Cumulative counters of the whole cluster, and what it is doing."""
        values: dict[str, Any] = dict.fromkeys((*_SUMMED, *SERVER_COUNTERS), 0)
        positive, negative = np.zeros(512, np.int64), np.zeros(512, np.int64)
        staleness_max = lead_max = 0
        staleness_counts = np.zeros(0, np.int64)
        for member in self.members.trainers:
            for key in _SUMMED:
                values[key] += member.progress.get(key, 0)
            positive += np.asarray(member.progress.get("bins_positive", 0), np.int64)
            negative += np.asarray(member.progress.get("bins_negative", 0), np.int64)
            staleness_max = max(staleness_max, member.progress.get("staleness_max", 0))
            lead_max = max(lead_max, member.progress.get("lead_max", 0))
            counts = np.asarray(member.progress.get("staleness_counts", ()), np.int64)
            if counts.size:
                staleness_counts = counts + staleness_counts if staleness_counts.size else counts
        for member in self.members.servers:
            for key in SERVER_COUNTERS:
                values[key] += member.progress.get(key, 0)
        fits = [job for job in self.jobs if job.what == "fit"]
        running = fits[-1] if fits else None
        values["examples"] = examples_of(fits, values["examples"])
        return values | {
            "phase": self._phase(),
            "job": max(len(self.jobs) - 1, 0),
            "epochs": sum(int(job.details.get("epochs", 0)) for job in fits),
            "epoch": epochs_done(fits),
            "examples_total": sum(int(job.details.get("examples", 0)) for job in fits),
            "leases_done": running.book.done_count if running else 0,
            "leases": running.book.windows.size if running else 0,
            "bins_positive": positive.tolist(),
            "bins_negative": negative.tolist(),
            "staleness_max": staleness_max,
            "staleness_counts": staleness_counts.tolist(),
            "lead_max": lead_max,
            "servers": len(self.members.live("server")),
            "trainers": len(self.members.live("trainer")),
            "trainers_lost": [one.where for one in self.members.trainers if one.state == "lost"],
            "servers_configured": self.config.servers,
            "trainers_configured": self.config.trainers,
            "seconds": now_s - (self._started_s or now_s),
            "results": [job.outcome for job in self.jobs if job.outcome is not None],
            "error": self.error or None,
            "events": self.events[-100:],
            "saved": self.saved,
        }
