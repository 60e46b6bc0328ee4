"""A bug is planted in each thing that must hold, and the simulated clusters find it and name the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pslib.coordinator import jobs
from pslib.coordinator.checkpoint_barrier import CheckpointBarrier
from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.leases import Grant, LeaseBook
from pslib.coordinator.membership import Member
from pslib.coordinator.session import CoordinatorSession
from pslib.shard import replay as shard_replay
from pslib.shard.shard import Shard
from pslib.update_log import CoordinatorLog, RollingLog, shard_log
from pslib.update_log.shard_log import ShardLog
from pslib.wire.applied_pushes import Marks
from pslib.wire.fields import Message
from pslib.wire.journal import Entry
from pslib.wire.messages import Adopt, Erase, Image, Push, Release
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.runs import caught, first_error
from tests.simulation.cluster.world import Planted, World


class NoMarks(Marks):
    """Everything is new: a push that comes twice counts twice."""

    def fresh(self, stream: int, number: int, epoch: int, units: int) -> int:
        super().fresh(stream, number, epoch, units)
        return units


class HighestNumber(Marks):
    """Only the highest number of a stream: 6 applied, 5 sent again after a move, and 5 is lost."""

    def __init__(self) -> None:
        super().__init__()
        self._highest: dict[int, int] = {}

    def fresh(self, stream: int, number: int, epoch: int, units: int) -> int:
        known = number < self._highest.get(stream, 0)
        return 0 if known else super().fresh(stream, number, epoch, units)

    def record(self, stream: int, number: int, units: int) -> None:
        super().record(stream, number, units)
        self._highest[stream] = max(self._highest.get(stream, 0), number)


class MarksStayBehind(Marks):
    """A unit moves without its marks: a push applied before the move counts once more after it."""

    def export(self, unit: int) -> dict[str, Any]:
        return {"done_below": 0, "streams": []}


class MarksOfTheServer(Marks):
    """A push counts as known when any unit of it is: what was refused before a unit came is lost."""

    def fresh(self, stream: int, number: int, epoch: int, units: int) -> int:
        fresh = super().fresh(stream, number, epoch, units)
        known = self.streams.get(stream)
        return 0 if known and known.applied.get(number) else fresh


class NoFloor(Marks):
    """The floor stays behind when a unit moves: what it stood for counts once more."""

    def adopt(self, unit: int, plain: Mapping[str, Any]) -> None:
        streams = [[stream, epoch, 0, numbers] for stream, epoch, _floor, numbers in plain["streams"]]
        super().adopt(unit, {"done_below": 0, "streams": streams})


class FloorTooHigh(Marks):
    """The floor is one too high: the lowest push that is still under way is taken for a known one."""

    def raise_floor(self, stream: int, below: int) -> None:
        super().raise_floor(stream, below + 1)


class NoFence(Marks):
    """Epochs are not looked at: a trainer that has lost a lease goes on with it."""

    def fresh(self, stream: int, number: int, epoch: int, units: int) -> int:
        return super().fresh(stream, number, 1 << 40, units)


class LostTrainers(Mishaps):
    """Trainers that reach all servers and not the coordinator, again and again: others have their leases."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._forget_the_coordinator, 6)]


@pytest.mark.parametrize(
    ("marks", "text", "mishaps", "first"),
    [
        (NoMarks, "expected one of", Mishaps, 0),
        (HighestNumber, "", Mishaps, 0),
        (MarksStayBehind, "", Mishaps, 0),
        (MarksOfTheServer, "expected", Mishaps, 0),
        (NoFloor, "expected one of", Mishaps, 20),
        (FloorTooHigh, "", Mishaps, 0),
        (NoFence, "after one under", LostTrainers, 0),
    ],
)
def test_a_bug_in_the_marks_is_caught(
    marks: type[Marks], text: str, mishaps: type[Mishaps], first: int
) -> None:
    """``first``: from a seed that soon finds the bug, to save the time of the others."""
    assert text in caught(Planted(marks=marks, make_mishaps=mishaps), first=first)


class KeepsWhatItGivesAway(Shard):
    """Owns a unit still when it has made the image for another server."""

    def release(self, message: Release) -> Image:
        image = super().release(message)
        self.owned |= 1 << message.unit
        return image


class AdoptsNothing(Shard):
    """Says that it has taken a unit, and has not."""

    def adopt(self, message: Adopt) -> None:
        return


@pytest.mark.parametrize(
    ("make_shard", "text"), [(KeepsWhatItGivesAway, "two owners"), (AdoptsNothing, "no owner")]
)
def test_a_unit_with_two_owners_or_none_is_caught(make_shard: type[Shard], text: str) -> None:
    """Every seed may end with another symptom: a process that waits for such a unit never ends."""
    planted = Planted(make_shard=make_shard)
    errors = [first_error(lambda seed: World(seed, planted).run(), [seed]) for seed in range(5)]
    assert all(errors)
    assert any(text in error for error in errors)


class SameEpoch(LeaseBook):
    """A lease that changes hands keeps its epoch."""

    def trainer_lost(self, holder: tuple[int, int]) -> list[int]:
        lost = super().trainer_lost(holder)
        for index in lost:
            self._epochs[index] -= 1
        return lost


class SkipsABatch(LeaseBook):
    """A lease goes on one batch too late."""

    def _grant(self, index: int, holder: tuple[int, int]) -> Grant:
        grant = super()._grant(index, holder)
        return Grant(index, grant.epoch, grant.first_batch + (grant.epoch > 0), grant.time_s)


class KeepsLeases(LeaseBook):
    """The leases of a lost trainer stay where they are."""

    def trainer_lost(self, holder: tuple[int, int]) -> list[int]:
        return []


class EndsAnother(LeaseBook):
    """With a lease that ends another one ends too."""

    def end(self, holder: tuple[int, int], index: int, epoch: int) -> bool:
        over = super().end(holder, index, epoch)
        for other in list(self._held)[:1]:
            super().end(self._held[other].holder, other, self._held[other].epoch)
        return over


@pytest.mark.parametrize(
    ("book", "text"),
    [
        (SameEpoch, "was given to trainer"),
        (SkipsABatch, "is not acknowledged"),
        (KeepsLeases, ""),
        (EndsAnother, "not all of it is acknowledged"),
    ],
)
def test_a_bug_in_the_leases_is_caught(
    book: type[LeaseBook], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LeaseBook", book)
    assert text in caught(Planted())


class FinishesTooEarly(JobRegistry):
    """Streams count as done one lease too early: their pushes are taken for known ones."""

    def streams_done_below(self) -> int:
        return super().streams_done_below() + 1


class CountsTooFar(JobRegistry):
    """Counts one batch more of a lease as applied than is acknowledged."""

    def progress(self, member: Member, streams: Iterable[tuple[int, int]]) -> None:
        super().progress(member, [(stream, below + 1) for stream, below in streams])


def registry(kind: type[JobRegistry]) -> Planted:
    def change(session: CoordinatorSession) -> None:
        session.registry.__class__ = kind

    return Planted(change_coordinator=change)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(FinishesTooEarly, "counts as done"), (CountsTooFar, "is not acknowledged")],
)
def test_a_bug_at_the_desk_of_jobs_is_caught(kind: type[JobRegistry], text: str) -> None:
    assert text in caught(registry(kind))


class WritesBehind(ShardLog):
    """Each record is written with the next one: an answer leaves before what it promises is in the log."""

    def append(self, *entries: Entry) -> None:
        self.later(*entries)
        if len(self._later) > 1:
            self.flush()


class ForgetsNames(ShardLog):
    """Records say what was pushed and not under which name: after a restart it counts once more."""

    def append(self, *entries: Entry) -> None:
        named = [replace(one, stream=1 << 62) if isinstance(one, Push) else one for one in entries]
        super().append(*named)


class ForgetsReleases(ShardLog):
    """Does not record releases: after a restart two servers own the same units."""

    def append(self, *entries: Entry) -> None:
        kept = [one for one in entries if not isinstance(one, Release)]
        if kept:
            super().append(*kept)


class ForgetsErases(ShardLog):
    """Rows that were erased come back with a restart."""

    def append(self, *entries: Entry) -> None:
        kept = [one for one in entries if not isinstance(one, Erase)]
        if kept:
            super().append(*kept)


@pytest.mark.parametrize("make_journal", [WritesBehind, ForgetsNames, ForgetsReleases, ForgetsErases])
def test_a_bug_in_the_log_of_a_server_is_caught(make_journal: type[ShardLog]) -> None:
    assert caught(Planted(make_journal=make_journal))


def test_images_without_marks_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    images_of = shard_replay.images_of

    def without_marks(shard: Shard, units: Sequence[int]) -> list[Entry]:
        images = images_of(shard, units)
        for image in images:
            if isinstance(image, Image):
                image.marks["streams"][:] = []
        return images

    monkeypatch.setattr(shard_log, "images_of", without_marks)
    assert caught(Planted())


def test_an_answer_that_does_not_wait_for_the_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollingLog, "durable", property(lambda log: log.last))
    assert caught(Planted())


def forgetful(what: str) -> Planted:
    """A coordinator whose journal does not hold some records."""

    def change(session: CoordinatorSession) -> None:
        append = session.journal.append

        def kept(entries: Sequence[Entry]) -> None:
            about = entries[-1]
            if what != (about.kind if isinstance(about, Message) else about["note"]):
                append(entries)

        session.journal.append = kept

    return Planted(change_coordinator=change)


@pytest.mark.parametrize("what", ["NextLease", "OpenJob", "move"])
def test_a_journal_of_the_coordinator_that_forgets_is_caught(what: str) -> None:
    assert caught(forgetful(what))


def test_a_coordinator_that_answers_before_it_writes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinatorLog, "flush", lambda _log: True)
    assert caught(Planted())


class BeginsBeforeAllIsAcknowledged(CheckpointBarrier):
    """A trainer that has heard of a cut counts as one that has stopped."""

    def _is_ready(self, cut: Any, rank: int) -> bool:
        return rank in cut.heard


class ForgetsTakeOvers(LeaseBook):
    """Forgets that a lease was taken over from a dead trainer: more of it may be applied than is known."""

    @property
    def taken_over(self) -> bool:
        return False


def test_a_cut_that_begins_before_all_is_acknowledged_is_caught() -> None:
    def change(session: CoordinatorSession) -> None:
        session.cuts.__class__ = BeginsBeforeAllIsAcknowledged

    assert "a cut says" in caught(Planted(change_coordinator=change))


def test_a_cut_in_the_middle_of_a_lease_that_was_taken_over_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "LeaseBook", ForgetsTakeOvers)
    assert "a cut says" in caught(Planted(make_mishaps=LostTrainers))
