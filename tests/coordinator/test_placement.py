"""Placement of units: even shares, as few moves as can be, and the same ones every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pslib.coordinator.rebalance import even_owners
from pslib.errors import ConfigurationError
from pslib.table.partition_map import PartitionMap

PARTITIONS = 16


@some.composite
def placements(draw: some.DrawFn) -> tuple[np.ndarray, list[int]]:
    """Owners of 16 partitions and a few dense blocks, and the servers that shall own them from now on."""
    blocks = draw(some.integers(1, 9))
    owners = draw(some.lists(some.integers(0, 5), min_size=PARTITIONS + blocks, max_size=PARTITIONS + blocks))
    servers = draw(some.lists(some.integers(0, 7), min_size=1, unique=True))
    return np.asarray(owners, np.uint16), servers


def fewest_moves(owners: list[int], servers: list[int]) -> int:
    """The definition: of all even shares the one that lets most units stay, found by trying all of them."""
    share, larger = divmod(len(owners), len(servers))
    owned = {rank: owners.count(rank) for rank in servers}
    gains = sorted((min(owned[rank], share + 1) - min(owned[rank], share) for rank in servers), reverse=True)
    stay = sum(min(owned[rank], share) for rank in servers) + sum(gains[:larger])
    return len(owners) - stay


class TestPlan:
    @settings(max_examples=200, deadline=None)
    @given(placements())
    def test_shares_are_even_and_nobody_else_owns_anything(
        self, given_: tuple[np.ndarray, list[int]]
    ) -> None:
        owners, servers = given_
        after = even_owners(owners, PARTITIONS, servers)
        assert after.dtype == np.uint16
        assert set(after.tolist()) <= set(servers)
        for units in (after[:PARTITIONS], after[PARTITIONS:]):
            counts = [int((units == rank).sum()) for rank in servers]
            assert max(counts) - min(counts) <= 1

    @settings(max_examples=200, deadline=None)
    @given(placements())
    def test_no_other_even_placement_moves_fewer_units(self, given_: tuple[np.ndarray, list[int]]) -> None:
        owners, servers = given_
        after = even_owners(owners, PARTITIONS, servers)
        for units in (slice(PARTITIONS), slice(PARTITIONS, None)):
            moved = int((after[units] != owners[units]).sum())
            assert moved == fewest_moves(owners[units].tolist(), servers)

    @settings(max_examples=100, deadline=None)
    @given(placements(), some.data())
    def test_a_plan_that_is_half_done_is_planned_on_to_the_same_end_and_no_unit_moves_twice(
        self, given_: tuple[np.ndarray, list[int]], data: some.DataObject
    ) -> None:
        """Nothing of a plan has to be remembered: what is left follows from who owns what."""
        owners, servers = given_
        after = even_owners(owners, PARTITIONS, servers)
        moving = np.flatnonzero(after != owners)
        done = data.draw(some.lists(some.sampled_from(moving.tolist()), unique=True)) if moving.size else []
        halfway = owners.copy()
        halfway[done] = after[done]
        on = even_owners(halfway, PARTITIONS, servers)
        assert (on[done] == after[done]).all()
        assert int((on != halfway).sum()) == moving.size - len(done)

    def test_an_even_map_stays_as_it_is(self) -> None:
        owners = PartitionMap.even(6, 7, ("a", "b", "c")).owners
        assert (even_owners(owners, 64, range(3)) == owners).all()

    def test_two_servers_give_half_of_their_units_to_two_new_ones(self) -> None:
        owners = PartitionMap.even(12, 64, ("a", "b")).owners
        after = even_owners(owners, 4096, range(4))
        assert np.bincount(after[:4096]).tolist() == [1024] * 4
        assert np.bincount(after[4096:]).tolist() == [16] * 4
        assert int((after != owners).sum()) == 2080

    def test_nobody_to_own_the_units_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="at least one server"):
            even_owners(np.zeros(5, np.uint16), 4, ())
