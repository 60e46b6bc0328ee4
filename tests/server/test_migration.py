"""A source hands its units over: its requests, their order, and retries after a loss or restart."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pslib.client.pending import Pending
from pslib.clock import SystemClock
from pslib.errors import PslibError
from pslib.server.migration import Action, Migration
from pslib.server.migration_thread import MigrationThread
from pslib.wire.fields import Message
from pslib.wire.messages import Adopt, Done, Failure, Hand, Image, Keep, Release, Setup
from tests.support.simulated.protocol_worlds import (
    OneServer,
    keys_in,
    push_ones,
    refusals,
    setup_of,
    values_of,
)
from tests.support.waiting import PATIENCE_S

UNITS = (3, 4, 5, 6, 7, 8)
IN_FLIGHT_MAX = 4
FULL = Failure("memory-limit", "no room")


def hand(version: int = 2, units: tuple[int, ...] = UNITS, address: str = "b") -> Hand:
    owners = np.ones(len(units), np.uint16)
    return Hand("hand", version, ["a", address], np.asarray(units, np.uint32), owners)


def of(actions: list[Action], kind: type[Any]) -> list[int]:
    return [action.unit for action in actions if isinstance(action.message, kind)]


def image(unit: int, version: int = 2) -> Image:
    return Image(unit, version, {}, {}, {"t": np.zeros(5, np.uint64)})


class Source:
    """A session whose target has the tables already."""

    def __init__(self, units: tuple[int, ...] = UNITS) -> None:
        self.session = Migration(lambda: setup_of(t=1), IN_FLIGHT_MAX)
        self.session.take(hand(units=units))
        (setup,) = self.session.actions(0.0)
        assert isinstance(setup.message, Setup)
        self.session.answered(0.0, setup, Done())

    def turn(self, now_s: float = 0.0) -> list[Action]:
        return self.session.actions(now_s)

    def release(self, count: int = 1) -> list[Action]:
        """Release all that may be, and take the images; the adoptions to be sent."""
        for action in self.turn()[:count]:
            self.session.answered(0.0, action, image(action.unit))
        return [action for action in self.turn() if isinstance(action.message, Adopt)]

    def told(self) -> tuple[list[int], list[int]]:
        report = self.session.report(0, 100)
        return report.done.tolist(), report.kept.tolist()


class TestOrder:
    def test_nothing_is_released_before_our_tables_are_at_the_new_owner(self) -> None:
        """A client that is refused asks the new owner at once, and would hear that the table is unknown."""
        session = Migration(lambda: setup_of(t=1), IN_FLIGHT_MAX)
        session.take(hand())
        (setup,) = session.actions(0.0)
        assert (setup.address, session.actions(0.0)) == ("b", [])
        session.answered(0.0, setup, Done())
        assert of(session.actions(0.0), Release) == [3, 4, 5, 6]

    def test_a_source_that_was_told_of_a_part_of_a_wave_does_the_rest_when_it_is_told_of_all(self) -> None:
        """Its predecessor had done the rest, and a coordinator that comes back does not know which."""
        source = Source(units=(5,))
        source.session.answered(0.0, source.release()[0], Done())
        assert source.session.over
        source.session.take(hand())
        assert not source.session.over
        assert source.told() == ([5], [])
        assert of(source.turn(), Release) == [3, 4, 6, 7]

    def test_a_few_units_are_on_their_way_at_a_time(self) -> None:
        source = Source()
        adopts = source.release(IN_FLIGHT_MAX)
        assert (len(adopts), source.turn()) == (IN_FLIGHT_MAX, [])
        source.session.answered(0.0, adopts[0], Done())
        assert of(source.turn(), Release) == [7]

    def test_what_has_arrived_is_reported_with_its_bytes(self) -> None:
        source = Source()
        (adopt,) = source.release()
        source.session.answered(0.0, adopt, Done())
        assert source.session.report(0, 100).bytes == 40
        assert source.told() == ([3], [])
        assert source.session.report(0, 100).bytes == 0


class TestTablesThatAreSetUpMeanwhile:
    @pytest.mark.parametrize(
        ("before", "since", "unit"),
        [
            (setup_of(t=1), setup_of(u=1), 3),
            (setup_of(), setup_of(t=1), 3),
            (setup_of(t=1), setup_of(dense_length=7), 17),
        ],
        ids=["one more", "the first one", "dense parameters"],
    )
    def test_they_are_at_the_new_owner_before_the_image_that_has_them(
        self, before: Setup, since: Setup, unit: int
    ) -> None:
        old, new = OneServer(), OneServer(1, [])
        old.ask(before)
        session = Migration(old.shards[0].setup_message)
        session.take(hand(units=(unit,)))
        asked: list[str] = []
        while not session.over:
            for action in session.actions(0.0):
                asked.append(action.message.kind)
                answer = (new if action.address else old).ask(action.message)
                session.answered(0.0, action, answer)
                if len(asked) == 1:
                    old.ask(since)
        assert asked == ["Setup", "Release", "Setup", "Adopt"]
        assert session.report(0, 100).done.tolist() == [unit]

    def test_an_image_with_tables_that_can_not_be_described_yet_waits_until_they_can(self) -> None:
        described = {"t": 1}
        session = Migration(lambda: setup_of(**described))
        session.take(hand(units=(3,)))
        for made in (Done(), Image(3, 2, {}, {}, {name: np.zeros(1, np.uint64) for name in "tu"})):
            (action,) = session.actions(0.0)
            session.answered(0.0, action, made)
        assert session.actions(0.0) == session.actions(0.2) == []
        described["u"] = 1
        (setup,) = session.actions(0.6)
        session.answered(0.6, setup, Done())
        assert of(session.actions(0.6), Adopt) == [3]


class TestRefusals:
    def test_a_unit_that_is_refused_is_taken_back_and_reported_with_the_reason(self) -> None:
        source = Source()
        (adopt,) = source.release()
        source.session.answered(0.0, adopt, FULL)
        (keep,) = [action for action in source.turn() if isinstance(action.message, Keep)]
        source.session.answered(0.0, keep, Done())
        assert source.told() == ([], [3])
        assert source.session.report(0, 100).reason == "server 1 does not take unit 3: no room"

    def test_a_unit_that_can_not_be_taken_back_now_is_taken_back_later(self) -> None:
        """A full disk: its log does not take the unit."""
        source = Source((3,))
        (adopt,) = source.release()
        source.session.answered(0.0, adopt, FULL)
        (keep,) = source.turn()
        source.session.answered(1.0, keep, Failure("log-full", "no space left"))
        assert (source.turn(1.2), source.session.over) == ([], False)
        (again,) = source.turn(1.6)
        source.session.answered(1.6, again, Done())
        assert source.told() == ([], [3])

    def test_a_new_owner_that_has_other_tables_gets_nothing(self) -> None:
        session = Migration(lambda: setup_of(t=1), IN_FLIGHT_MAX)
        session.take(hand())
        session.answered(0.0, session.actions(0.0)[0], Failure("configuration", "table t exists"))
        assert session.over
        assert session.report(0, 100).kept.tolist() == list(UNITS)

    def test_a_unit_that_can_not_be_released_stays(self) -> None:
        source = Source((3,))
        (release,) = source.turn()
        source.session.answered(0.0, release, Failure("configuration", "took part in a later move"))
        assert source.session.over
        assert source.told() == ([], [3])


class TestAgain:
    @pytest.mark.parametrize("answer", [None, Failure("unavailable", "not now"), Failure("internal", "?")])
    def test_an_owner_that_does_not_answer_is_asked_again_after_a_pause(self, answer: Any) -> None:
        source = Source((3,))
        (adopt,) = source.release()
        source.session.answered(1.0, adopt, answer)
        assert source.turn(1.2) == []
        assert of(source.turn(1.6), Adopt) == [3]

    def test_an_owner_that_has_moved_is_asked_at_its_new_address(self) -> None:
        source = Source((3,))
        (old,) = source.release()
        source.session.take(hand(units=(3,), address="c"))
        (setup,) = source.turn()
        source.session.answered(0.0, setup, Done())
        (new,) = source.turn()
        assert (new.address, new.message) == ("c", old.message)
        source.session.answered(0.0, old, None)  # no call waits for that any more
        source.session.answered(0.0, new, Done())
        assert source.told() == ([3], [])

    def test_answers_of_an_earlier_wave_mean_nothing(self) -> None:
        source = Source((3,))
        (adopt,) = source.release()
        source.session.take(hand(version=3, units=(4,)))
        source.session.answered(0.0, adopt, Done())
        assert source.told() == ([], [])


class World:
    """Real shards, a source whose session is lost now and then, and messages that are lost or late."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.servers = {"a": OneServer(2), "b": OneServer(2, [])}
        self.servers["a"].ask(setup_of(dense_length=7, t=1))
        self.servers["a"].ask(push_ones(0, keys_in(*UNITS)))
        self.session = Migration(self.servers["a"].shards[0].setup_message)
        self.late: list[Action] = []

    def run(self) -> None:
        """Hand over until all is over, while answers are lost and copies come late."""
        self.session.take(hand())
        now_s = 0.0
        for _ in range(2000):
            now_s += 0.3
            if self.session.over:
                return
            for action in self.session.actions(now_s):
                self._do(now_s, action)
            if self.random.random() < 0.1:  # the process of the source has started again, from its log
                self.session = Migration(self.servers["a"].shards[0].setup_message)
                self.session.take(hand())
        raise AssertionError("it never ends")

    def _do(self, now_s: float, action: Action) -> None:
        if action.address and self.random.random() < 0.3:
            self.session.answered(now_s, action, None)  # lost on its way there
            self.late.append(action)
            return
        server = self.servers[action.address or "a"]
        answer = server.ask(action.message)
        lost = action.address and self.random.random() < 0.3
        self.session.answered(now_s, action, None if lost else answer)


@pytest.mark.parametrize("seed", range(20))
def test_each_unit_has_one_owner_and_all_its_rows_whatever_is_lost_or_comes_late(seed: int) -> None:
    world = World(seed)
    world.run()
    report = world.session.report(0, 100)
    for action in world.late:  # copies that the network has kept
        world.servers[action.address].ask(action.message)
    owned = [sum(shard.owned for shard in server.shards) for server in world.servers.values()]
    assert owned[0] & owned[1] == 0
    assert owned[0] | owned[1] == (1 << 20) - 1
    for unit in UNITS:
        owner = world.servers["b" if unit in report.done else "a"]
        assert values_of(owner, keys_in(unit)) == [1.0]
        assert refusals(owner.ask(push_ones(0, keys_in(unit)))) == {}  # known there: it counts once
        assert values_of(owner, keys_in(unit)) == [1.0]


# --- its thread ---------------------------------------------------------------------------------------------


COORDINATOR, DEAD = "tcp://coordinator:1", "tcp://dead:1"


class Endpoint:
    """Endpoint whose peers, except the coordinator, never reply; records what it is told to forget."""

    def __init__(self, answers: list[Hand]) -> None:
        self._answers = answers
        self._waits: dict[str, list[Pending[Message]]] = {}
        self.done: list[tuple[str, str]] = []

    def ask(self, address: str, message: Message, _patience_s: float) -> Pending[Message]:
        pending = Pending[Message](type(message).__name__)
        if address == COORDINATOR:
            pending.succeed(self._answers.pop(0))
        else:
            self.done.append(("asked", address))
            self._waits.setdefault(address, []).append(pending)
        return pending

    def end_waits_for(self, address: str, error: PslibError) -> None:
        self.done.append(("ended", address))
        for pending in self._waits.pop(address, []):
            pending.fail(error)

    def forget(self, address: str) -> None:
        self.done.append(("forgot", address))


def test_nothing_is_kept_for_a_server_that_died_on_the_way_when_all_moves_are_over() -> None:
    """Images of up to a GiB stayed in the queue to it for as long as this server lived."""
    no_units, unit = np.zeros(0, np.uint32), np.asarray([3], np.uint32)
    hands = [
        Hand("hand", 2, ["tcp://me:1", DEAD], unit, np.ones(1, np.uint16)),
        Hand("done", 2, [], no_units, np.zeros(0, np.uint16)),
    ]
    endpoint: Any = Endpoint(hands)
    member: Any = SimpleNamespace(rank=0, incarnation=7, coordinator=COORDINATOR)
    published: list[int] = []
    work = MigrationThread(
        endpoint,
        member,
        SystemClock(),
        lambda _message, _taker: None,
        lambda: setup_of(t=1),
        published.append,
    )
    work.begin()
    assert work._thread is not None
    work._thread.join(PATIENCE_S)
    assert published == [1, 2]
    assert endpoint.done == [("asked", DEAD), ("ended", DEAD), ("forgot", DEAD)]
