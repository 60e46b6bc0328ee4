"""Coordinator session: the coordinator's protocol as a pure state machine, requests and time in, replies out.

It tracks members (`Membership`), grants leases of collective jobs (`JobRegistry`), sums up counters
(`figures_of`), and orders processes to leave in sequence: servers stay until every trainer has flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.config import ClusterConfig
from pslib.coordinator.checkpoint_barrier import CheckpointBarrier
from pslib.coordinator.elasticity import Elasticity
from pslib.coordinator.events import Events
from pslib.coordinator.failure_detector import FailureDetector
from pslib.coordinator.jobs import START_AGAIN, CollectiveJob, JobRegistry, epochs_done
from pslib.coordinator.journal import CoordinatorJournal
from pslib.coordinator.membership import Member, Membership
from pslib.coordinator.rebalance import Rebalance
from pslib.coordinator.recovery import Recovery
from pslib.coordinator.stack_dumps import StackDumps
from pslib.coordinator.status import details_of, figures_of, phase_of, sound_entries
from pslib.text import counted
from pslib.wire.error_codes import COUNTS_AS_LOST, fitting
from pslib.wire.fields import Message, plain_of
from pslib.wire.journal import Entry, Note
from pslib.wire.messages import (
    STACKS,
    Beat,
    Clock,
    CutReady,
    CutStep,
    Done,
    DumpStacks,
    EndLease,
    Failure,
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
    Result,
    SaveSoon,
    Scale,
    Status,
    Stop,
)
from pslib.wire.messages import Events as AskEvents
from pslib.wire.permissions import refusal

NO_OWNERS = np.empty(0, np.uint16)


class CoordinatorSession:
    """Coordinator session: handlers for all requests of servers, trainers and watchers.

    Parameters
    ----------
    config : ClusterConfig
        Configuration sent to every process that joins.
    term : int
        Number of earlier starts of the coordinator; see `begin_again`.
    ranks_named : bool
        See `pslib.coordinator.membership.Membership`.
    """

    def __init__(self, config: ClusterConfig, term: int = 0, ranks_named: bool = False) -> None:
        self.config, self.term = config, term
        self.pushes_missing = 0
        self._missed: set[tuple[int, int]] = set()
        """Reported server losses, by incarnations of server and reporter: late duplicates are ignored."""
        self.superseded = False
        """True if a member knows a coordinator of a higher term: then this one ends."""
        self.members = Membership(config, ranks_named)
        self.error = ""
        self.history = Events()
        tell = self.history.tell
        self.registry = JobRegistry(self.members, self.fail, tell)
        self.registry.on_saved = self._saved_by_call
        self.stopping = False
        self._work_over = False  # a server has been told that the work is over
        self.journal = CoordinatorJournal(self.members, self.registry)
        self.history.on_event = self.journal.happened
        self.history.replaying = lambda: self.journal.replaying
        self.failure_detector = FailureDetector(
            self.members, self.registry, self.history, self.fail, self.journal.note_member
        )
        self.moves = Rebalance(self.members, tell)
        self.moves.on_record = lambda record: self.journal.note(self._now_s, "move", record=record)
        self.elasticity = Elasticity(self.members, self.moves, tell)
        self.cuts = CheckpointBarrier(self.members, self.registry, self.history, term)
        self.cuts.on_saved = self._saved
        self.recoveries = Recovery(self.members, self.registry, self.moves, tell, self.fail)
        self.stacks = StackDumps(self.members)
        self.about: Callable[[], dict[str, Any]] = dict
        """Returns where the coordinator's process is and what it takes; that process sets it."""
        self._started_s: float | None = None
        self._run_began_s = 0.0
        self._now_s = 0.0
        self._resumed_s = 0.0
        self._handlers = {
            Register: self._register,
            Heartbeat: self._heartbeat,
            OpenJob: self._open_job,
            NextLease: self._next_lease,
            EndLease: self._end_lease,
            Clock: self.registry.clock,
            JobResult: self.registry.job_result,
            Status: self._status,
            Stop: self._stop,
            Leave: self._leave,
            Missing: self._missing,
            Scale: self.moves.scale,
            NextHand: self.moves.next_hand,
            CutReady: self._cut_ready,
            CutStep: self.cuts.step,
            SaveSoon: self.cuts.ask,
            AskEvents: self._events_after,
            DumpStacks: self.stacks.ask,
        }

    def handle(self, now_s: float, message: Message, role: str | None = None) -> Message:
        """Reply to a request; unknown kinds, and kinds that ``role`` may not send, get a `Failure`."""
        if forbidden := refusal(role, message):
            return forbidden
        self._now_s = now_s
        if self._started_s is None:
            self.begin(now_s)
        handler: Any = self._handlers.get(type(message))
        if handler is None:
            return Failure("protocol", f"a coordinator does not take {message.kind}")
        self.journal.before(message)
        try:
            answer: Message = handler(now_s, message)
        except Exception as error:  # one bad request must not end the coordinator
            answer = Failure("internal", f"{message.kind}: {type(error).__name__}: {error}")
        self.journal.after(now_s, message, answer)
        return fitting(answer)

    def tick(self, now_s: float) -> None:
        """Detect silent members and late successors; `FailureDetector` decides what follows."""
        self._now_s = now_s
        self.failure_detector.tick(now_s)
        over = self.stopping or bool(self.error)
        busy = self.registry.at_files or self.cuts.busy or over
        self.elasticity.tick(now_s, busy)
        self.moves.tick(now_s, busy)
        self.cuts.tick(now_s, over or self.moves.wave is not None, self.since_s(now_s))
        self.journal.write_events(now_s)

    def begin(self, now_s: float) -> None:
        """Start the cluster's time, at the first request."""
        self._started_s = self._run_began_s = now_s
        self.journal.note(now_s, "began")

    def begin_again(self, now_s: float) -> None:
        """Start serving as a successor: the predecessor's records are replayed."""
        self._now_s = now_s
        self.members.begin_again(now_s)

    def plain(self) -> dict[str, Any]:
        """Return the persistent state as plain values, for `restore`."""
        return {
            "members": self.members.plain(),
            "jobs": [job.plain() for job in self.registry.jobs],
            "saved": self.registry.saved,
            "basis": [self.registry.basis, self.registry.moment],
            "moves": self.moves.records(),
            "history": self.history.plain(),
            "error": self.error,
            "stopping": self.stopping,
            "pushes_missing": self.pushes_missing,
            "missed": [list(pair) for pair in sorted(self._missed)],
            "started_s": self._started_s,
            "resumed_s": self._resumed_s,
            "run_began_s": self._run_began_s,
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Restore the state from another session's `plain`, before any request."""
        self.members.restore(plain["members"])
        self.registry.jobs[:] = map(CollectiveJob.of_plain, plain["jobs"])
        self.registry.saved = plain["saved"]
        self.registry.basis, self.registry.moment = plain.get("basis", ([], ""))
        for record in plain["moves"]:
            self.moves.replay(record)
        if "history" in plain:  # an older version had lines only
            self.history.restore(plain["history"])
        self.error, self.stopping = plain["error"], plain["stopping"]
        self.pushes_missing = plain["pushes_missing"]
        self._missed = {(trainer, server) for trainer, server in plain.get("missed", ())}
        self._started_s, self._resumed_s = plain["started_s"], plain["resumed_s"]
        self._run_began_s = plain.get("run_began_s", self._started_s or 0.0)

    def image(self, now_s: float) -> Note:
        """Return a note of the whole session, which makes earlier records of its journal unnecessary."""
        return {"note": "image", "at_s": now_s, "state": self.plain()}

    def replay(self, entries: Sequence[Entry]) -> float:
        """Replay a record of the journal; return its time."""
        note = entries[0]
        assert isinstance(note, Mapping)
        self.journal.replaying = True
        try:
            if len(entries) > 1:
                assert isinstance(entries[1], Message)
                self.handle(note["at_s"], entries[1])
            else:
                self._redo(note)
            for event in note.get("events", ()):
                self.history.replay(event)
        finally:
            self.journal.replaying = False
        return float(note["at_s"])

    def _redo(self, note: Mapping[str, Any]) -> None:
        """Apply a note of the journal."""
        what = note["note"]
        if what == "began":
            self.begin(note["at_s"])
        elif what == "fail":
            self.fail(note["reason"])
        elif what == "image":
            self.restore(note["state"])
        elif what == "resumed":
            self.resume(note["at_s"])
        elif what == "move":
            self.moves.replay(note["record"])
        elif what == "saved":
            self.registry.note_saved(note["path"], note["moment"])
        elif what != "events":
            self._redo_of_member(note)

    def _redo_of_member(self, note: Mapping[str, Any]) -> None:
        member = self.members.find(note["role"], note["rank"], note["incarnation"])
        assert member is not None
        member.progress = dict(note["progress"])
        if note["note"] == "lost":
            self.members.lose(note["at_s"], member)
            self.failure_detector.lost(note["at_s"], member)

    def resume(self, now_s: float) -> None:
        """Resume a run that had ended: all members are awaited, and the cause of its end is cleared."""
        self.journal.note(now_s, "resumed")
        self.error, self.stopping, self._work_over = "", False, False
        self._run_began_s = now_s
        self.members.resume(now_s)
        for member in self.members.trainers:
            self.registry.free_leases(member, "has ended", fatal=False)
        for job in self.registry.jobs:
            job.go_on(now_s)

    def fail(self, reason: str) -> None:
        """End the run: every process gets the reason with its next heartbeat."""
        if not self.error:
            self.journal.note(self._now_s, "fail", reason=reason)
            self.error = reason
            self.history.tell(reason, "failed")

    @property
    def events(self) -> list[str]:
        """Return the lines for people."""
        return self.history.lines

    @property
    def has_ended_early(self) -> bool:
        """Return True if all processes are gone, or the run has failed, before its work was done."""
        gone = not self.members.live("trainer") and self.members.servers_over()
        began = bool(self.members.trainers)
        done = any(one.state == "left" and not one.preempted for one in self.members.trainers)
        return bool(self.error) or (began and gone and not (done and self.registry.all_done))

    @property
    def over(self) -> bool:
        """Return True if all work is done (or has failed) and every process has left or is lost."""
        gone = not self.members.live("trainer") and self.members.servers_over()
        return gone and (
            bool(self.error) or self.stopping or self.failure_detector.trainers_over(self._now_s)
        )

    # --- membership ---------------------------------------------------------------------------------------

    def _register(self, now_s: float, message: Register) -> Message:
        refused = (
            None if self.journal.replaying else self._refused(now_s, message)
        )  # journalled ones had joined
        if refused:
            return refused
        held = self.members.holder(message.role, message.rank, message.incarnation, message.generation)
        if held is not None:
            return self._registered(held, f"{message.role} {held.rank}, {held.where}, which is alive, to end")
        where = f"pid {message.pid} on {message.host}"
        before = self.members.at(message.role, message.rank)
        was_live = before is not None and before.state == "live"
        own = (message.incarnation, message.address, where, message.rank, message.generation)
        changes = self.members.changes
        member = self.members.register(now_s, message.role, *own)
        if isinstance(member, str):
            return Failure("configuration", member)
        if before is None and self.members.changes > changes:  # it registers again until all are there
            self._note_joined(member)
        if before is not None and member is not before and member.rank == before.rank:
            self.failure_detector.replaced(now_s, before, member, was_live)
            if not self.recoveries.joined(before, member, message.empty):
                return Failure("unavailable", self.error)
        return self._registered(member, self.members.missing(now_s, message.role))

    def _note_joined(self, member: Member) -> None:
        """Add an event for a new member: a line for people where a trainer comes after the start."""
        late = member.role == "trainer" and self.members.has_started
        add = self.history.tell if late else self.history.note
        add(f"{member.role} {member.rank} ({member.where}) has joined", "joined", member.role, member.rank)

    def _refused(self, now_s: float, message: Register) -> Failure | None:
        """Return the refusal of a registration, whatever rank it asks for; None if there is none."""
        if message.role not in ("server", "trainer"):
            return Failure("configuration", f"role: expected server or trainer, got {message.role!r:.80}")
        if self.error:  # processes that wait for others to join need not wait any longer
            return Failure("unavailable", self.error)
        if message.role == "trainer" and self._has_no_work(now_s, message.rank):
            return Failure("work-done", "all work of this cluster is done; start a new one for other work")
        most = self.config.trainers_max  # a scheduler starts it again: it may have room then
        if message.role == "trainer" and 0 < most <= self._others_training(message):
            text = f"{counted(most, 'trainer trains', 'trainers train')}, the most: see cluster.trainers_max"
            return Failure("unavailable", text)
        problem = self.recoveries.refusal(message)
        return Failure("configuration", problem) if problem else None

    def _others_training(self, message: Register) -> int:
        """Return the number of live trainers without the one that registers, and that of its rank."""
        own = (message.incarnation, message.rank)
        return sum(one.incarnation != own[0] and one.rank != own[1] for one in self.members.live("trainer"))

    def _registered(self, member: Member, missing: str) -> Registered:
        """Return the reply to a registration; ``missing``: what the process has to wait for."""
        version, addresses, owners = (0, [], NO_OWNERS) if missing else self._map(0)
        about = (member.rank, not missing, missing, self.config.to_dict(), version, addresses, owners)
        return Registered(*about, self.term, {} if missing else self._begins(member))

    def _begins(self, member: Member) -> dict[str, Any]:
        """Return how a server without its predecessor's state begins, and its generation; else nothing."""
        begins = self.recoveries.begins(member)
        return begins and begins | {"generation": member.generation}

    def _has_no_work(self, now_s: float, rank: int) -> bool:
        """Return True if a trainer that asks for a rank comes too late: the others have done all work."""
        before = self.members.at("trainer", rank)
        done = bool(self.registry.jobs) and self.registry.all_done
        returns = before is not None and before.preempted and not done  # it was asked to leave its work
        return self._work_over or (not returns and self.failure_detector.trainers_over(now_s))

    def _map(self, known_version: int) -> tuple[int, list[str], NDArray[np.uint16]]:
        current = self.members.map
        if current is None or current.version <= known_version:
            return known_version, [], NO_OWNERS
        return current.version, list(current.addresses), current.owners

    def _heartbeat(self, now_s: float, message: Heartbeat) -> Message:
        if message.term > self.term:
            self.superseded = True
            return Failure("fenced", f"a coordinator of term {message.term} serves; this one has {self.term}")
        member = self.members.heard(
            now_s, message.role, message.rank, message.incarnation, message.map_version
        )
        if member is None:
            self._note_fenced(message)
            return self._beat(message, "fail", self._why_fenced(message))
        if member.state == "live":
            self.stacks.heard(now_s, member, message.progress)
            self._take_progress(member, message.progress)
            self.cuts.heard(now_s, member, self.since_s(now_s))
        if self.error:
            return self._beat(message, "fail", self.error)
        if self.stopping or (message.role == "server" and self._server_may_leave(now_s, message.rank)):
            return self._beat(message, "leave", "")
        if message.progress.get("leaving") and (refused := self._drain(now_s, member)):
            return self._beat(message, "leave", refused)
        return self._beat(message, "go", STACKS if self.stacks.is_wanted(now_s, member) else "")

    def _note_fenced(self, message: Heartbeat) -> None:
        """Add an event for a member that counts as lost and beats again, once."""
        former = (one for one in self.members.ever(message.role) if one.incarnation == message.incarnation)
        member = next(former, None)
        if member is None or member.fenced:
            return
        member.fenced = True
        text = f"{message.role} {message.rank} is alive and fenced: {self._why_fenced(message)}"
        self.history.note(text, "fenced", message.role, message.rank)

    def _drain(self, now_s: float, server: Member) -> str:
        """Drain a server that was asked to leave; return why not, or an empty string."""
        servers = [one for one in self.members.servers if one.state != "left"]
        if all(one.progress.get("leaving") for one in servers):  # the run ends, to be resumed with all
            self.moves.take_back()
            return "no server would be left to take its units: it goes with what it owns"
        answer = self.moves.drain(now_s, server.rank, server.incarnation)
        return answer.text if isinstance(answer, Failure) else ""

    def _server_may_leave(self, now_s: float, rank: int) -> bool:
        self._work_over = self._work_over or self.failure_detector.trainers_over(now_s)
        return self._work_over or self.moves.may_leave(now_s, rank)

    def _why_fenced(self, message: Heartbeat) -> str:
        now = self.members.at(message.role, message.rank)
        if now is None or now.incarnation == message.incarnation:
            return f"{COUNTS_AS_LOST}: it was silent too long"
        return (
            f"{COUNTS_AS_LOST}: {message.role} {message.rank} was restarted as {now.where} "
            f"(generation {now.generation})"
        )

    def _beat(self, message: Heartbeat, order: str, reason: str) -> Beat:
        version, addresses, owners = self._map(message.map_version)
        hand = message.role == "server" and self.moves.hand_for(message.rank)
        below, cut = self.registry.streams_done_below(), self.cuts.beat(message.role)
        return Beat(order, reason, below, version, addresses, owners, hand, self.term, cut)

    def _take_progress(self, member: Member, progress: Mapping[str, Any]) -> None:
        told = sound_entries(progress)
        member.progress.update({key: told[key] for key in told.keys() - {"streams", STACKS}})
        self.registry.progress(member, progress.get("streams", ()))

    def _leave(self, now_s: float, message: Leave) -> Message:
        member = self.members.heard(now_s, message.role, message.rank, message.incarnation, 0)
        if member:
            self._take_progress(member, message.progress)
            if member.state != "left":
                self.history.note(f"{member.role} {member.rank} has left", "left", member.role, member.rank)
            member.state = "left"
            member.preempted = message.preempted
            if member.role == "trainer":
                well = bool(message.progress.get("well")) and not message.preempted
                self.registry.has_left(now_s, member, well)
            else:
                self._server_left(now_s, member)
        return Done()

    def _server_left(self, now_s: float, member: Member) -> None:
        """Handle the leave of a server: one that owns units takes them along, an empty one is done."""
        current = self.members.map
        if current is not None and not self.members.is_owner(member):
            self.members.map = current.with_address(member.rank, "")
        elif member.preempted and self.members.live("trainer"):
            self.members.lose(now_s, member)  # its log may bring it back
            self.failure_detector.server_gone(member, "was asked to leave (SIGTERM)")

    def _missing(self, now_s: float, message: Missing) -> Message:
        """Handle a server that lost acknowledged pushes: the run must no longer be reported as exact."""
        if self.members.find("trainer", message.rank, message.incarnation) is None:
            return Failure("fenced", "this trainer is not a member of the cluster")
        server = self.members.at("server", message.server)
        told = message.incarnation, 0 if server is None else server.incarnation
        if told in self._missed:
            return Done()
        self._missed.add(told)
        self.pushes_missing += message.pushes
        bare = server is not None and server.bare
        loss = (
            f"server {message.server} came back without {message.pushes} of the last {message.asked} pushes "
            f"that it had acknowledged to trainer {message.rank}: "
            + (f"it began at {self.recoveries.beginning}" if bare else "its log has lost its end")
        )
        self.history.tell(loss, "missing", "server", message.server)
        if self.config.recovery != "partial":
            self.fail(f"{loss}; {START_AGAIN} a checkpoint, or with recovery partial to go on without them")
        return Done()

    def _saved(self, path: str, moment: str) -> None:
        """Record a cut that was committed as a checkpoint."""
        self.journal.note(self._now_s, "saved", path=path, moment=moment)
        self.registry.note_saved(path, moment)

    def _saved_by_call(self, path: str, seconds: float) -> None:
        """Note a checkpoint that the trainers' script has saved; its size is not known here."""
        about = {"path": path, "kind": "full", "bytes": None, "took_s": seconds, "pause_s": None}
        self.history.saved(f"saved {path} in {seconds:.1f} s", about, told=False)

    def _stop(self, now_s: float, message: Stop) -> Message:
        if message.failed:
            self.fail(message.reason)
        elif not self.stopping:
            self.history.note(f"the run was asked to end: {message.reason}", "stopped")
        self.stopping = True
        return Done()

    # --- jobs and status ----------------------------------------------------------------------------------

    def since_s(self, now_s: float) -> float:
        """Return the cluster's time: seconds since the first request, a resumed training's included."""
        return 0.0 if self._started_s is None else now_s - self._started_s + self._resumed_s

    def run_s(self, now_s: float) -> float:
        """Return the seconds of this run alone, since its first request."""
        return 0.0 if self._started_s is None else now_s - self._run_began_s

    def _open_job(self, now_s: float, message: OpenJob) -> Message:
        known = len(self.registry.jobs)
        answer = self.registry.open_job(now_s, message)
        if message.resume.size and len(self.registry.jobs) > known:  # its leases keep the time of the cut
            self._resumed_s += float(plain_of(message.resume)["since_s"]) - self.since_s(now_s)
        return answer

    def _next_lease(self, now_s: float, message: NextLease) -> Message:
        if not self.journal.replaying and self._must_wait(message.job):  # journalled leases were granted
            return self.registry.fenced(message) or Lease("wait", 0, 0, 0, 0)
        return self.registry.next_lease(now_s, message, self.since_s(now_s))

    def _end_lease(self, now_s: float, message: EndLease) -> Message:
        jobs = self.registry.jobs
        job = jobs[message.job] if message.job < len(jobs) else None
        epochs = 0 if job is None or job.what != "fit" or "files" in job.details else job.epochs_done
        answer = self.registry.end_lease(now_s, message)
        if job is not None and job.what == "fit" and job.epochs_done > epochs and "files" not in job.details:
            done = epochs_done([one for one in jobs if one.what == "fit"])
            self.history.note(f"epoch {done} is done", "epoch")
        return answer

    def _must_wait(self, number: int) -> bool:
        """Return True if no lease of a job may be granted now: saves and loads need constant rows."""
        registry = self.registry
        if (
            self.cuts.holds_leases
            or registry.is_at_files_after(number)
            or registry.is_at_files_before(number)
        ):
            return True
        if not self.registry.is_about_files(number):
            return False
        moves = self.moves.wave is not None  # a moving unit would be in no file
        return moves or self.cuts.busy or self.registry.goes_on_before(number)

    def _cut_ready(self, now_s: float, message: CutReady) -> Message:
        return self.cuts.ready(now_s, message, self.since_s(now_s))

    def status(self, now_s: float) -> dict[str, Any]:
        """Return the status of the cluster, as plain values."""
        over = self.over
        ended = "failed" if self.error else "done" if over else ""
        return {
            **figures_of(self.members, self.registry, over, now_s),
            "phase": ended or phase_of(self.members, self.registry, now_s),
            "moves": self.moves.status(now_s),
            "seconds": self.run_s(now_s),
            "error": self.error or None,
            "events": self.events,
            "saves_soon": self.cuts.asked,
            "pushes_missing": self.pushes_missing,
        }

    def status_with_events(self, now_s: float) -> dict[str, Any]:
        """Return the status with events and checkpoints, for readers that ask for nothing else."""
        told = {"event_log": self.history.after(0), "checkpoints": self.history.checkpoints}
        return self.status(now_s) | told

    def _status(self, now_s: float, message: Status) -> Message:
        if not message.details:
            return Result(self.status(now_s))
        details = details_of(self.members, self.registry, self.config, now_s)
        details |= {"moving": self.moves.under_way(), "checkpoints": self.history.checkpoints}
        details["coordinator"] = self.about()
        return Result(self.status(now_s) | details)

    def _events_after(self, now_s: float, message: AskEvents) -> Message:
        return Result({"events": self.history.after(message.after), "last": self.history.last})
