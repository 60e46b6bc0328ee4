"""The coordinator's journal: its reader reaches the state of its writer; its files on a disk."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pslib.clock import SystemClock
from pslib.config import ClusterConfig, Timing
from pslib.coordinator.coordinator import Coordinator, run_coordinator
from pslib.coordinator.leases import LeaseBook, stream_of
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import (
    AddressInUseError,
    LogCorruptError,
    LogError,
    LogFullError,
    PslibError,
    UnavailableError,
)
from pslib.metrics.metrics import ScoreCounts
from pslib.transport import MemoryTransport, ServerLink
from pslib.update_log import CoordinatorLog, DiskFiles, entries_of, pieces_of
from pslib.wire.codec import Codec
from pslib.wire.fields import Message
from pslib.wire.messages import EndLease, Failure, Heartbeat, Leave, NextLease, OpenJob, Register, Stop
from tests.support.hand_clock import HandClock

TIMING = Timing(silence_s=6.0, restart_s=30.0)
CONFIG = ClusterConfig(
    servers=2, trainers=2, partition_bits=5, dense_blocks=4, restarts=3, durability="log", timing=TIMING
)
NO_WINDOWS = np.zeros(0, np.uint32)
pytestmark = pytest.mark.usefixtures("every_position")


def state_of(session: CoordinatorSession) -> dict[str, Any]:
    """All that must survive a coordinator, in plain values; what members count they say again."""
    members, jobs = session.members, session.registry.jobs
    current = members.map
    return {
        "members": [
            (one.role, one.rank, one.incarnation, one.generation, one.address, one.state, one.preempted)
            for role in ("server", "trainer")
            for one in members.ever(role)
        ],
        "map": current and (current.version, current.owners.tolist(), current.addresses),
        "jobs": [
            (job.what, job.fingerprint, dict(job.details), book_of(job.book), job.outcome, scores_of(job))
            for job in jobs
        ],
        "can start": members._started,
        "error": session.error,
        "stopping": session.stopping,
        "saved": session.registry.saved,
        "wave": session.moves.wave and session.moves.wave.version,
    }  # fmt: skip


def book_of(book: LeaseBook) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else repr(value)
        for name, value in vars(book).items()
        if name not in ("_done_below", "_last_window")
    }


def scores_of(job: Any) -> Any:
    return ScoreCounts.merge(job.scores).result() if job.scores else None


class Talk:
    """A coordinator session that is asked at random, sensibly or not; its records are kept as bytes."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.session = CoordinatorSession(CONFIG)
        self.records: list[bytes] = []
        self.session.journal.append = lambda entries: self.records.append(
            b"".join(bytes(piece) for piece in pieces_of(entries))
        )
        self.now_s = 0.0
        self.incarnations: dict[tuple[str, int], int] = {}

    def ask(self, message: Message) -> Any:
        return self.session.handle(self.now_s, message)

    def register(self, role: str) -> None:
        rank = self.choice.randrange(3)
        generation = self.choice.randrange(3)
        incarnation = self.choice.choice([1000 * rank + generation + 1, self.choice.randrange(1, 1 << 40)])
        wanted = self.choice.choice([rank, rank, 0xFFFFFFFF])
        answer = self.ask(Register(role, f"tcp://{incarnation}", incarnation, 7, "host", wanted, generation))
        if not isinstance(answer, Failure):
            self.incarnations[role, answer.rank] = incarnation

    def step(self) -> None:
        choice = self.choice
        rank = choice.randrange(3)
        incarnation = self.incarnations.get(("trainer", rank), 5)
        job, index = choice.randrange(3), choice.randrange(4)
        stream = stream_of(job, index)
        what = choice.choices(range(9), (3, 3, 8, 4, 8, 8, 0.4, 0.1, 3))[0]
        if what < 2:
            self.register(("server", "trainer")[what])
        elif what == 2:
            role = choice.choice(["server", "trainer"])
            progress = {"streams": [[stream, choice.randrange(9)]], "examples": choice.randrange(99)}
            own = self.incarnations.get((role, rank), 5)
            self.ask(Heartbeat(role, rank, own, choice.randrange(3), progress if role == "trainer" else {}))
        elif what == 3:
            kind, windows = ("fit", "save", "evaluate")[job], np.arange(4, dtype=np.uint32) % 2
            self.ask(OpenJob(rank, job, kind, 5, {"path": "p", "epochs": 1}, windows, choice.random() < 0.1))
        elif what == 4:
            self.ask(NextLease(rank, incarnation, job, np.array([stream][: choice.randrange(2)], np.uint64)))
        elif what == 5:
            one = np.ones(1, np.uint64)
            payload = {"scores": np.full(1, 0.5, np.float32), "positives": one, "negatives": one}
            payload = payload if job == 2 else {}
            self.ask(EndLease(rank, incarnation, job, stream, choice.randrange(2), payload))
        elif what == 6:
            self.ask(
                Leave(choice.choice(["server", "trainer"]), rank, incarnation, {}, choice.random() < 0.5)
            )
        elif what == 7:
            self.ask(Stop("enough", choice.random() < 0.5))
        else:
            self.now_s += choice.choice([0.1, 1.0, 7.0])
            self.session.tick(self.now_s)


@given(st.integers(0, 1 << 32), st.integers(1, 150))
@example(587, 27)  # a member registers again and names the rank of another, which loses nothing by that
def test_a_reader_of_a_journal_is_where_its_writer_was(seed: int, steps: int) -> None:
    talk = Talk(seed)
    for _ in range(steps):
        talk.step()
    successor = CoordinatorSession(CONFIG, term=1)
    written: list[Any] = []
    successor.journal.append = written.append
    for record in talk.records:
        successor.replay(entries_of(record))
    assert written == []  # reading writes nothing
    assert state_of(successor) == state_of(talk.session)
    assert successor.history.plain() == talk.session.history.plain()


def test_what_changes_nothing_is_not_written() -> None:
    talk = Talk(1)
    for rank in range(2):
        for role in ("server", "trainer"):
            talk.ask(Register(role, "a", 10 + rank, 7, "host", rank))
    for rank in range(2):
        talk.ask(Heartbeat("server", rank, 10 + rank, 1, {}))
    talk.ask(Register("trainer", "a", 10, 7, "host", 0))  # now it may start
    written = len(talk.records)
    for number in range(50):
        talk.now_s += 0.5
        talk.ask(Register("trainer", "a", 10, 7, "host", 0))
        talk.ask(Heartbeat("trainer", 0, 10, 1, {"examples": number}))
        talk.ask(Heartbeat("server", 0, 10, 1, {"rows": number}))
        talk.ask(NextLease(0, 10, 0, NO_WINDOWS.astype(np.uint64)))
        talk.session.tick(talk.now_s)
    notes: list[Any] = [entries_of(record)[0] for record in talk.records[written:]]
    assert [note["note"] for note in notes if note["note"] != "events"] == ["lost", "lost"]
    told = [event["kind"] for note in notes for event in note.get("events", ())]
    assert (told[:4], set(told[4:])) == (["silent", "silent", "lost", "lost"], {"waiting"})


def test_positions_are_written_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslib.coordinator.journal.POSITIONS_S", 5.0)
    talk = Talk(1)
    for rank in range(2):
        talk.ask(Register("server", "a", 10 + rank, 7, "host", rank))
        talk.ask(Heartbeat("server", rank, 10 + rank, 1, {}))
    talk.ask(Register("trainer", "a", 20, 7, "host", 0))
    written = len(talk.records)
    for number in range(21):
        talk.ask(Heartbeat("trainer", 0, 20, 1, {"streams": [[0, number]], "examples": 9}))
        talk.now_s += 1.0
    beats = [entries_of(record)[1] for record in talk.records[written:]]
    assert [beat.progress for beat in beats] == [{"streams": [[0, number]]} for number in (0, 5, 10, 15, 20)]


def test_no_member_counts_as_lost_for_a_while_after_a_coordinator_has_come_back() -> None:
    talk = Talk(1)
    for rank in range(2):
        talk.ask(Register("server", "a", 10 + rank, 7, "host", rank))
    successor = CoordinatorSession(CONFIG, term=1)
    for record in talk.records:
        last_s = successor.replay(entries_of(record))
    now_s = last_s + 1000.0
    successor.begin_again(now_s)
    successor.tick(now_s + TIMING.silence_s)
    assert [one.state for one in successor.members.servers] == ["live", "live"]
    successor.tick(now_s + TIMING.silence_s + 0.1)
    assert [one.state for one in successor.members.servers] == ["lost", "lost"]


def test_a_coordinator_that_hears_a_higher_term_is_over() -> None:
    session = CoordinatorSession(CONFIG, term=3)
    session.handle(0.0, Register("server", "a", 1, 7, "host", 0))
    beat = session.handle(0.0, Heartbeat("server", 0, 1, 0, {}, 2))
    assert (beat.term, session.superseded) == (3, False)  # type: ignore[attr-defined]
    answer = session.handle(0.0, Heartbeat("server", 0, 1, 0, {}, 4))
    assert answer == Failure("fenced", "a coordinator of term 4 serves; this one has 3")
    assert session.superseded


# --- on a disk ---


def ask_over(transport: MemoryTransport, address: str, message: Message, coordinator: Coordinator) -> Any:
    link = transport.connect()
    link.send(address, Codec("demo").encode(7, message))
    coordinator._turn(final=False)
    ((_, frames),) = link.receive()
    link.close()
    return Codec("demo").decode(frames).message


def test_a_coordinator_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    transport, clock = MemoryTransport(), SystemClock()
    ranks = []
    for term in range(3):
        files = DiskFiles(tmp_path / "journal")
        journal = CoordinatorLog(files, "demo", clock)
        assert journal.term == term
        coordinator = Coordinator(transport, CONFIG, "demo", "memory:c:0", clock, journal)
        answer = ask_over(
            transport, coordinator.address, Register("trainer", "", 70 + term, 7, "h"), coordinator
        )
        ranks.append(answer.rank)
        assert [one.incarnation for one in coordinator.session.members.trainers] == [70, 71, 72][: term + 1]
        coordinator._link.close()
        files.close()  # what the end of a process does to its lock, and nothing else
    assert ranks == [0, 1, 2]


def test_a_run_whose_journal_is_gone_does_not_begin_anew_as_if_it_went_on(tmp_path: Path) -> None:
    """Its folder was on a disk that a restart of the machine has emptied, say; nothing is put there."""
    for _ in range(2):
        with pytest.raises(
            LogError, match=r"^--resume: \S+: expected the journal of the run that is to go on"
        ):
            run_coordinator(
                CONFIG,
                "demo",
                "tcp://127.0.0.1:0",
                lambda address: pytest.fail("it listens"),
                journal=str(tmp_path / "journal"),
                resume=True,
            )
    assert list(tmp_path.iterdir()) == []


class LeavingStranger(HandClock):
    """A clock that advances by sleeping; a stranger's address is free again at a moment."""

    def __init__(self, stranger: ServerLink, leaves_s: float) -> None:
        super().__init__(0.0)
        self.stranger, self.leaves_s = stranger, leaves_s

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        if self.at_s >= self.leaves_s:
            self.stranger.close()


def heir_of_a_taken_address(folder: Path, leaves_s: float) -> tuple[Coordinator, LeavingStranger]:
    """A coordinator whose predecessor's address a stranger has for a while."""
    for term in range(2):
        files = DiskFiles(folder)
        journal = CoordinatorLog(files, "demo", SystemClock())
        assert journal.term == term
        transport = MemoryTransport()
        clock = LeavingStranger(transport.listen(f"memory:c:{2 - term}"), leaves_s)
        try:
            coordinator = Coordinator(transport, CONFIG, "demo", "memory:c:1", clock, journal)
        finally:
            files.close()
    return coordinator, clock


def test_a_successor_waits_while_a_stranger_has_its_address_says_so_and_counts_no_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, clock = heir_of_a_taken_address(tmp_path, leaves_s=TIMING.restart_s - 1)
    waits = [line for line in caplog.messages if "for memory:c:1, where another process listens" in line]
    assert len(waits) == 1 + (TIMING.restart_s - 1) // TIMING.report_s
    assert clock.at_s >= TIMING.restart_s - 1
    assert coordinator._now_s() < TIMING.silence_s


def test_an_address_that_stays_taken_is_an_error_when_all_members_have_given_up(tmp_path: Path) -> None:
    with pytest.raises(AddressInUseError, match="can't listen on memory:c:1"):
        heir_of_a_taken_address(tmp_path, leaves_s=TIMING.restart_s + 1)


def test_no_request_is_answered_before_the_journal_holds_it(tmp_path: Path) -> None:
    transport, clock = MemoryTransport(), SystemClock()
    journal = CoordinatorLog(DiskFiles(tmp_path), "demo", clock)
    coordinator = Coordinator(transport, CONFIG, "demo", "memory:c:0", clock, journal)
    flush, journal.flush = journal.flush, lambda: False  # type: ignore[method-assign]
    link = transport.connect()
    link.send(coordinator.address, Codec("demo").encode(7, Register("trainer", "", 70, 7, "h")))
    coordinator._turn(final=False)
    assert link.receive() == []
    journal.flush = flush  # type: ignore[method-assign]
    link.send(coordinator.address, Codec("demo").encode(8, Register("trainer", "", 70, 7, "h")))
    coordinator._turn(final=False)
    assert len(link.receive()) == 1
    assert [entries[0]["note"] for entries in journal.records()] == ["began", "asked"]
    link.close()


# --- the journal on a disk ----------------------------------------------------------------------------------


def test_two_coordinators_never_write_one_journal(tmp_path: Path) -> None:
    first = CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock())
    with pytest.raises(UnavailableError, match="another process has used this folder"):
        CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock(), patience_s=0.1)
    first.close()
    assert CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock()).term == 1


def test_a_term_that_can_not_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "generation").write_text("x")
    with pytest.raises(LogCorruptError, match="expected a number"):
        CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock())


@pytest.mark.parametrize(("cluster_id", "generation"), [("another", b"0"), ("demo", b"x")])
def test_a_journal_that_can_not_be_opened_is_let_go_of(
    cluster_id: str, generation: bytes, tmp_path: Path
) -> None:
    """A process that has not ended can try again."""
    first = CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock())
    first.append([{"note": "fail", "at_s": 1.0, "reason": "x"}])
    assert first.flush()
    first.close()
    (tmp_path / "generation").write_bytes(generation)
    with pytest.raises(LogError):
        CoordinatorLog(DiskFiles(tmp_path), cluster_id, SystemClock())
    (tmp_path / "generation").write_bytes(b"7")
    again = CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock(), patience_s=0.1)
    assert again.term == 8
    again.close()


class FullFiles(DiskFiles):
    full = False

    def append(self, name: str, pieces: Any) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().append(name, pieces)


def fills_up(files: FullFiles, journal: CoordinatorLog) -> None:
    """There is no space for the next record."""
    files.full = True
    journal.append([{"note": "fail", "at_s": 1.0, "reason": "x"}])
    assert not journal.flush()


def test_without_space_it_is_tried_for_a_while_which_begins_again_when_there_was_some(tmp_path: Path) -> None:
    files, clock = FullFiles(tmp_path), HandClock()
    journal = CoordinatorLog(files, "demo", clock, space_s=5.0, place="here")
    for _time in range(2):
        fills_up(files, journal)
        try_for(journal, clock, 5.0)
        files.full = False
        assert journal.flush()
    fills_up(files, journal)
    try_for(journal, clock, 5.0)
    clock.at_s += 0.4
    with pytest.raises(LogFullError, match=r"here: no space for .*; tried for 5 s"):
        journal.flush()


def try_for(journal: CoordinatorLog, clock: HandClock, seconds: float) -> None:
    """Flush in vain, four times a second."""
    for _turn in range(int(seconds * 4)):
        clock.at_s += 0.25
        assert not journal.flush()


def test_time_in_which_a_coordinator_was_stopped_is_no_wait_for_space(tmp_path: Path) -> None:
    """The coordinator could not have seen room made; each look back counts half a second."""
    files, clock = FullFiles(tmp_path), HandClock()
    journal = CoordinatorLog(files, "demo", clock, space_s=5.0, place="here")
    fills_up(files, journal)
    for _stop in range(2):
        clock.at_s += 3600.0
        assert not journal.flush()
    try_for(journal, clock, 4.0)
    clock.at_s += 0.25
    with pytest.raises(LogFullError, match="tried for 5 s"):
        journal.flush()


class StoppedClock(HandClock):
    """Clock of a process that is stopped for an hour in its third sleep."""

    naps = 0

    def sleep_s(self, seconds: float) -> None:
        self.naps += 1
        super().sleep_s(3600.0 if self.naps == 3 else seconds)


def test_a_successor_that_was_stopped_goes_on_waiting_for_its_predecessor(tmp_path: Path) -> None:
    first, clock = CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock()), StoppedClock()
    with pytest.raises(UnavailableError, match="another process has used this folder for 5 s"):
        CoordinatorLog(DiskFiles(tmp_path), "demo", clock, patience_s=5.0)
    assert 80 < clock.naps < 100
    first.close()


@pytest.mark.parametrize(("number", "kind"), [(28, LogFullError), (122, LogFullError), (30, LogError)])
def test_a_folder_that_can_not_be_claimed_is_named_in_one_line_and_given_back(
    tmp_path: Path, number: int, kind: type[PslibError]
) -> None:
    class Refusing(DiskFiles):
        def replace(self, name: str, content: bytes) -> None:
            raise OSError(number, os.strerror(number))

    with pytest.raises(kind, match=r"^here: ") as caught:
        CoordinatorLog(Refusing(tmp_path), "demo", SystemClock(), place="here")
    assert type(caught.value) is kind
    CoordinatorLog(DiskFiles(tmp_path), "demo", SystemClock(), patience_s=0.0).close()


def test_without_space_it_is_tried_again(tmp_path: Path) -> None:
    files = FullFiles(tmp_path)
    journal = CoordinatorLog(files, "demo", SystemClock(), disk=True)
    fills_up(files, journal)
    files.full = False
    assert journal.flush()
    assert list(journal.records()) == [[{"note": "fail", "at_s": 1.0, "reason": "x"}]]
