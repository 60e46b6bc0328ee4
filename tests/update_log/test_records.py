"""Every byte of a log is accounted for: torn tails are cut and reported, damage is an error with a place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.errors import LogCorruptError, LogError, LogForeignError, LogFullError
from pslib.update_log import DiskFiles, RollingLog, entries_of, pieces_of
from pslib.wire.messages import Push
from tests.support.messages import EXAMPLES
from tests.support.simulated.files import SimulatedDisk

ABOUT = {"cluster": "c", "server": 0, "shard": 0}
Content = list[tuple[int, int, int, bytes]]


def content_of(log: RollingLog) -> Content:
    return [(one.number, one.kind, one.subject, bytes(one.body)) for one in log.records()]


def written(disk: SimulatedDisk, sizes: list[int], segment_bytes: int = 300, sync: bool = False) -> Content:
    log = RollingLog(disk.files("log"), ABOUT, disk=sync, segment_bytes=segment_bytes)
    for number, size in enumerate(sizes, start=1):
        log.append(7, number * 10, [b"abc", bytes([number % 256]) * size])
    return content_of(log)


def test_records_come_back_as_they_were_written() -> None:
    disk = SimulatedDisk()
    content = written(disk, [0, 5, 200, 1000, 8])
    again = RollingLog(disk.files("log"), ABOUT)
    assert content_of(again) == content
    assert len(content) == again.last == 5
    assert len(again.segments) > 2
    assert again.append(1, 0, [b""]) == 6


def test_a_real_folder_holds_what_a_simulated_one_does(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    written(disk, [1, 400, 30])
    files = DiskFiles(tmp_path / "deep" / "log")
    log = RollingLog(files, ABOUT, disk=True, segment_bytes=300)
    for number, size in enumerate([1, 400, 30], start=1):
        log.append(7, number * 10, [b"abc", bytes([number]) * size])
    assert log.durable == 0
    assert log.sync() == log.durable == 3
    log.close()
    simulated = disk.folders["log"]
    assert content_of(RollingLog(DiskFiles(tmp_path / "deep" / "log"), ABOUT)) == content_of(
        RollingLog(disk.files("log"), ABOUT)
    )
    assert [len(one.content) for one in simulated.values()] == [
        path.stat().st_size for path in sorted((tmp_path / "deep" / "log").iterdir())
    ]


def test_one_process_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    first, second = DiskFiles(tmp_path), DiskFiles(tmp_path)
    assert first.lock("lock")
    assert not second.lock("lock")
    first.close()
    assert second.lock("lock")
    second.close()


def assert_detected(disk: SimulatedDisk, name: str, last: bool, content: Content) -> None:
    if not last:
        with pytest.raises((LogCorruptError, LogForeignError), match=name):
            content_of(RollingLog(disk.files("log"), ABOUT))
        return
    try:
        log = RollingLog(disk.files("log"), ABOUT)
    except (LogCorruptError, LogForeignError):
        return
    assert log.report
    assert content_of(log) == content[:-1]


@pytest.mark.parametrize("flip", [1, 0x80])
def test_a_changed_byte_anywhere_is_detected(flip: int) -> None:
    """In the last record it is cut and reported, anywhere else an error names file and byte."""
    disk = SimulatedDisk()
    content = written(disk, [3, 90, 0, 20])
    names = list(disk.folders["log"])
    for name in names:
        original = bytes(disk.folders["log"][name].content)
        for place in range(len(original)):
            twin = SimulatedDisk()
            for other in names:
                twin.files("log").append(other, [bytes(disk.folders["log"][other].content)])
            twin.folders["log"][name].content[place] ^= flip
            assert_detected(twin, name, name == names[-1], content)


def test_a_log_that_ends_anywhere_is_a_prefix_and_says_so() -> None:
    disk = SimulatedDisk()
    content = written(disk, [3, 90, 0, 20], segment_bytes=1 << 20)
    (name,) = disk.folders["log"]
    whole = bytes(disk.folders["log"][name].content)
    boundaries = set()
    for size in range(len(whole)):
        twin = SimulatedDisk()
        twin.files("log").append(name, [whole[:size]])
        log = RollingLog(twin.files("log"), ABOUT)
        found = content_of(log)
        assert found == content[: len(found)]
        if not log.report:
            boundaries.add(size)
        assert log.append(9, 9, [b"more"]) == len(found) + 1
        assert content_of(RollingLog(twin.files("log"), ABOUT))[:-1] == found
    assert len(boundaries) == len(content)  # only a cut at the end of a record can't be seen


def test_a_missing_segment_is_an_error() -> None:
    for gone in range(3):
        disk = SimulatedDisk()
        written(disk, [200, 200, 200, 200])
        name = list(disk.folders["log"])[gone]
        del disk.folders["log"][name]
        with pytest.raises(LogCorruptError, match="missing"):
            RollingLog(disk.files("log"), ABOUT)


def test_a_trimmed_log_begins_later_and_only_there() -> None:
    disk = SimulatedDisk()
    content = written(disk, [200] * 6)
    log = RollingLog(disk.files("log"), ABOUT, segment_bytes=300)
    log.trim(4)
    assert content_of(log) == content[3:]
    log = RollingLog(disk.files("log"), ABOUT, segment_bytes=300)
    assert content_of(log) == content[3:]
    assert len(log.segments) == 4  # records 4, 5, 6 and the one that says so
    del disk.folders["log"][log.segments[0]]
    with pytest.raises(LogCorruptError, match=r"records 4\.\.4 are missing"):
        RollingLog(disk.files("log"), ABOUT)


def test_the_log_of_another_server_is_refused() -> None:
    disk = SimulatedDisk()
    written(disk, [1])
    with pytest.raises(LogForeignError, match="expected a log of cluster d, got c"):
        RollingLog(disk.files("log"), ABOUT | {"cluster": "d"})


def test_a_newer_format_is_refused_by_its_number() -> None:
    disk = SimulatedDisk()
    written(disk, [1])
    (one,) = disk.folders["log"].values()
    one.content[8] = 2
    with pytest.raises(LogForeignError, match="format 1 or older, got format 2"):
        RollingLog(disk.files("log"), ABOUT)


def test_a_full_disk_changes_nothing_and_room_makes_it_go_on() -> None:
    disk = SimulatedDisk()
    log = RollingLog(disk.files("log"), ABOUT, segment_bytes=1000)
    log.append(1, 0, [b"first"])
    for space in range(disk.used, disk.used + 1200, 7):
        disk.space = space
        before = log.last, disk.used
        with pytest.raises(LogFullError, match="no space for"):
            log.append(2, 0, [bytes(5000)])
        assert (log.last, disk.used) == before
    disk.space = None
    log.append(2, 0, [bytes(5000)])
    assert [one[0] for one in content_of(RollingLog(disk.files("log"), ABOUT))] == [1, 2]


@pytest.mark.parametrize("call", ["append", "sync"])
def test_another_error_ends_the_log_in_one_line(call: str) -> None:
    disk = SimulatedDisk()
    log = RollingLog(disk.files("log"), ABOUT, disk=True)
    log.append(1, 0, [b"x"])
    disk.fail_next = call
    do = log.sync if call == "sync" else lambda: log.append(1, 0, [b"x"])
    with pytest.raises(LogError, match=r"can't be (written|synced): Input/output error"):
        do()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(st.one_of(st.integers(0, 1500), st.just("sync"), st.just("trim")), max_size=25),
)
def test_lost_power_leaves_a_prefix_with_all_that_was_synced(seed: int, steps: list[int | str]) -> None:
    disk = SimulatedDisk(seed)
    log = RollingLog(disk.files("log"), ABOUT, disk=True, segment_bytes=1000)
    content: Content = []
    for step in steps:
        if step == "sync":
            log.sync()
        elif step == "trim":
            if log.last:
                log.trim(log.durable + 1)
                content.append((log.last, -1, -1, b""))
        else:
            assert isinstance(step, int)
            number = log.append(3, 1, [bytes([step % 251]) * step])
            content.append((number, 3, 1, bytes([step % 251]) * step))
    synced, below = log.durable, log.below
    disk.lose_power()
    again = RollingLog(disk.files("log"), ABOUT, disk=True, segment_bytes=1000)
    assert synced <= again.last <= len(content)
    assert again.below <= below
    wanted = [one for one in content[: again.last] if one[1] > 0 and one[0] >= again.below]
    assert content_of(again) == wanted
    assert again.append(1, 0, [b"on"]) == again.last
    assert content_of(RollingLog(disk.files("log"), ABOUT))[-1][3] == b"on"


@pytest.mark.parametrize("seed", range(8))
def test_what_comes_into_a_segment_during_its_sync_is_durable_with_the_next_one(seed: int) -> None:
    disk = SimulatedDisk(seed)
    files = disk.files("log")
    log = RollingLog(files, ABOUT, disk=True, segment_bytes=1000)
    log.append(1, 0, [bytes(300)])
    sync, closed = files.sync, list[str]()

    def slow(name: str) -> None:
        sync(name)
        files.sync = sync  # type: ignore[method-assign]
        while len(log.segments) == 1:
            log.append(1, 0, [bytes(300)])

    files.sync = slow  # type: ignore[method-assign]
    files.close_file = closed.append  # type: ignore[method-assign, assignment]
    assert log.sync() == log.durable == 1
    assert log.sync() == log.durable == log.last > 2
    assert closed == log.segments[:1]
    disk.lose_power()
    again = RollingLog(disk.files("log"), ABOUT, disk=True, segment_bytes=1000)
    assert (again.last, again.report) == (log.last, "")


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda one: one.kind)
def test_every_message_comes_back_from_a_record(message: object) -> None:
    note = {"note": "marks", "units": [1, 2], "by": {7: b"x"}}
    body = b"".join(bytes(piece) for piece in pieces_of([message, note, message]))  # type: ignore[list-item]
    first, between, last = entries_of(body)
    assert between == note
    for found in (first, last):
        assert type(found) is type(message)
        assert b"".join(map(bytes, pieces_of([found]))) == b"".join(map(bytes, pieces_of([message])))  # type: ignore[list-item]


def test_a_field_of_a_newer_version_is_refused_by_name_and_a_missing_one_has_its_default() -> None:
    import msgpack

    def body(described: list[object]) -> bytes:
        header = msgpack.packb(described)
        return len(header).to_bytes(8, "little") + header

    with pytest.raises(LogForeignError, match="a record: Push with colour is not known"):
        entries_of(body([["Push", {"colour": 1}, []]]))
    with pytest.raises(LogForeignError, match="a record: Shout is not known"):
        entries_of(body([["Shout", {}, []]]))
    named = {"stream": 1, "number": 2, "epoch": 0, "all_acked_below": 1, "home": 4}
    arrays = [["blocks", None, "<u4", 0], ["dense", None, "<f4", 0]]
    (push,) = entries_of(body([["Push", named, arrays]]))
    assert isinstance(push, Push)
    assert push.rate == 1.0
    assert not push.keys
    assert push.dense.dtype == np.float32


GOLDEN = (
    "70736c69624c4f47 010000000b000000 0100000000000000 0100000000000000 90bd4fcd00000000 81a7636c75737465 "
    "72a1630000000000 707352a7f0797580 2000000000000000 0100000000000000 0100000000000000 0500000000000000 "
    "01000000eae6f6b0 1100000000000000 9193a081a46e6f74 65a6676f6c64656e 9000000000000000"
)


def test_the_bytes_of_format_1_do_not_change() -> None:
    disk = SimulatedDisk()
    log = RollingLog(disk.files("log"), {"cluster": "c"})
    log.append(1, 5, pieces_of([{"note": "golden"}]))
    (one,) = disk.folders["log"].values()
    assert one.content.hex(" ", -8) == GOLDEN


def test_a_log_of_format_1_is_read() -> None:
    disk = SimulatedDisk()
    disk.files("log").append("00000000000000000001.log", [bytes.fromhex(GOLDEN)])
    (record,) = RollingLog(disk.files("log"), {"cluster": "c"}).records()
    assert (record.number, record.kind, record.subject) == (1, 1, 5)
    assert entries_of(record.body) == [{"note": "golden"}]
