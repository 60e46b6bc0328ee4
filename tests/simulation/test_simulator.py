"""Exactly once, in hundreds of small worlds; and the same worlds find each bug that is planted in them.

A failing seed names itself and the command that runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pslib.errors import MemoryLimitError
from pslib.shard.key_slices import Shares
from pslib.shard.serving import Steps
from pslib.shard.shard import Shard, ShardPart
from pslib.wire.applied_pushes import Marks
from pslib.wire.messages import Adopt, Image, Push, Release
from tests.support.invariants import SimulationError
from tests.support.simulator import World

SEEDS, CHUNK = 500, 50
SOAK_SEEDS = 20_000


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_acknowledged_push_counts_exactly_once(first: int) -> None:
    for seed in range(first, first + CHUNK):
        World(seed).run()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_acknowledged_push_counts_exactly_once_in_many_more_worlds() -> None:
    for seed in range(SEEDS, SEEDS + SOAK_SEEDS):
        World(seed).run()


def test_a_seed_gives_the_same_world_again() -> None:
    def trace_of(seed: int) -> list[str]:
        lines: list[str] = []
        World(seed, trace=lambda line: lines.append(line.partition("<")[0])).run()
        return lines

    assert trace_of(3) == trace_of(3)
    assert trace_of(3) != trace_of(4)


def test_the_worlds_hold_what_they_promise() -> None:
    """A simulator in which nothing goes wrong proves nothing: count the mishaps."""
    seeds, resent, moved, refused, lost, fenced, taken_over = 20, 0, 0, [], 0, 0, 0
    for seed in range(seeds):
        refusals: list[str] = []
        world = World(seed, trace=refusals.append).run()
        refused.append(
            sum(
                "Pu" in line and "refused_units=array([]" not in line and "refused_units" in line
                for line in refusals
            )
        )
        resent += sum(asker.requests.resent for asker in world.askers)
        moved += world.map.version - 1
        lost += any(trainer.lost for trainer in world.trainers)
        fenced += any(trainer.lost and not trainer.running for trainer in world.trainers)
        taken_over += sum(1 in trainer._epochs.values() for trainer in world.trainers)
    assert resent > seeds * 20
    assert moved > seeds * 5
    assert sum(refused) > seeds * 3
    assert min(lost, fenced, taken_over) > 3


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


class UnnamedMoves(Shard):
    """Moves have no name: a late Adopt makes a second owner, a late Release an orphan."""

    def adopt(self, message: Adopt) -> None:
        if not self.owned >> message.unit & 1:
            self.moves.moved.pop(message.unit, None)
            super().adopt(message)

    def release(self, message: Release) -> Image:
        if not self.owned >> message.unit & 1:
            return self.moves.released[message.unit]
        self.moves.moved.pop(message.unit, None)
        return super().release(message)


@pytest.mark.parametrize(
    ("marks", "make_shard", "seeds"),
    [
        (NoMarks, Shard, 5),
        (HighestNumber, Shard, 20),
        (MarksStayBehind, Shard, 100),
        (MarksOfTheServer, Shard, 100),
        (NoFloor, Shard, 300),
        (FloorTooHigh, Shard, 20),
        (Marks, UnnamedMoves, 300),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_bug_is_caught_and_the_seed_named(
    marks: type[Marks], make_shard: Callable[..., Shard], seeds: int
) -> None:
    def error_of(seed: int) -> str:
        try:
            World(seed, marks=marks, make_shard=make_shard).run()
        except SimulationError as error:
            return str(error)
        return ""

    first = next(seed for seed in range(seeds) if error_of(seed))  # StopIteration: not caught
    assert error_of(first).endswith(f"python -m tests.support.simulator {first}")


class FullShard(Shard):
    """Has no room for every third push, at first."""

    refused = 0

    def push_steps(self, message: Push, shares: Shares | None = None) -> Steps[ShardPart]:
        if (message.number + FullShard.refused) % 3 == 0 and FullShard.refused < 60:
            FullShard.refused += 1
            raise MemoryLimitError("memory limit: planted")
        return super().push_steps(message, shares)


def test_a_push_that_was_refused_for_want_of_room_counts_once_when_it_is_sent_again() -> None:
    for seed in range(20):
        FullShard.refused = 0
        World(seed, make_shard=FullShard).run()
        assert FullShard.refused > 0
