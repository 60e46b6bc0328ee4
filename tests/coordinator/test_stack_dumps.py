"""Stacks of a process on request: with the answer of a heartbeat and the heartbeat after it."""

from __future__ import annotations

from typing import Any

import pytest

from pslib.coordinator.session import CoordinatorSession
from pslib.coordinator.stack_dumps import WANTED_S
from pslib.process.stacks import STACKS_CHARS_MAX
from pslib.wire.messages import (
    STACKS,
    Beat,
    DumpStacks,
    Failure,
    Heartbeat,
    Register,
    Result,
    Status,
)
from tests.coordinator.test_events import CONFIG

NOTHING_YET = Result({"stacks": None})


class Run:
    """A session with one server."""

    def __init__(self) -> None:
        self.session, self.now_s = CoordinatorSession(CONFIG), 0.0
        self.ask(Register("server", "tcp://a", 10, 7, "host", 0))

    def ask(self, message: Any) -> Any:
        return self.session.handle(self.now_s, message)

    def beat(self, **progress: Any) -> str:
        """The reason in the answer of a heartbeat."""
        answer = self.ask(Heartbeat("server", 0, 10, 1, progress))
        assert isinstance(answer, Beat)
        assert answer.order == "go"
        return answer.reason


def test_stacks_come_with_the_heartbeat_after_the_request() -> None:
    run = Run()
    assert run.beat() == ""
    assert run.ask(DumpStacks("server", 0)) == NOTHING_YET
    assert run.beat() == STACKS
    assert run.ask(DumpStacks("server", 0)) == NOTHING_YET
    assert run.beat(stacks="thread main", rows=3) == ""
    assert run.ask(DumpStacks("server", 0)) == Result({"stacks": "thread main"})
    (server,) = run.ask(Status(True)).values["members"]
    assert (server["rows"], "stacks" in server) == (3, False)
    assert run.ask(DumpStacks("server", 0)) == NOTHING_YET  # given once: the next one is a new one


def test_stacks_that_nobody_asked_for_are_not_kept() -> None:
    run = Run()
    run.beat(stacks="x" * 100)
    assert run.ask(DumpStacks("server", 0)) == NOTHING_YET


def test_a_long_text_is_cut_and_one_that_is_none_is_ignored() -> None:
    run = Run()
    run.ask(DumpStacks("server", 0))
    run.beat(stacks=[1, 2])
    run.beat(stacks="x" * (STACKS_CHARS_MAX + 9))
    assert len(run.ask(DumpStacks("server", 0)).values["stacks"]) == STACKS_CHARS_MAX


def test_a_request_is_forgotten_when_nobody_asks_again() -> None:
    run = Run()
    run.ask(DumpStacks("server", 0))
    run.now_s += WANTED_S + 1
    assert run.beat() == ""


@pytest.mark.parametrize(("role", "rank"), [("server", 1), ("trainer", 0), ("nobody", 0)])
def test_a_process_that_is_not_there_is_named(role: str, rank: int) -> None:
    refused = Run().ask(DumpStacks(role, rank))
    assert refused == Failure(
        "configuration", f"stacks: expected a live process, got {role} {rank}: there is none"
    )


def test_the_coordinator_gives_its_own_at_once() -> None:
    run = Run()
    run.session.stacks.own = lambda: "thread coordinator"
    assert run.ask(DumpStacks("coordinator", 0)) == Result({"stacks": "thread coordinator"})
