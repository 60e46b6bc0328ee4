"""Failure detector: lost members, awaited successors, and the end of a run that can't continue."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from pslib.coordinator.events import Events
from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.membership import Member, Membership
from pslib.storage import shown
from pslib.text import counted


class FailureDetector:
    """Failure detector: a pure state machine for the loss of members.

    A lost trainer's leases go to others, and another process may take its rank. A lost server ends the run
    where none of its state is left; where it has a log, its successor has `Timing.restart_s` to register.

    Parameters
    ----------
    members : Membership
    registry : JobRegistry
        Its leases are freed when a trainer is lost.
    events : Events
    fail : callable
        Ends the run, with the reason.
    note_member : callable
        Journals an event of a member, given the time, the event and the member.
    """

    def __init__(
        self,
        members: Membership,
        registry: JobRegistry,
        events: Events,
        fail: Callable[[str], None],
        note_member: Callable[[float, str, Member], None],
    ) -> None:
        self._note_member = note_member
        self._members, self._registry, self._fail = members, registry, fail
        self._tell, self._note = events.tell, events.note
        self._silent: set[tuple[str, int]] = set()
        """Roles and incarnations of those whose silence is an event already."""
        self._told: dict[int, int] = {}

    def tick(self, now_s: float) -> None:
        """Detect silent members, and successors that are late."""
        for member in self._members.silent(now_s):
            self._note_member(now_s, "lost", member)
            self.lost(now_s, member)
        self._note_silence(now_s)
        for member in (*self._members.servers, *self._members.trainers):
            may_come_back = self._members.may_come_back(member.role)
            if member.state == "lost" and may_come_back and self._is_needed(member):
                self._await(now_s, member)
        if any(one.state == "lost" for one in self._members.trainers):
            self._registry.give_up(now_s)  # no trainer is awaited any more
        if self._work_is_lost(now_s):
            self._fail("all trainers are lost before the work was done")

    def lost(self, now_s: float, member: Member) -> None:
        """Handle a member that has been silent too long."""
        if member.role == "server":
            silence_s = self._members.config.timing.silence_s
            self.server_gone(member, f"has been silent for {silence_s:g} s and counts as lost")
        else:
            self._lose_trainer(member)

    def replaced(self, now_s: float, before: Member, after: Member, was_live: bool) -> None:
        """Handle a successor that has replaced a member, which ``was_live`` until then."""
        self._note_member(now_s, "counted", before)
        if before.role == "trainer":
            self._lose_trainer(before)
        elif was_live:
            text = f"server {before.rank} ({before.where}) is gone: another process has its rank"
            self._note(text, "lost", "server", before.rank)
        self._tell(
            f"{after.role} {after.rank} restarted as {after.where} (generation {after.generation}; "
            f"was {before.where})",
            "back",
            after.role,
            after.rank,
        )

    def trainers_over(self, now_s: float) -> bool:
        """Return True if all trainers are gone, and none is awaited for unfinished work."""
        if not self._members.trainers_over():
            return False
        one_has_left = any(member.state == "left" for member in self._members.trainers)
        all_done = (
            bool(self._registry.jobs) and self._registry.all_done
        )  # without jobs the remaining work is unknown
        return (one_has_left and all_done) or not self._members.awaited(now_s, "trainer")

    # --- the parts ----------------------------------------------------------------------------------------

    def _note_silence(self, now_s: float) -> None:
        """Add an event for a live member that is silent half as long as a lost one, or heard again."""
        limit_s = self._members.config.timing.silence_s / 2
        for member in (*self._members.live("server"), *self._members.live("trainer")):
            is_silent = now_s - member.heard_s > limit_s
            own = member.role, member.incarnation
            if is_silent == (own in self._silent):
                continue
            self._silent ^= {own}
            how = f"has been silent for {limit_s:g} s" if is_silent else "is heard again"
            kind, about = "silent" if is_silent else "heard", (member.role, member.rank)
            self._note(f"{member.role} {member.rank} ({member.where}) {how}", kind, *about)

    def _lose_trainer(self, member: Member) -> None:
        awaited = self._members.may_come_back("trainer")
        freed = self._registry.free_leases(member, "is lost", fatal=not awaited)
        text = f"trainer {member.rank} ({member.where}) is lost; its leases go to the others ({freed})"
        self._tell(text, "lost", "trainer", member.rank)

    def server_gone(self, member: Member, how: str) -> None:
        """Handle a server that is gone: end the run if no state of it is left, else await its successor."""
        who = f"server {member.rank} at {member.address} ({member.where}) {how}"
        if self._members.map is not None and not self._members.is_owner(member):
            self._members.map = self._members.map.with_address(member.rank, "")
            self._tell(f"{who}; it owned nothing", "lost", "server", member.rank)
            return
        rows, updates = member.progress.get("rows", 0), member.progress.get("updates_applied", 0)
        restart_s = self._members.config.timing.restart_s
        if self._members.may_come_back("server"):
            how = "come back" if self._members.config.durability == "memory" else "come back from its log"
            text = f"{who}; waiting up to {restart_s:g} s for it to {how}"
            self._tell(text, "lost", "server", member.rank)
        else:
            self._fail(
                f"{who}, with about {counted(rows, 'row')} and {counted(updates, 'update')}; {self._kept()}"
            )

    def _is_needed(self, member: Member) -> bool:
        """Return True if the run can't continue without a member of this rank."""
        if member.role == "trainer":
            return self._registry.needs(member.rank)
        return self._members.is_owner(member) and not self._members.trainers_over()

    def _await(self, now_s: float, member: Member) -> None:
        """Log at intervals that a successor is awaited, and end the run when it is too late."""
        waited_s, timing = now_s - member.lost_s, self._members.config.timing
        who = f"{member.role} {member.rank} ({member.where})"
        if waited_s > timing.restart_s:
            self._fail(
                f"waited {waited_s:.0f} s for {who}: nobody has started it again; {self._kept()}. "
                "Acknowledged pushes are in the servers' logs: start again with the same ones"
            )
        reports = int(waited_s / timing.report_s)
        if reports > self._told.get(member.incarnation, 0):
            self._told[member.incarnation] = reports
            text = f"waiting {waited_s:.0f} s for {who} to be started again"
            self._tell(text, "waiting", member.role, member.rank)

    def _work_is_lost(self, now_s: float) -> bool:
        """Return True if work is left without trainers; only a trainer that leaves reports its end."""
        if not self.trainers_over(now_s):
            return False
        nobody_left = all(member.state == "lost" for member in self._members.trainers)
        # A trainer that was asked to leave has left its work to others: if those are lost, the work is lost.
        lost_s = max((one.heard_s for one in self._members.trainers if one.state == "lost"), default=-inf)
        asked_to = any(one.preempted and one.heard_s >= lost_s for one in self._members.trainers)
        return nobody_left or not (self._registry.all_done or asked_to)

    def _kept(self) -> str:
        saved = shown(self._registry.saved)
        return f"the checkpoint {saved} is the last state" if saved else "there is no checkpoint"
