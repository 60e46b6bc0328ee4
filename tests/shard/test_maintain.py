"""Maintenance, time and counts on their way from a client to the rows of shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from pslib.client.calls import PushName
from pslib.errors import ConfigurationError
from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.policies import ByAge, ByBloom, ByChance, ByCount, ByScore, Compact, Score
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.applied_pushes import record_salt
from pslib.wire.messages import Adopt, Maintain, Push, Release, Setup
from tests.support.clients import client_with
from tests.support.definitions.table import mix64, unmix64

ONE = SGD(learning_rate=1.0)
PLAIN = TableSpec("t", (PartSpec("w", 1, ONE, Constant(0.0)), PartSpec("v", 2, ONE, Constant(0.0))))
NO_BLOCKS, NO_FLOATS = np.empty(0, np.uint32), np.empty(0, np.float32)
BITS = 4
ALL = np.arange(16, dtype=np.uint32)
POLICIES = {
    "age": {"eviction": (ByAge(10),)},
    "score": {"score": Score(0.5, 1.0, decay=0.5), "eviction": (ByScore(0.3),)},
    "count": {"admission": ByCount(3, keep=0.5)},
    "bloom": {"admission": ByBloom(3, counters=64)},
    "chance": {"admission": ByChance(0.5)},
    "compact": {"compact": Compact("v", shows=3)},
}


def keys_in(*partitions: int) -> np.ndarray:
    return np.array([unmix64(p << 60 | n + 1) for n, p in enumerate(partitions)], np.uint64)


def many(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


def shard_of(spec: TableSpec, memory_bytes: int = 0, own: bool = True) -> Shard:
    shard = Shard(BITS, 1, memory_bytes=memory_bytes)
    if own:
        shard.own(np.arange(17))
    shard.setup(Setup({"tables": [spec.to_dict()]}, 0, {}, NO_FLOATS))
    return shard


def push_of(number: int, keys: np.ndarray, shows: float = 1.0, clicks: float = 0.0, **fields) -> Push:
    gradients = np.full((keys.size, 3), -1, np.float32)
    counts = [{"t": np.full(keys.size, count, np.float32)} for count in (shows, clicks)]
    return Push(
        7, number, 0, 0, 0, {"t": keys}, {"t": gradients}, NO_BLOCKS, NO_FLOATS, shows=counts[0],
        clicks=counts[1], **fields
    )  # fmt: skip


def content(shard: Shard) -> dict[int, bytes]:
    """All that the shard knows of every key."""
    found: dict[int, bytes] = {}
    store = shard.stores["t"]
    for partition in range(16):
        for narrow in (False, True):
            for key, *row in zip(*store.export_partition(partition, narrow), strict=True):
                found[int(key)] = bytes([narrow]) + np.concatenate(row).tobytes()
        for key, count in zip(*store.export_counts(partition), strict=True):
            found[int(key)] = bytes(count)
        if (counters := store.export_filter(partition)).size:
            found[-1 - partition] = counters.tobytes()
    return found


def test_a_salt_is_a_hash_of_the_name_of_a_push_alone() -> None:
    assert record_salt(7, 3) == mix64(mix64(7) ^ 3)
    assert record_salt(2**64 - 1, 2**64 - 1) == mix64(mix64(2**64 - 1) ^ (2**64 - 1))


def test_rows_that_were_not_pushed_for_too_long_leave_at_a_maintenance_and_only_once() -> None:
    shard = shard_of(replace(PLAIN, eviction=(ByAge(10),)))
    old, young = keys_in(3), keys_in(4)
    shard.push(push_of(0, old, step=1))
    shard.push(push_of(1, young, step=5))
    maintain = Maintain(7, 2, 0, 0, 0, "t", 12, 0.0, True, ALL)
    shard.maintain(maintain)
    assert shard.stores["t"].missing(np.concatenate([old, young])) == 1
    shard.push(push_of(3, old, step=1))  # comes back with an old time, after the maintenance
    shard.maintain(maintain)
    assert shard.stores["t"].missing(old) == 0
    assert shard.counters.maintained == 1


def test_a_maintenance_is_refused_by_unit() -> None:
    shard = Shard(BITS, 1)
    shard.own(np.arange(8))
    shard.setup(Setup({"tables": [replace(PLAIN, eviction=(ByAge(1),)).to_dict()]}, 0, {}, NO_FLOATS))
    part = shard.maintain(Maintain(7, 0, 0, 0, 0, "t", 9, 0.0, True, np.array([3, 9, 12], np.uint32)))
    assert sorted(part.refused) == [9, 12]
    assert shard.marks.fresh(7, 0, 0, 1 << 3 | 1 << 9) == 1 << 9


@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
def test_records_give_the_same_bits_wherever_partitions_have_been(policies) -> None:
    """One shard; and two with a partition that moves to and fro between them, everything sent twice."""
    spec = replace(PLAIN, **policies, storage="bfloat16")
    rng = np.random.default_rng(5)
    universe = keys_in(*[number % 16 for number in range(60)])
    records: list[Push | Maintain] = []
    for number in range(40):
        keys = rng.choice(universe, 9, replace=False)
        records.append(push_of(number, keys, float(rng.integers(1, 3)), 1.0, step=number))
        if number % 10 == 9:
            records.append(Maintain(8, number, 0, 0, 0, "t", number, 0.0, True, ALL))
    alone = shard_of(spec)
    pair = [shard_of(spec, own=False) for _ in range(2)]
    pair[0].own(np.arange(16))
    for version, record in enumerate(records, 2):
        for shard in (alone, *pair, *pair):
            shard.push(record) if isinstance(record, Push) else shard.maintain(record)
        unit = int(rng.integers(16))
        source = next(shard for shard in pair if shard.owned >> unit & 1)
        image = source.release(Release(unit, 1, version))
        target = pair[1 - pair.index(source)]
        target.adopt(Adopt(unit, version, image.marks, image.content, image.keys))
    assert content(pair[0]) | content(pair[1]) == content(alone)
    assert content(alone)


def test_an_image_that_does_not_fit_changes_nothing() -> None:
    spec = replace(PLAIN, admission=ByCount(3), compact=Compact("v", shows=2))
    source, target = shard_of(spec), shard_of(spec, own=False)
    source.push(push_of(0, keys_in(3, 3), shows=3.0))
    source.push(push_of(1, keys_in(3, 3, 3)[2:]))
    image = source.release(Release(3, 1, 2))
    for version, name, wrong in (
        (2, "t.counts", np.zeros((1, 9), np.uint32)),
        (3, "t.narrow.state", np.zeros((1, 1), np.float32)),  # of another move: one that was refused stays so
    ):
        bad = Adopt(3, version, image.marks, {**image.content, name: wrong}, image.keys)
        for _copy in range(2):
            with pytest.raises(ConfigurationError, match=name):
                target.adopt(bad)
    assert content(target) == {}


@pytest.mark.parametrize("policies", [{}, {"admission": ByCount(3), "compact": Compact("v", shows=2)}])
def test_an_image_with_keys_that_would_be_lost_is_refused_by_name(policies) -> None:
    """Narrow rows of a table that has none; or narrow rows whose table is not in the image."""
    source = shard_of(replace(PLAIN, admission=ByCount(3), compact=Compact("v", shows=2)))
    source.push(push_of(0, keys_in(3, 3), shows=3.0))
    image = source.release(Release(3, 1, 2))
    target = shard_of(replace(PLAIN, **policies), own=False)
    keys = {name: keys for name, keys in image.keys.items() if not policies or name != "t"}
    said = "has 't.counted' and no 't'" if policies else "has table 't.counted', this server has"
    with pytest.raises(ConfigurationError, match=said):
        target.adopt(Adopt(3, 2, image.marks, image.content, keys))
    assert content(target) == {}


# --- through a client


def test_a_client_pushes_counts_and_maintains() -> None:
    spec = replace(PLAIN, score=Score(1.0, 10.0, decay=0.5), eviction=(ByScore(1.1),))
    with client_with(spec, servers=2, shard_threads=2) as client:
        keys = np.array([1, 2, 2, 2, 3], np.uint64)
        client.push({"t": (keys, np.full((5, 3), -1, np.float32))}, step=4).wait()
        clicks = {"t": np.array([1], np.float32)}
        client.push({"t": (keys[:1], np.full((1, 3), -1, np.float32))}, clicks=clicks).wait()
        for _ in range(2):
            client.maintain("t", name=PushName(9, 0), step=5).wait()
        rows = client.pull({"t": keys[1:]}).wait().rows["t"]
        stats = client.stats()
    # scores after fading: key 1 (1 + 10) / 2, key 2 1.5, key 3 0.5
    assert rows[:, 0].tolist() == [3, 3, 3, 0]
    assert (stats["rows"], stats["evicted_score"], stats["maintained"]) == (2, 1, 1)


def test_parameters_of_servers_add_up_without_those_that_narrow_rows_lack() -> None:
    with client_with(replace(PLAIN, compact=Compact("v", shows=2)), servers=3, shard_threads=2) as client:
        shows = {"t": np.repeat(np.float32([1, 2]), 50)}
        client.push({"t": (many(100), np.zeros((100, 3), np.float32))}, shows=shows).wait()
        stats = client.stats()
    assert (stats["rows"], stats["narrow_rows"], stats["promoted"]) == (100, 50, 50)
    assert stats["parameters"] == 50 * 1 + 50 * 3
    table = stats["tables"]["t"]
    assert (table["rows"], table["narrow_rows"], table["promoted"]) == (100, 50, 50)
    assert table["bytes_a_row"] == stats["memory_bytes"] / 100 > 8 + 4
    for purpose in ("index_bytes", "row_bytes", "free_bytes", "spare_bytes"):
        assert table[purpose] == stats[purpose]


def test_counts_that_do_not_fit_are_refused_by_name() -> None:
    with client_with(replace(PLAIN, score=Score())) as client:
        pair = {"t": (many(2), np.zeros((2, 3), np.float32))}
        with pytest.raises(ConfigurationError, match=r"shows of t: expected \(2,\) float32"):
            client.push(pair, shows={"t": np.ones(3, np.float32)})
        with pytest.raises(ConfigurationError, match="shows of t: expected finite numbers"):
            client.push(pair, shows={"t": np.zeros(2, np.float32)}).wait()
        with pytest.raises(ConfigurationError, match="clicks of t: expected finite numbers"):
            client.push(pair, clicks={"t": np.full(2, np.nan, np.float32)}).wait()
        with pytest.raises(ConfigurationError, match="time_s"):
            client.push(pair, time_s=-1.0).wait()
        with pytest.raises(ConfigurationError, match="'u' is unknown"):
            client.maintain("u")


def test_all_keys_of_a_partition_are_where_they_belong() -> None:
    assert (partition_of(keys_in(3, 9), BITS) == [3, 9]).all()
