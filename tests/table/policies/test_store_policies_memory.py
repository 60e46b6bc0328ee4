"""Memory of a table with policies: filters and their limits, and what goes back to the system."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from cython_ext.table.store import Store
from pslib.shard.stores import store_parts
from pslib.table.initializers import Uniform
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.policies import BLOOM, COUNT, NORM, false_rate
from tests.support.machine.sanitizer import LIMITS_MEMORY
from tests.support.tables.stores import random_keys

SPEC = TableSpec("t", (PartSpec("v", 16, RowwiseAdagrad(0.05), Uniform(0.01)),))


def new_store(admission: tuple[int, float, int], partition_bits: int = 0) -> Store:
    return Store(partition_bits, store_parts(SPEC), admission=admission)


def push(store: Store, keys: np.ndarray) -> None:
    for start in range(0, len(keys), 65_536):
        some = keys[start : start + 65_536]
        store.push(some, np.ones((len(some), 16), np.float32))


@pytest.mark.parametrize("load", [0.05, 0.25, 0.5])
def test_a_filter_takes_few_new_keys_for_known_ones(load: float) -> None:
    counters, probes = 1 << 16, 20_000
    keys = random_keys(int(load * counters) + probes)
    store = new_store((BLOOM, 255, counters))
    push(store, keys[: len(keys) - probes])
    filter = store.export_filter(0)
    probed = new_store((BLOOM, 2, counters))
    false = 0
    for some in np.array_split(keys[len(keys) - probes :], 200):  # few at a time: they count as well
        probed.drop_partition(0)
        probed.import_filter(0, filter)
        push(probed, some)
        false += probed.rows
    expected = false_rate(len(keys) - probes, counters)
    assert false / probes < 1.2 * expected + 5 * np.sqrt(expected / probes)


def test_conservative_update_admits_fewer_of_the_rare_keys() -> None:
    keys = random_keys(20_000)
    store = new_store((BLOOM, 4, 1 << 16))
    for _ in range(3):
        push(store, keys)
    assert store.rows < 20_000 * false_rate(20_000, 1 << 16)


def test_filters_count_to_255_and_add_up_to_no_more() -> None:
    store = new_store((BLOOM, 255, 64))
    key = np.asarray([5], np.uint64)
    for _ in range(254):
        push(store, key)
    assert store.rows == 0
    filter = store.export_filter(0)
    assert sorted(set(filter.tolist())) == [0, 254]
    store.import_filter(0, filter)
    assert store.export_filter(0).max() == 255
    push(store, key)
    assert store.rows == 1


def test_a_filter_is_there_from_the_first_key_that_is_turned_away_until_it_has_faded() -> None:
    store = new_store((BLOOM, 3, 1 << 12), 2)
    assert store.stats()["filter_bytes"] == 0
    push(store, random_keys(1))
    assert store.stats()["filter_bytes"] == 1 << 12
    assert len(store.partitions()) == 1
    store.decay(0.5)
    assert store.stats()["filter_bytes"] == len(store.partitions()) == 0
    push(store, random_keys(100))
    assert store.stats()["filter_bytes"] == 4 << 12
    assert store.drop_partition(2) == 0
    assert store.stats()["filter_bytes"] == 3 << 12
    assert len(store.export_filter(2)) == 0


def test_filters_of_two_tables_are_joined_without_forgetting() -> None:
    one, other = new_store((BLOOM, 5, 1 << 10), 2), new_store((BLOOM, 5, 1 << 10), 2)
    keys = random_keys(200)
    for store in (one, one, other, other):
        push(store, keys)
    for partition in other.partitions().tolist():
        one.import_filter(partition, other.export_filter(partition))
    push(one, keys)
    assert one.rows == 200


OUT_OF_MEMORY = """
    import resource
    import numpy as np
    from tests.support.definitions.table import partition_of
    from tests.table.policies.test_store_policies_memory import BLOOM, new_store, random_keys

    store = new_store((BLOOM, 2, 1 << 25), 3)
    keys = random_keys(100)
    space = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + (80 << 20), space + (80 << 20)))
    try:
        store.push(keys, np.ones((100, 16), np.float32))
        raise SystemExit("expected a MemoryError")
    except MemoryError as error:
        done = int(str(error).split("the first ")[1].split()[0])
    store.check_consistency()
    assert store.stats()["filter_bytes"] == len({partition_of(key, 3) for key in keys[:done].tolist()}) << 25
    assert store.stats()["turned_away"] == done and 0 < done < 100
    store.push(keys[:done], np.ones((done, 16), np.float32))
    assert store.rows == done
"""


@LIMITS_MEMORY
def test_a_filter_that_finds_no_memory_says_how_many_keys_are_done() -> None:
    run(OUT_OF_MEMORY)


MEMORY_FALLS = """
    import numpy as np
    from tests.table.policies.test_store_policies_memory import NORM, new_store, push, random_keys

    def resident() -> int:
        return int(open("/proc/self/statm").read().split()[1]) * 4096

    store, keys = new_store((0, 0.0, 0), {bits}), random_keys(1_000_000)
    push(store, keys[:1])
    empty = resident()
    push(store, keys)
    full, said = resident() - empty, store.stats()["resident_bytes"]
    assert full > 85e6 and 0.9 * full < said < 1.2 * full, (full, said)
    assert store.evict_share(NORM, 0.95) == 950_000
    left, said = resident() - empty, store.stats()["resident_bytes"]
    assert left < 0.35 * full and said < 0.35 * full, (full, left, said)
    push(store, keys)
    assert store.rows == 1_000_000 and resident() - empty < 1.25 * full
    assert store.evict(NORM, 1e9) == 1_000_000
    assert store.stats()["resident_bytes"] < 1e6 and resident() - empty < 0.15 * full, resident() - empty
"""


@LIMITS_MEMORY
@pytest.mark.parametrize("bits", [0, 6, 12])
def test_a_table_that_has_lost_most_rows_gives_memory_back_to_the_system(bits: int) -> None:
    run(MEMORY_FALLS.format(bits=bits))


def run(script: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("rows", [200, 2000, 20_000, 200_000])
@pytest.mark.parametrize("left", [0.05, 0.45, 0.7])
def test_a_table_that_loses_rows_never_takes_more_memory(rows: int, left: float) -> None:
    store = Store(4, store_parts(SPEC), counters=1)
    keys, gradients = random_keys(rows), np.ones((rows, 16), np.float32)
    stay = int(left * rows)
    store.push(keys, gradients, now=1.0)
    store.push(keys[:stay], gradients[:stay], now=5.0)
    before = store.stats()["resident_bytes"]
    assert store.evict(0, 2.0, 6.0) == rows - stay
    assert store.stats()["resident_bytes"] <= before + 8192  # lists of free rows


def test_an_index_of_counted_keys_shrinks_as_they_fade_or_are_erased() -> None:
    keys = random_keys(20_000)
    for forget in (lambda store: store.decay(0.5), lambda store: store.erase(keys[1000:])):
        store = new_store((COUNT, 9, 0), 2)
        push(store, keys)
        push(store, keys[:1000])
        full = store.stats()["index_bytes"]
        forget(store)
        store.check_consistency()
        assert store.stats()["counted_keys"] == 1000
        assert store.stats()["index_bytes"] < full / 4


@pytest.mark.parametrize("half", [False, True])
def test_eviction_of_half_the_rows_settles_and_keeps_the_others(half: bool) -> None:
    store = new_store((0, 0.0, 0), 2)
    keys = random_keys(20_000)
    push(store, keys)
    before = store.stats()
    gone = store.evict_share(NORM, 0.6 if half else 0.3)
    store.check_consistency()
    after = store.stats()
    assert store.missing(keys) == gone
    assert (after["row_bytes"] < 0.5 * before["row_bytes"]) == half
    push(store, random_keys(gone, 1))
    store.check_consistency()
    assert store.stats()["row_bytes"] <= 1.05 * before["row_bytes"]
