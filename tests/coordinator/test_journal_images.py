"""The coordinator's journal stays short: images replace what was before them, and a crash loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.clock import SystemClock
from pslib.coordinator.coordinator import Coordinator
from pslib.coordinator.jobs import CollectiveJob
from pslib.coordinator.leases import Ballots, LeaseBook, RankedLeases, book_of
from pslib.coordinator.session import CoordinatorSession
from pslib.metrics.metrics import ScoreCounts
from pslib.transport import MemoryTransport
from pslib.update_log import CoordinatorLog, RollingLog, entries_of, pieces_of
from pslib.wire.messages import Heartbeat, Register
from tests.coordinator.test_journal import CONFIG, Talk, ask_over, state_of
from tests.support.simulated.files import SimulatedDisk, SimulatedFiles

State = dict[str, Any]
pytestmark = pytest.mark.usefixtures("every_position")


def through_bytes(note: Any) -> Any:
    """A note as it comes back from a file."""
    return entries_of(b"".join(bytes(piece) for piece in pieces_of([note])))[0]


def heir_of(session: CoordinatorSession, now_s: float) -> CoordinatorSession:
    successor = CoordinatorSession(CONFIG)
    successor.replay([through_bytes(session.image(now_s))])
    return successor


@given(st.integers(0, 1 << 32), st.integers(0, 120), st.integers(1, 60))
def test_a_reader_of_an_image_is_where_its_writer_was_and_goes_on_like_it(
    seed: int, before: int, after: int
) -> None:
    talk = Talk(seed)
    for _ in range(before):
        talk.step()
    twin = deepcopy(talk.choice)
    successor = Talk(seed)
    successor.session, successor.now_s = heir_of(talk.session, talk.now_s), talk.now_s
    successor.choice, successor.incarnations = twin, dict(talk.incarnations)
    assert state_of(successor.session) == state_of(talk.session)
    assert successor.session.history.plain() == talk.session.history.plain()
    for _ in range(after):
        talk.step()
        successor.step()
    assert state_of(successor.session) == state_of(talk.session)
    told, expected = (one.session.status(one.now_s) for one in (successor, talk))
    assert told.pop("events")[:1] == expected.pop("events")[:1]  # that a member is awaited is said again
    assert told == expected


WINDOWS = np.arange(20, dtype=np.uint32) // 3


@pytest.mark.parametrize("book", [LeaseBook(WINDOWS), RankedLeases(WINDOWS, [0, 2]), Ballots([0, 2, 3])])
def test_a_book_of_leases_comes_back_as_it_was(book: LeaseBook) -> None:
    for holder in ((0, 7), (2, 8), (0, 7)):
        book.next(holder, [index for index, held in book._held.items() if held.holder == holder], 1.5)
    book.progress((0, 7), {0: 3})
    assert book.end((2, 8), *next((i, one.epoch) for i, one in book._held.items() if one.holder == (2, 8)))
    book.trainer_lost((0, 7))
    again = book_of(through_bytes(book.plain()))
    assert type(again) is type(book)
    plain = again.plain()
    assert plain == book.plain()
    assert again.next((0, 9), [], 2.0) == book.next((0, 9), [], 2.0)


def test_a_job_comes_back_with_every_field() -> None:
    job = CollectiveJob("window", 5, {"path": "p"}, LeaseBook(np.zeros(2, np.uint32)), 1.5)
    job.clocks.report((0, 7), 3)
    job.add_scores(ScoreCounts.of(np.float32([0.25, 0.5]), np.float32([0, 1])))
    job.words, job.outcome = {"files": ["a", "b"]}, {"kind": "window"}
    again = CollectiveJob.of_plain(through_bytes(job.plain()))
    assert again.plain() == job.plain()
    for one in fields(job):
        if one.name not in ("book", "clocks", "scores"):
            assert getattr(again, one.name) == getattr(job, one.name)


# --- on a disk ---

IMAGES = 900
"""Bytes between two images, so that a short talk has many."""


class Recorded(SimulatedFiles):
    """Remembers what was done to it, in order."""

    def __init__(self, disk: SimulatedDisk, folder: str) -> None:
        super().__init__(disk, folder)
        self.done: list[tuple[str, str, bytes]] = []

    def append(self, name: str, pieces: Any) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        super().append(name, [data])
        self.done.append(("append", name, data))

    def remove(self, name: str) -> None:
        super().remove(name)
        self.done.append(("remove", name, b""))


class Written:
    """A talk that is written into a journal, and the state after each of its records."""

    def __init__(self, seed: int, disk: SimulatedDisk, disk_mode: bool = False) -> None:
        self.files = Recorded(disk, "journal")
        self.log = CoordinatorLog(
            self.files, "demo", SystemClock(), disk=disk_mode, journal_bytes=IMAGES, patience_s=0.0
        )
        self.talk = Talk(seed)
        self.talk.session.journal.append = self.log.append
        self.states: dict[int, State] = {0: state_of(CoordinatorSession(CONFIG))}
        self.images = 0

    def turn(self, flush: bool = True) -> None:
        """Do as `Coordinator._turn` with one request."""
        self.talk.step()
        if flush:
            assert self.log.flush()
            self._note()
            if self.log.is_long:
                self.log.write_image(self.talk.session.image(self.talk.now_s))
                self.images += 1
                self._note()

    def _note(self) -> None:
        state = state_of(self.talk.session)
        for number in range(max(self.states) + 1, self.log._log.last + 1):
            self.states[number] = state


def recovered(files: SimulatedFiles, disk_mode: bool = False) -> tuple[int, State]:
    log = CoordinatorLog(files, "demo", SystemClock(), disk=disk_mode, patience_s=0.0)
    successor = CoordinatorSession(CONFIG)
    for entries in log.records():
        successor.replay(entries)
    return log._log.last, state_of(successor)


def crashes(done: list[tuple[str, str, bytes]], first: int) -> Iterator[SimulatedDisk]:
    """The disk after each byte that was written from step ``first`` on, and each file that was removed."""
    content: dict[str, bytes] = {}
    for number, (what, name, data) in enumerate(done):
        if number >= first:
            for size in range(len(data) if what == "append" else 1):
                disk = SimulatedDisk()
                for other, whole in content.items():
                    disk.files("journal").append(other, [whole])
                disk.files("journal").append(name, [data[:size]])
                if not disk.folders["journal"][name].content and name not in content:
                    disk.files("journal").remove(name)
                yield disk
        if what == "append":
            content[name] = content.get(name, b"") + data
        else:
            del content[name]


def test_killed_at_any_byte_of_an_image_the_coordinator_is_where_it_was() -> None:
    written = Written(5, SimulatedDisk())
    while written.images < 2:
        written.turn()
    first, done = len(written.files.done), written.files.done
    while written.images < 3:
        first = len(done)
        written.turn()
    assert [what for what, _name, _data in done[first:]].count("remove") == 1
    seen: set[int] = set()
    for number, disk in enumerate(crashes(done, first)):
        files = disk.files("journal")
        last = RollingLog(files, {"coordinator": "demo"}, place="journal").last
        disk.kill(files)
        if last not in seen or number % 40 == 0:  # a cut log is the same whatever was cut off
            assert recovered(disk.files("journal")) == (last, written.states[last])
        seen.add(last)
    assert len(seen) >= 3  # before the image, with it, and with the record that says what may go


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), flushes=st.lists(st.booleans(), min_size=5, max_size=60))
def test_without_power_all_that_a_member_was_told_is_there(seed: int, flushes: list[bool]) -> None:
    disk = SimulatedDisk(seed)
    written, told = Written(seed, disk, disk_mode=True), 0
    for flush in flushes:
        written.turn(flush)
        told = written.log._log.durable if flush else told
    disk.lose_power()
    last, state = recovered(disk.files("journal"), disk_mode=True)
    assert told <= last
    if last in written.states:  # what was never flushed has no state of its own
        assert state == written.states[last]


def test_without_space_for_an_image_the_journal_stays_and_one_is_written_later() -> None:
    disk = SimulatedDisk()
    written = Written(5, disk)
    while not written.images:
        written.turn()
    written.log._due_bytes = 0
    disk.space = disk.used + 100
    written.log.write_image(written.talk.session.image(written.talk.now_s))
    assert not written.log.is_long
    assert written.log._due_bytes >= 5 * written.log._log.size_bytes, "or it would be tried at every turn"
    disk.space = None
    while written.images < 2:
        written.turn()
    disk.kill(written.files)
    assert recovered(disk.files("journal"))[1] == state_of(written.talk.session)


def test_after_a_large_image_four_times_as_much_is_written_before_the_next() -> None:
    log = CoordinatorLog(
        SimulatedDisk().files("journal"), "demo", SystemClock(), journal_bytes=1, patience_s=0.0
    )
    log.write_image({"note": "image", "state": "x" * 10_000})
    image_bytes = log._log.size_bytes
    while not log.is_long:
        log.append([{"note": "x" * 1000}])
        log.flush()
    assert 4.8 * image_bytes < log._log.size_bytes < 5.2 * image_bytes


def test_a_journal_of_many_leases_is_bounded_and_its_reader_is_where_its_writer_was() -> None:
    transport, disk = MemoryTransport(), SimulatedDisk()
    files = disk.files("journal")
    journal = CoordinatorLog(files, "demo", SystemClock(), journal_bytes=20_000)
    coordinator = Coordinator(transport, CONFIG, "demo", "memory:c:0", SystemClock(), journal)
    longest = 0
    for number in range(400):
        rank = number % 2
        own = 100 + number
        register = Register("trainer", "", own, 7, "host", rank, number // 2)
        ask_over(transport, coordinator.address, register, coordinator)
        ask_over(transport, coordinator.address, Heartbeat("trainer", rank, own, 0, {}), coordinator)
        longest = max(longest, journal._log.size_bytes)
    image = sum(len(piece) for piece in pieces_of([coordinator.session.image(0.0)]))
    assert longest < 20_000 + 6 * image
    before = state_of(coordinator.session)
    disk.kill(files)
    coordinator._link.close()
    again = CoordinatorLog(disk.files("journal"), "demo", SystemClock())
    successor = Coordinator(transport, CONFIG, "demo", "memory:c:1", SystemClock(), again)
    assert state_of(successor.session) == before
