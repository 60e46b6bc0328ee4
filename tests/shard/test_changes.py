"""Reads of changed rows: what a reader that follows a table gets from a server, request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.server.requests import ShardRequest, run_on_shard
from pslib.shard import change_log, changes
from pslib.shard.change_log import ChangeLog
from pslib.table.optimizers import SGD
from pslib.table.policies import ByAge, Compact
from pslib.table.tables import TableSpec
from pslib.wire.dense_delta import VERSIONS
from pslib.wire.messages import Changed, Changes, Erase, Failure, Load, Maintain, Push, Setup
from tests.shard.test_maintain import PLAIN, keys_in, many, push_of
from tests.support.simulated.protocol_worlds import OneServer, move_unit

ALL = np.arange(16, dtype=np.uint32)
NONE = np.empty(0, np.uint32)
SHARDS = pytest.mark.parametrize("shards", [1, 3])


def server_of(spec: TableSpec = PLAIN, shards: int = 1, units: list[int] | None = None) -> OneServer:
    setup = Setup({"tables": [spec.to_dict()]}, 0, {}, np.empty(0, np.float32))
    return OneServer(shards, units, setup=setup)


def changed(server: OneServer, since: Any = (), units: Any = NONE, **fields: Any) -> Changed:
    answer = server.ask(Changes("t", np.array(since, np.uint64), np.array(units, np.uint32), NONE, **fields))
    assert isinstance(answer, Changed), answer
    return answer


def rows_in(answer: Changed) -> dict[int, list[float]]:
    return dict(zip(answer.keys.tolist(), answer.rows.tolist(), strict=True))


@SHARDS
def test_a_first_read_tells_that_all_partitions_are_to_be_read_whole(shards: int) -> None:
    server = server_of(shards=shards)
    server.ask(push_of(0, many(100)))
    answer = changed(server)
    assert sorted(answer.owned.tolist()) == list(range(20))
    assert sorted(answer.stale.tolist()) == list(range(16))
    assert answer.stale_rows.sum() == 100
    assert not answer.keys.size


@SHARDS
def test_a_whole_partition_has_all_of_its_rows_and_is_stale_no_more(shards: int) -> None:
    server = server_of(shards=shards)
    server.ask(push_of(0, many(100)))
    answer = changed(server, changed(server).since, ALL)
    assert rows_in(answer) == {key: [1.0] * 3 for key in range(100)}
    assert not answer.stale.size


@SHARDS
def test_a_read_has_the_rows_that_were_pushed_since_the_last_one_each_once(shards: int) -> None:
    server = server_of(shards=shards)
    server.ask(push_of(0, many(100)))
    first = changed(server)
    server.ask(push_of(1, many(3)))
    server.ask(push_of(2, many(3, 2)))
    second = changed(server, first.since)
    assert rows_in(second) == {0: [2.0] * 3, 1: [2.0] * 3, 2: [3.0] * 3, 3: [2.0] * 3, 4: [2.0] * 3}
    assert not second.stale.size
    assert not changed(server, second.since).keys.size
    assert rows_in(changed(server, first.since)) == rows_in(second), "a repeated read gets them again"


def test_an_erased_key_comes_with_its_initial_values() -> None:
    server = server_of()
    server.ask(push_of(0, many(2)))
    first = changed(server)
    server.ask(Erase(8, 0, 0, 0, 0, {"t": many(1)}))
    assert rows_in(changed(server, first.since)) == {0: [0.0] * 3}


@pytest.mark.parametrize("compact", [None, Compact("v", shows=3)])
def test_rows_that_a_rule_evicts_come_with_their_initial_values(compact: Compact | None) -> None:
    server = server_of(replace(PLAIN, eviction=(ByAge(10),), compact=compact))
    server.ask(push_of(0, many(6), step=0, shows=9.0))
    server.ask(push_of(1, many(4), step=50))
    server.ask(push_of(2, many(4, 10), step=0))
    first = changed(server)
    server.ask(Maintain(9, 0, 0, 0, 0, "t", 50, 0.0, False, ALL))
    second = changed(server, first.since)
    assert rows_in(second) == {key: [0.0] * 3 for key in (4, 5, 10, 11, 12, 13)}
    assert not second.stale.size


def test_a_whole_partition_of_a_compact_table_has_its_narrow_rows() -> None:
    server = server_of(replace(PLAIN, compact=Compact("v", shows=3)))
    server.ask(push_of(0, many(100)))
    answer = changed(server, changed(server).since, ALL)
    assert rows_in(answer) == {key: [1.0, 0.0, 0.0] for key in range(100)}


def test_a_unit_that_came_from_another_server_is_stale_and_one_that_left_is_not_owned() -> None:
    old, new = server_of(units=[0, 1]), server_of(units=[2])
    old.ask(push_of(0, keys_in(1)))
    before = changed(old), changed(new)
    move_unit(1, old, new, owner=1, version=2)
    after = changed(old, before[0].since), changed(new, before[1].since)
    assert after[0].owned.tolist() == [0]
    assert after[1].owned.tolist() == [1, 2]
    assert after[1].stale.tolist() == [1]
    assert after[1].stale_rows.tolist() == [1]
    assert not changed(new, after[1].since).stale.size


def test_a_unit_that_came_is_told_once_however_late_a_reader_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "CHANGES_MAX", 3)
    old, new = server_of(units=[0, 1]), server_of(units=[2])
    answer = changed(new)
    for number in range(12):
        new.ask(push_of(number, keys_in(2)))
    move_unit(1, old, new, owner=1, version=2)
    told = list[int]()
    while answer.since[1] < answer.ends[0] or not told:
        answer = changed(new, answer.since, answer.stale if told else NONE)
        told += answer.stale.tolist()
    assert told == [1]


def test_keys_of_a_unit_that_has_left_are_in_no_answer() -> None:
    old, new = server_of(units=[0, 1]), server_of(units=[2])
    first = changed(old)
    old.ask(push_of(0, keys_in(0, 1)))
    move_unit(1, old, new, owner=1, version=2)
    assert changed(old, first.since).keys.tolist() == keys_in(0).tolist()


def test_a_reader_of_another_life_of_the_server_reads_all_partitions_again() -> None:
    since = changed(server_of()).since
    assert changed(server_of(), since).stale.size == 16


def test_a_reader_that_comes_too_late_reads_all_partitions_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeLog.__init__, "__defaults__", (8,))
    server = server_of()
    first = changed(server)
    server.ask(push_of(0, many(8)))
    assert sorted(rows_in(changed(server, first.since))) == list(range(8))
    server.ask(push_of(1, many(1)))
    assert changed(server, first.since).stale.size == 16


def test_a_log_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeLog.__init__, "__defaults__", (8,))
    server = server_of()
    changed(server)
    server.ask(push_of(0, many(9)))
    assert "t" not in server.shards[0].changes


def test_a_log_goes_on_while_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeLog.__init__, "__defaults__", (8,))
    server = server_of()
    answer = changed(server)
    for number in range(3):
        server.ask(push_of(number, many(6)))
        answer = changed(server, answer.since)
        assert sorted(rows_in(answer)) == list(range(6))


def test_a_reader_of_a_shard_that_loads_a_checkpoint_reads_all_partitions_again() -> None:
    server = server_of()
    since = changed(server).since
    request = ShardRequest(b"", 1, Load("", ""))
    run_on_shard(server.shards[0], request, lambda _shard, _message: {})
    assert changed(server, since).stale.size == 16


def test_more_changes_than_one_answer_has_come_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "CHANGES_MAX", 40)
    server = server_of()
    answer = changed(server)
    server.ask(push_of(0, many(100)))
    found, answers = set[int](), 0
    while not answers or answer.since[1] < answer.ends[0]:
        answer = changed(server, answer.since)
        found |= set(answer.keys.tolist())
        answers += 1
    assert found == set(range(100))
    assert answers == 3


def test_rows_come_in_the_type_that_is_asked_for() -> None:
    server = server_of()
    first = changed(server)
    server.ask(push_of(0, many(5)))
    answer = changed(server, first.since, rows_as="int8")
    assert answer.rows.dtype == np.int8
    assert answer.row_scales.size == 5


def test_dense_blocks_come_when_they_have_changed() -> None:
    server = OneServer(
        3, setup=Setup({"tables": [PLAIN.to_dict()]}, 8, SGD().to_dict(), np.ones(8, np.float32))
    )
    blocks = np.arange(4, dtype=np.uint32)

    def ask(known: Any) -> Changed:
        answer = server.ask(Changes("t", NONE.astype(np.uint64), NONE, blocks, known={VERSIONS: known}))
        assert isinstance(answer, Changed), answer
        return answer

    first = ask(np.zeros(4, np.uint64))
    assert first.dense.tolist() == [1.0] * 8
    known = first.dense_versions[VERSIONS]
    server.ask(Push(7, 0, 0, 0, 16, {}, {}, blocks[1:2], np.ones(2, np.float32)))
    second = ask(known)
    assert second.dense.size == 2
    assert (second.dense_versions[VERSIONS] != known).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Changes("u", NONE.astype(np.uint64), NONE, NONE), "table 'u' is unknown"),
        (Changes("t", NONE.astype(np.uint64), NONE, NONE, rows_as="f"), "rows_as: expected one of"),
        (Changes("t", NONE.astype(np.uint64), np.zeros(17, np.uint32), NONE), "units: expected at most 16"),
    ],
)
def test_a_wrong_request_is_refused_in_a_line(message: Changes, why: str) -> None:
    answer = server_of().ask(message)
    assert isinstance(answer, Failure)
    assert why in answer.text


def test_a_log_gives_the_last_keys_in_order_wherever_its_ring_begins() -> None:
    for size in (5, 8):
        log, told = ChangeLog(size), np.empty(0, np.uint64)
        for count in (3, 1, 0, 4, 11, 2, 8):
            log.note(many(count, told.size))
            told = np.append(told, many(count, told.size))
            for position in range(log.first, log.end + 1):
                assert log.read(position, size).tolist() == told[position:].tolist()
    assert change_log.KEYS >= 100_000 * 20
