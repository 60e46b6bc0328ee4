"""A server that comes back without what it had acknowledged is found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from pslib.client.acknowledged import KEPT, Acknowledged
from pslib.client.calls import Part, PullCall, PushCall, PushName
from pslib.config import ClusterConfig
from pslib.coordinator.session import CoordinatorSession
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.applied_pushes import Marks
from pslib.wire.messages import Done, Failure, Heartbeat, Missing, Pushed, Register, Result, Setup, Witness
from tests.support.simulated.protocol_worlds import (
    BITS,
    OneServer,
    answer,
    asked,
    completed,
    keys_in,
    make_client,
    push_ones,
)

NO_BLOCKS = np.empty(0, np.uint32)
CONFIG = ClusterConfig(servers=1, trainers=1, partition_bits=5, dense_blocks=4, durability="log")


def call_of(number: int, *keys: int) -> PushCall:
    own = {"t": np.array(keys, np.uint64)}
    return PushCall(PushName(7, number), 0, {}, own, np.empty(0, np.float32))


def part_of(server: int, *places: int) -> Part:
    return Part(1, server, {"t": np.array(places, np.int32)} if places else {"t": None}, NO_BLOCKS, 0)


def test_the_last_pushes_of_each_server_are_remembered_with_a_unit_that_they_touched() -> None:
    acknowledged = Acknowledged(BITS)
    assert acknowledged.question(0) is None
    for number in range(KEPT + 5):
        acknowledged.note(call_of(number, 3, 4, 5), part_of(0, 1, 2))
    acknowledged.note(call_of(77, 9), part_of(1))
    first, second = acknowledged.question(0), acknowledged.question(1)
    assert first is not None
    assert second is not None
    assert first.numbers.tolist() == list(range(5, KEPT + 5))
    assert set(first.units.tolist()) == set(partition_of(np.array([4, 5], np.uint64), BITS).tolist()), (
        "in turn"
    )
    assert (second.streams.tolist(), second.numbers.tolist()) == ([7], [77])


def test_pulls_and_empty_pushes_are_no_witnesses() -> None:
    acknowledged = Acknowledged(BITS)
    acknowledged.note(PullCall({"t": np.ones(1, np.uint64)}, {}, np.empty(0, np.float32)), part_of(0))
    acknowledged.note(call_of(1), part_of(0))
    assert acknowledged.question(0) is None


def test_marks_know_what_is_applied_what_is_below_a_floor_and_what_is_over() -> None:
    marks = Marks()
    marks.record(7, 3, 0b10)
    assert [marks.knows(7, 3, unit) for unit in (0, 1)] == [False, True]
    assert not marks.knows(7, 2, 1)
    marks.raise_floor(7, 3)
    assert marks.knows(7, 2, 0)
    assert not marks.knows(9, 0, 0)
    marks.finish_below(10)
    assert marks.knows(9, 0, 0)


def test_what_was_lost_stays_unknown_whatever_others_say_of_it_since() -> None:
    """A late question, or a second copy, is answered as the first was: floors may come between."""
    marks = Marks()
    marks.record(7, 3, 0b01)
    marks.begin(0b11)
    marks.raise_floor(7, 5)
    assert marks.knows(7, 4, 0)
    assert [marks.knew(7, number, 0) for number in (3, 4)] == [True, False]
    marks.finish_below(10)
    assert [marks.knew(7, number, 0) for number in (3, 4)] == [True, False]
    assert marks.knew(7, 4, 2), "of a unit that has come since, what came with it counts"


@pytest.mark.parametrize("shards", [1, 3])
def test_a_server_says_how_many_it_does_not_know_of_units_that_it_owns(shards: int) -> None:
    keys = np.arange(8, dtype=np.uint64)
    units = partition_of(keys, BITS)
    server = OneServer(shards, units=[unit for unit in range(1 << BITS) if unit != units[7]])
    spec = TableSpec("t", (PartSpec("v", 1),))
    server.ask(Setup({"tables": [spec.to_dict()]}, 0, {}, np.empty(0, np.float32)))
    for number in range(4):
        server.ask(push_ones(number, keys[number : number + 1]))
    numbers = np.arange(8, dtype=np.uint64)
    answer = server.ask(Witness(np.full(8, 7, np.uint64), numbers, units.astype(np.uint32)))
    gone = sum(unit != units[7] for unit in units[4:].tolist())
    assert answer == Result({"unknown": gone})
    assert isinstance(server.ask(Witness(numbers, numbers[:1], units.astype(np.uint32))), Failure)


@pytest.mark.parametrize(("recovery", "ends"), [("log", True), ("partial", False)])
def test_a_loss_is_an_event_and_a_figure_and_ends_a_run_that_promised_none(recovery: str, ends: bool) -> None:
    session = CoordinatorSession(replace(CONFIG, recovery=recovery))
    session.handle(0.0, Register("server", "a", 1, 7, "host", 0))
    session.handle(0.0, Heartbeat("server", 0, 1, 1, {}))
    session.handle(0.0, Register("trainer", "", 2, 8, "host", 0))
    assert isinstance(session.handle(1.0, Missing(0, 99, 0, 5, 32)), Failure)
    session.handle(1.0, Missing(0, 2, 0, 5, 32))
    assert session.pushes_missing == 5
    assert any("server 0 came back without 5 of the last 32 pushes" in event for event in session.events)
    assert bool(session.error) == ends


def test_a_loss_that_is_told_again_counts_once() -> None:
    """A coordinator that has stood still finds a copy for each pause of the client, one behind the other."""
    session, records = CoordinatorSession(replace(CONFIG, recovery="partial")), list[Any]()
    session.journal.append = records.append
    session.handle(0.0, Register("server", "a", 1, 7, "host", 0))
    session.handle(0.0, Heartbeat("server", 0, 1, 1, {}))
    for trainer in (2, 3):
        session.handle(0.0, Register("trainer", "", trainer, 8, "host", trainer - 2))
    for trainer in (2, 3):
        for _ in range(3):
            assert session.handle(1.0, Missing(trainer - 2, trainer, 0, 5, 32)) == Done()
    assert session.pushes_missing == 10, "5 of each trainer"
    assert sum("came back without" in event for event in session.events) == 2
    image = [[session.image(1.0)]]
    for written in (records, image):
        successor = CoordinatorSession(session.config, term=1)
        for record in written:
            successor.replay(record)
        successor.handle(2.0, Missing(0, 2, 0, 5, 32))
        assert successor.pushes_missing == 10, "the coordinator is another one"
        successor.handle(3.0, Register("server", "b", 9, 7, "host", 0, 1))
        successor.handle(3.0, Missing(0, 2, 0, 5, 32))
        assert successor.pushes_missing == 15, "the server is another one"


def test_a_part_that_a_server_has_acknowledged_is_told_while_its_call_goes_on() -> None:
    """The successor of a server may be asked at any moment: a part that was left out could be lost unseen."""
    client = make_client(2, {"t": 2})
    client.push(0.0, PushName(7, 3), {"t": (keys_in(0, 9), np.ones((2, 2), np.float32))})
    number, _push = asked(client)["0"]
    assert client.acknowledged.question(0) is None
    answer(client, 0.1, number, Pushed(np.empty(0, np.uint32), np.empty(0, np.uint16)))
    assert completed(client) == []
    assert client.acknowledged.question(1) is None
    question = client.acknowledged.question(0)
    assert question is not None
    assert (question.streams.tolist(), question.numbers.tolist()) == ([7], [3])
