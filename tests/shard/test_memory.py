"""A shard's memory limit: what is refused before anything changes, and what leaves to make room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.errors import MemoryLimitError
from pslib.shard.shard import Shard
from pslib.table.policies import ByBloom, ByChance, Compact, Score
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.messages import Adopt, Push, Release, Setup
from tests.shard.test_maintain import BITS, NO_BLOCKS, NO_FLOATS, ONE, PLAIN, content, many, push_of, shard_of
from tests.support.clients import client_of
from tests.support.definitions.table import unmix64


def fill(shard: Shard) -> int:
    """Push ever new keys until the shard refuses; the number of the push that it refused."""
    for number in range(4000):
        try:
            shard.push(push_of(number, many(500, 500 * number)))
        except MemoryLimitError:
            return number
    raise AssertionError("no limit")


def test_a_full_shard_refuses_new_rows_before_anything_changes_and_still_updates_old_ones() -> None:
    shard = shard_of(PLAIN, memory_bytes=8 << 20)
    number = fill(shard)
    before, rows = content(shard), shard.stores["t"].rows
    with pytest.raises(MemoryLimitError, match="raise server_memory_bytes") as caught:
        shard.push(push_of(number, many(500, 500 * number)))
    assert "\n" not in str(caught.value)
    assert f"{rows:,} rows" in str(caught.value)
    assert "or set admission, eviction or when_full of the table" in str(caught.value)
    assert content(shard) == before
    assert shard.stores["t"].stats()["resident_bytes"] <= 8 << 20
    shard.push(push_of(number + 1, many(500)))
    assert shard.stores["t"].rows == rows


def test_a_refused_push_that_is_sent_again_when_there_is_room_counts_once() -> None:
    shard = shard_of(PLAIN, memory_bytes=8 << 20)
    number = fill(shard)
    keys = many(500, 500 * number)
    shard.stores["t"].erase(many(250 * number))
    for _ in range(3):
        shard.push(push_of(number, keys))
    rows = np.empty((500, 3), np.float32)
    assert shard.stores["t"].pull(keys, rows) == 0
    assert (rows == 1).all()


@pytest.mark.parametrize("when_full", ["oldest", "smallest_norm", "lowest_score"])
def test_a_full_shard_lets_the_worst_rows_go_and_stays_within_its_limit(when_full: str) -> None:
    limit = 8 << 20
    shard = shard_of(replace(PLAIN, when_full=when_full, score=Score()), memory_bytes=limit)
    peak = 0
    for number in range(600):
        shard.push(push_of(number, many(500, 500 * number), step=number))
        peak = max(peak, shard.stores["t"].stats()["resident_bytes"])
    stats = shard.stores["t"].stats()
    assert stats["evicted_share"] > 50_000
    assert stats["rows"] + stats["evicted_share"] == 300_000
    assert limit // 2 < peak <= limit
    if when_full == "oldest":
        assert shard.stores["t"].missing(many(500, 500 * 599)) == 0


WIDE = TableSpec("t", (PartSpec("w", 1, ONE), PartSpec("v", 64)), compact=Compact("v", shows=2))


def push_all(shard: Shard, number: int, keys: np.ndarray) -> int:
    """Push once to each key, without counts; what the table takes then."""
    store = shard.stores["t"]
    gradients = {"t": np.ones((keys.size, store.dim), np.float32)}
    shard.push(Push(7, number, 0, 0, 0, {"t": keys}, gradients, NO_BLOCKS, NO_FLOATS, step=number))
    return store.stats()["resident_bytes"]


def test_rows_that_become_wide_are_refused_at_the_limit_before_anything_changes() -> None:
    """25,000 rows take 2 MB while they are narrow, and 13 MB once they are wide."""
    shard = shard_of(WIDE, memory_bytes=8 << 20)
    for number in range(50):
        push_all(shard, number, many(500, 500 * number))
    store = shard.stores["t"]
    again = (push_all(shard, 100 + number, many(500, 500 * number)) for number in range(50))
    with pytest.raises(MemoryLimitError, match="rows, and 500 that become wide may take"):
        list(again)
    stats = store.stats()
    assert stats["resident_bytes"] <= 8 << 20
    assert stats["rows"] == 25_000
    assert stats["narrow_rows"] == 25_000 - stats["promoted"]
    assert 1_000 < stats["promoted"] < 25_000
    push_all(shard, 200, many(500))  # they are wide
    assert store.stats()["promoted"] == stats["promoted"]


@pytest.mark.parametrize("when_full", ["oldest", "lowest_score"])
def test_rows_leave_for_those_that_become_wide(when_full: str) -> None:
    limit = 8 << 20
    shard = shard_of(replace(WIDE, when_full=when_full, score=Score()), memory_bytes=limit)
    peak = 0
    for number in range(200):
        peak = max(peak, push_all(shard, 2 * number, many(500, 500 * number)))
        peak = max(peak, push_all(shard, 2 * number + 1, many(500, 500 * number)))
    stats = shard.stores["t"].stats()
    assert stats["evicted_share"] > 50_000
    assert stats["promoted"] > 20_000
    assert limit // 2 < peak <= limit


def test_so_many_rows_leave_as_rows_that_become_wide_need() -> None:
    """Narrow rows give memory back only once half of the rows of a partition have gone."""
    shard = Shard(10, 1, memory_bytes=12 << 20)
    shard.own(np.arange(1025))
    shard.setup(Setup({"tables": [replace(WIDE, when_full="oldest").to_dict()]}, 0, {}, NO_FLOATS))
    for number in range(40):
        push_all(shard, 2 * number, many(2000, 2000 * number))
        push_all(shard, 2 * number + 1, many(2000, 2000 * number))
    stats = shard.stores["t"].stats()
    assert stats["promoted"] > 20_000
    assert stats["resident_bytes"] <= 13 << 20


def test_places_of_narrow_rows_are_none_for_rows_that_become_wide() -> None:
    shard = shard_of(WIDE, memory_bytes=8 << 20)
    with pytest.raises(MemoryLimitError):
        list(push_all(shard, number, many(500, 500 * number)) for number in range(1_000))
    store = shard.stores["t"]
    rows = store.rows
    store.erase(many(rows // 2))
    shard.room.forget()
    push_all(shard, 2_000, many(500))  # for other narrow rows they are
    again = (push_all(shard, 2_001 + n, many(500, rows // 2 + 500 * n)) for n in range(rows // 1000))
    with pytest.raises(MemoryLimitError, match="500 that become wide"):
        list(again)
    assert store.stats()["resident_bytes"] <= 8 << 20


def test_a_unit_of_narrow_rows_that_does_not_fit_is_not_adopted() -> None:
    source, target = shard_of(WIDE), shard_of(WIDE, memory_bytes=3 << 20, own=False)  # 1 MiB beside growth
    keys = np.array([unmix64(3 << 60 | n) for n in range(2, 60_002)], np.uint64)
    push_all(source, 1, keys)
    image = source.release(Release(3, 1, 2))
    assert image.keys["t.narrow"].size == 60_000
    with pytest.raises(MemoryLimitError):
        target.adopt(Adopt(3, 2, image.marks, image.content, image.keys))
    assert target.stores["t"].rows == 0


def test_shows_of_several_shard_threads_say_which_rows_become_wide() -> None:
    """Each thread foresees its own keys, by their own shows."""
    with client_of(1, partition_bits=BITS, shard_threads=2, server_memory_bytes=64 << 20) as (
        client,
        _running,
    ):
        client.setup([replace(PLAIN, compact=Compact("v", shows=3))])
        keys = many(100)
        shows = {"t": np.where(keys < 40, 4, 1).astype(np.float32)}
        client.push({"t": (keys, np.ones((100, 3), np.float32))}, shows=shows).wait()
        stats = client.stats()
    assert (stats["rows"], stats["narrow_rows"]) == (100, 60)


def test_filters_of_admission_are_looked_for_before_they_are_made() -> None:
    spec = TableSpec("t", (PartSpec("v", 2),), admission=ByBloom(3, 1 << 20))
    shard = Shard(7, 1, memory_bytes=32 << 20)
    shard.own(np.arange(129))
    shard.setup(Setup({"tables": [spec.to_dict()]}, 0, {}, NO_FLOATS))
    with pytest.raises(MemoryLimitError):
        push_all(shard, 1, many(1000))
    assert shard.stores["t"].stats()["filter_bytes"] == 0


def test_narrow_rows_are_not_counted_as_wide_ones() -> None:
    shard = shard_of(WIDE, memory_bytes=8 << 20)
    pushes = (push_all(shard, number, many(500, 500 * number)) for number in range(1_000))
    with pytest.raises(MemoryLimitError):
        list(pushes)
    stats = shard.stores["t"].stats()
    assert stats["rows"] == stats["narrow_rows"] > 60_000
    assert stats["resident_bytes"] <= 8 << 20


def test_new_keys_whose_shows_make_them_wide_at_once_are_counted_as_wide() -> None:
    keys = many(4_000)
    wide = replace(PLAIN, parts=(*PLAIN.parts[:1], PartSpec("v", 2, ONE), PartSpec("x", 512)))
    shard = shard_of(replace(wide, compact=Compact("v", shows=2)), memory_bytes=8 << 20)
    gradients = {"t": np.ones((keys.size, 515), np.float32)}
    push = Push(7, 1, 0, 0, 0, {"t": keys}, gradients, NO_BLOCKS, NO_FLOATS)
    with pytest.raises(MemoryLimitError, match="4,000 new ones and 4,000 that become wide"):
        shard.push(replace(push, shows={"t": np.full(keys.size, 2, np.float32)}))
    assert content(shard) == {}
    shard.push(push)
    assert shard.stores["t"].stats()["narrow_rows"] == 4_000


@pytest.mark.parametrize(
    ("bits", "policy"), [(10, {"admission": ByBloom(3, 1 << 16)}), (16, {}), (20, {})], ids=str
)
def test_what_comes_once_a_partition_stays_below_the_limit(bits: int, policy: dict[str, Any]) -> None:
    """Filters of all partitions would take 64 MiB; first units of rows and the directory 88, and far more."""
    limit = 32 << 20
    shard = Shard(bits, 1, memory_bytes=limit)
    shard.own(np.arange((1 << bits) + 1))
    spec = TableSpec("t", (PartSpec("v", 16),), **policy)
    shard.setup(Setup({"tables": [spec.to_dict()]}, 0, {}, NO_FLOATS))
    rng = np.random.default_rng(1)
    count = 8 if policy else 512
    keys = (rng.integers(0, 1 << 64, count, np.uint64) for _ in range(10_000))
    taken = [0]
    pushes = (push_all(shard, number, some) for number, some in enumerate(keys))
    with pytest.raises(MemoryLimitError):
        taken.extend(pushes)
    assert limit // 2 < max(taken) <= limit


def test_a_refusal_recommends_nothing_that_is_set_already() -> None:
    shard = shard_of(replace(PLAIN, when_full="oldest"), memory_bytes=4 << 20)
    with pytest.raises(MemoryLimitError, match=r"letting rows go \(when_full\) did not make enough room$"):
        shard.push(push_of(0, many(200_000)))
    shard = shard_of(replace(PLAIN, admission=ByChance(1.0)), memory_bytes=4 << 20)
    with pytest.raises(MemoryLimitError, match=r"or set eviction or when_full of the table$"):
        shard.push(push_of(0, many(200_000)))
