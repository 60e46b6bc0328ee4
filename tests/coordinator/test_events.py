"""Events of a run: which there are, their numbers, and how many are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.config import ClusterConfig, Timing
from pslib.coordinator.events import CHARS_MAX, CHECKPOINTS_KEPT, EVENTS_KEPT, LINES_TOLD, Events
from pslib.coordinator.leases import stream_of
from pslib.coordinator.session import CoordinatorSession
from pslib.wire.messages import (
    EndLease,
    Heartbeat,
    Leave,
    NextLease,
    OpenJob,
    Register,
    Result,
    Scale,
    Status,
    Stop,
)
from pslib.wire.messages import Events as AskEvents

TIMING = Timing(silence_s=6.0, restart_s=30.0)
CONFIG = ClusterConfig(
    servers=1, trainers=1, partition_bits=5, dense_blocks=4, restarts=3, durability="log", timing=TIMING
)
NO_STREAMS = np.zeros(0, np.uint64)


class Run:
    """A session of one server and one trainer that have started."""

    def __init__(self) -> None:
        self.session = CoordinatorSession(CONFIG)
        self.session.history.unix_s = lambda: 1000.0 + self.now_s
        self.now_s = 0.0
        self.ask(Register("server", "tcp://a", 10, 7, "host", 0))
        self.beat("server", 10)
        self.ask(Register("trainer", "", 20, 8, "host", 0))
        self.ask(Register("trainer", "", 20, 8, "host", 0))  # until all are there

    def ask(self, message: Any) -> Any:
        return self.session.handle(self.now_s, message)

    def beat(self, role: str, incarnation: int) -> Any:
        return self.ask(Heartbeat(role, 0, incarnation, 1, {}))

    def pass_s(self, seconds: float, *live: tuple[str, int]) -> None:
        """Let time pass in which these processes are heard."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for role, incarnation in live:
                self.beat(role, incarnation)
            self.session.tick(self.now_s)

    def events(self, after: int = 0) -> list[tuple[str, str | None, float]]:
        """Kind, role and time of what the coordinator gives."""
        answer = self.ask(AskEvents(after))
        assert isinstance(answer, Result)
        assert answer.values["last"] == len(self.session.history.after(0))
        return [(one["kind"], one["role"], one["at_s"]) for one in answer.values["events"]]


JOINED = [("joined", "server", 1000.0), ("joined", "trainer", 1000.0)]


def test_each_process_joins_once_however_often_it_registers() -> None:
    run = Run()
    assert run.events() == JOINED
    assert run.session.events == []  # nobody is told while all goes well


def test_a_lost_process_its_ghost_and_its_successor_are_events() -> None:
    run = Run()
    run.pass_s(7, ("server", 10))
    assert run.beat("trainer", 20).order == "fail"
    run.beat("trainer", 20)
    run.ask(Register("trainer", "", 21, 9, "host", 0, 1))
    kinds = [(kind, role) for kind, role, _ in run.events(after=2)]
    told = ["silent", "lost", "fenced", "lost", "back"]
    assert kinds == [(kind, "trainer") for kind in told]
    assert run.events()[3][2] == 1007.0


def test_silence_is_an_event_before_the_loss_and_so_is_its_end() -> None:
    run = Run()
    run.pass_s(4, ("trainer", 20))
    run.pass_s(4, ("trainer", 20), ("server", 10))
    run.pass_s(4, ("trainer", 20))
    kinds = [(kind, role) for kind, role, _ in run.events(after=2)]
    assert kinds == [("silent", "server"), ("heard", "server"), ("silent", "server")]


def test_a_server_that_another_replaces_at_once_was_lost() -> None:
    run = Run()
    run.ask(Register("server", "tcp://b", 11, 9, "host", 0, 1))
    assert [kind for kind, _, _ in run.events(after=2)] == ["lost", "back"]


def test_a_restarted_server_is_back() -> None:
    run = Run()
    run.pass_s(7, ("trainer", 20))
    run.ask(Register("server", "tcp://b", 11, 9, "host", 0, 1))
    assert ("back", "server", 1007.0) in run.events(after=2)


def test_the_end_of_an_epoch_is_an_event_and_that_of_a_lease_is_none() -> None:
    run = Run()
    windows = np.array([0, 0, 1, 1], np.uint32)
    run.ask(OpenJob(0, 0, "fit", 5, {"epochs": 2, "examples": 8}, windows))
    told = []
    for index in range(4):
        run.ask(NextLease(0, 20, 0, NO_STREAMS))
        run.ask(EndLease(0, 20, 0, stream_of(0, index), 0, {}))
        run.ask(EndLease(0, 20, 0, stream_of(0, index), 0, {}))  # a second copy
        told.append([kind for kind, _, _ in run.events(after=2)])
    assert told == [[], ["epoch"], ["epoch"], ["epoch", "epoch"]]
    assert run.session.history.after(3)[0]["text"] == "epoch 2 is done"


def test_scaling_leaving_stopping_and_failing_are_events() -> None:
    run = Run()
    run.ask(Scale(2, [], 5))
    run.ask(Leave("trainer", 0, 20, {}))
    run.ask(Leave("trainer", 0, 20, {}))
    run.ask(Stop("enough", False))
    run.ask(Stop("broken", True))
    kinds = [kind for kind, _, _ in run.events(after=2)]
    assert kinds == ["scaled", "left", "stopped", "failed"]
    assert run.session.events[-1] == "broken"


def test_details_have_owners_and_a_count_of_partitions() -> None:
    status = Run().ask(Status(True)).values
    assert status["owners"] == [[0, 32]]
    assert [one["partitions"] for one in status["members"] if one["role"] == "server"] == [32]
    assert (status["moving"], status["checkpoints"], status["fields"]) == ([], [], {})


def test_details_have_sums_of_fields_and_tables_in_place_of_each_members() -> None:
    run = Run()
    counts = {"field_names": ["user"], "field_keys": [40], "field_distinct": [9], "field_batches": 2}
    run.ask(Heartbeat("trainer", 0, 20, 1, counts))
    run.ask(Heartbeat("server", 0, 10, 1, {"tables": {"embedding": {"rows": 5}}}))
    status = run.ask(Status(True)).values
    assert status["fields"] == {"names": ["user"], "batches": 2, "keys": [40], "distinct": [9]}
    assert status["tables"] == {"embedding": {"rows": 5}}
    assert not any("tables" in one or "field_keys" in one for one in status["members"])


def test_the_last_events_are_kept_and_given_once() -> None:
    events = Events()
    for number in range(EVENTS_KEPT + 30):
        events.tell(f"{number}" * 300, "note")
    given = events.after(0)
    assert (len(given), given[0]["number"], given[-1]["number"]) == (EVENTS_KEPT, 31, EVENTS_KEPT + 30)
    assert all(len(one["text"]) <= CHARS_MAX for one in given)
    assert [one["number"] for one in events.after(EVENTS_KEPT + 28)] == [EVENTS_KEPT + 29, EVENTS_KEPT + 30]
    assert events.after(EVENTS_KEPT + 99) == []
    assert len(events.lines) == LINES_TOLD


def test_checkpoints_are_kept_beside_the_events() -> None:
    events = Events()
    events.unix_s = lambda: 7.0
    for number in range(CHECKPOINTS_KEPT + 5):
        events.saved(
            "saved", {"path": f"p/{number}", "kind": "full", "bytes": 1, "took_s": 2.0, "pause_s": 0.1}
        )
    for _ in range(EVENTS_KEPT):
        events.note("x", "joined")
    assert len(events.checkpoints) == CHECKPOINTS_KEPT
    assert events.checkpoints[-1]["path"] == f"p/{CHECKPOINTS_KEPT + 4}"
    assert events.checkpoints[-1]["at_s"] == 7.0
    again = Events()
    again.restore(events.plain())
    assert again.plain() == events.plain()


@pytest.mark.parametrize("kind", ["note", "saved"])
def test_nothing_happens_twice_where_a_journal_is_read(kind: str) -> None:
    events = Events()
    events.replaying = lambda: True
    events.tell("x", kind)
    assert events.after(0) == []
