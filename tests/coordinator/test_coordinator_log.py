"""The log of a coordinator's journal: one writer at a time, its term, and a disk without space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pslib.clock import SystemClock
from pslib.errors import LogCorruptError, LogError, LogFullError, PslibError, UnavailableError
from pslib.update_log import CoordinatorLog, DiskFiles


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


class SteppedClock:
    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, seconds: float) -> None:
        self.time_s += seconds


class FullFiles(DiskFiles):
    full = False

    def append(self, name: str, pieces: Any) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().append(name, pieces)


def test_without_space_it_is_tried_for_a_while_which_begins_again_when_there_was_some(tmp_path: Path) -> None:
    files, clock = FullFiles(tmp_path), SteppedClock()
    journal = CoordinatorLog(files, "demo", clock, space_s=5.0, place="here")
    for _time in range(2):
        files.full = True
        journal.append([{"note": "fail", "at_s": 1.0, "reason": "x"}])
        assert not journal.flush()
        try_for(journal, clock, 5.0)
        files.full = False
        assert journal.flush()
    files.full = True
    journal.append([{"note": "fail", "at_s": 1.0, "reason": "x"}])
    assert not journal.flush()
    try_for(journal, clock, 5.0)
    clock.time_s += 0.4
    with pytest.raises(LogFullError, match=r"here: no space for .*; tried for 5 s"):
        journal.flush()


def try_for(journal: CoordinatorLog, clock: SteppedClock, seconds: float) -> None:
    """Flush in vain, four times a second."""
    for _turn in range(int(seconds * 4)):
        clock.time_s += 0.25
        assert not journal.flush()


def test_time_in_which_a_coordinator_was_stopped_is_no_wait_for_space(tmp_path: Path) -> None:
    """Nobody could make room that it would have seen; each look back counts half a second."""
    files, clock = FullFiles(tmp_path), SteppedClock()
    journal = CoordinatorLog(files, "demo", clock, space_s=5.0, place="here")
    files.full = True
    journal.append([{"note": "fail", "at_s": 1.0, "reason": "x"}])
    assert not journal.flush()
    for _stop in range(2):
        clock.time_s += 3600.0
        assert not journal.flush()
    try_for(journal, clock, 4.0)
    clock.time_s += 0.25
    with pytest.raises(LogFullError, match="tried for 5 s"):
        journal.flush()


class StoppedClock(SteppedClock):
    """Of a process that is stopped, for an hour, as it sleeps for the third time."""

    naps = 0

    def sleep_s(self, seconds: float) -> None:
        self.naps += 1
        self.time_s += 3600.0 if self.naps == 3 else seconds


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
    files.full = True
    journal.append([{"note": "fail", "at_s": 1.0, "reason": "x"}])
    assert not journal.flush()
    files.full = False
    assert journal.flush()
    assert list(journal.records()) == [[{"note": "fail", "at_s": 1.0, "reason": "x"}]]
