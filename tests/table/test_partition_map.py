"""The map: a value that gives the owner of each unit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.errors import ConfigurationError
from pslib.table.partition_map import PartitionMap, mask_of_units, units_of_mask


@given(st.integers(0, 8), st.integers(1, 70), st.integers(1, 40))
def test_the_first_map_is_even_and_gives_every_unit_one_owner(bits: int, blocks: int, servers: int) -> None:
    made = PartitionMap.even(bits, blocks, tuple(map(str, range(servers))))
    assert (made.partitions, made.dense_blocks, made.servers) == (1 << bits, blocks, servers)
    for owners in (made.owners[: 1 << bits], made.owners[1 << bits :]):
        counts = np.bincount(owners, minlength=servers)
        assert counts.max() - counts.min() <= 1
    units = np.concatenate([made.units_of(server) for server in range(servers)])
    assert sorted(units.tolist()) == list(range(made.owners.size))


def test_partitions_lie_in_stretches_and_dense_blocks_in_turn() -> None:
    made = PartitionMap.even(2, 5, ("a", "b"))
    assert made.owners.tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 0]
    assert made.units_of(0).tolist() == [0, 1, 4, 6, 8]
    assert made.units_of(1).tolist() == [2, 3, 5, 7]


def test_a_move_makes_the_next_version_and_leaves_the_old_one_as_it_was() -> None:
    before = PartitionMap.even(2, 5, ("a", "b"))
    after = before.moved(6, 1)
    assert (before.version, after.version) == (1, 2)
    assert (before.owners[6], after.owners[6]) == (0, 1)
    assert (before.owners != after.owners).sum() == 1


def test_every_owner_must_have_an_address() -> None:
    with pytest.raises(ConfigurationError, match="owner 3 has no address"):
        PartitionMap(1, 1, np.array([0, 1, 3], np.uint16), ("a", "b"))


def test_a_map_has_at_least_one_dense_block() -> None:
    with pytest.raises(ConfigurationError, match="expected more than 4 units, got 4"):
        PartitionMap(1, 2, np.zeros(4, np.uint16), ("a",))


@given(st.sets(st.integers(0, 5000)))
def test_a_mask_holds_exactly_its_units(units: set[int]) -> None:
    ordered = sorted(units)
    mask = mask_of_units(np.array(ordered, np.int64))
    assert mask == sum(1 << unit for unit in units)
    assert units_of_mask(mask).tolist() == ordered
