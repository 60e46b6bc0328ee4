"""Memory of a table: crowded indexes end look-ups, erased rows free memory, limits and estimates hold."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import make_store, store_parts
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD, RowwiseAdagrad
from pslib.table.policies import Compact, Score
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.table import mix64, partition_of, unmix64
from tests.support.machine.sanitizer import LIMITS_MEMORY, SHARED_SLABS
from tests.support.tables.stores import random_keys

SPEC = TableSpec("t", (PartSpec("v", 16, RowwiseAdagrad()),))
SMALL = TableSpec("t", (PartSpec("v", 1, SGD(1.0), Constant(0.0)),))


def new_store(partition_bits: int, spec: TableSpec = SPEC, narrow_parts: int = 0) -> Store:
    return Store(partition_bits, store_parts(spec), narrow_parts)


def push_ones(store: Store, keys: np.ndarray, narrow: bool = False) -> None:
    store.push(keys, np.ones((len(keys), store.dim), np.float32), narrow)


def used_bytes(store: Store) -> int:
    stats = store.stats()
    return stats["index_bytes"] + stats["row_bytes"]


def twins(count: int, line_bits: int = 0, tag: int = 5) -> np.ndarray:
    """Keys that differ in bits 40..43, which the home line does not look at, and in its lowest bits."""
    mixed = [((at % 16) << 40) | (line_bits << 8) | ((at // 16) << 8) | tag for at in range(count)]
    return np.asarray([unmix64(value) for value in mixed], np.uint64)


def test_keys_of_one_line_are_told_apart() -> None:
    keys = twins(1000)
    assert len({mix64(key) & 0xFF for key in keys.tolist()}) == 1
    store = new_store(0, SMALL)
    store.push(keys, -np.arange(1000, dtype=np.float32)[:, None])
    store.check_consistency()
    out = np.empty((1000, 1), np.float32)
    assert store.pull(keys, out) == 0
    assert out[:, 0].tolist() == list(range(1000))
    absent = twins(1300)[1000:]
    assert store.pull(absent, np.empty((300, 1), np.float32)) == 300


@pytest.mark.parametrize("level", vector_levels())
def test_an_index_that_grows_loses_no_key_with_erased_ones_between_and_crowds_at_both_ends(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSLIB_VECTORS", level)
    store = new_store(0, SMALL)
    crowds = np.concatenate([twins(80), twins(80, line_bits=0xFFFFFFF0)])
    keys = np.concatenate([crowds, random_keys(70_000)])  # 8,192 lines hold some 30,000
    alive = np.zeros(len(keys), bool)
    for start in range(0, len(keys), 5_000):
        some = slice(start, start + 5_000)
        store.push(keys[some], -np.arange(len(keys), dtype=np.float32)[some, None])
        alive[some] = True
        gone = np.flatnonzero(alive)[start % 3 :: 7]
        assert store.erase(keys[gone]) == len(gone)
        alive[gone] = False
        store.check_consistency()
        out = np.empty((int(alive.sum()), 1), np.float32)
        assert store.pull(keys[alive], out) == 0
        assert out[:, 0].tolist() == np.flatnonzero(alive).tolist()
        assert store.pull(keys[~alive], np.empty((int((~alive).sum()), 1), np.float32)) == (~alive).sum()


@pytest.mark.parametrize("level", vector_levels())
def test_a_key_that_stands_behind_its_home_is_found_there_when_the_home_has_room_again(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made a second time it would begin anew, and stand in the index twice."""
    monkeypatch.setenv("PSLIB_VECTORS", level)
    store, keys = new_store(0, TableSpec("t", (PartSpec("v", 16, SGD(1.0), Constant(0.0)),))), twins(80)
    store.push(keys, np.ones((80, 16), np.float32))
    gone, kept = keys[::2].copy(), keys[1::2].copy()
    assert store.erase(gone) == 40
    store.push(kept, np.ones((40, 16), np.float32))
    store.check_consistency()
    out = np.empty((40, 16), np.float32)
    assert (store.rows, store.pull(kept, out)) == (40, 0)
    assert (out == -2).all()


def test_erasing_among_crowded_keys_loses_no_other_key() -> None:
    keys = np.concatenate([twins(200), twins(200, line_bits=0xFFFFF000), twins(200, line_bits=1 << 31)])
    store = new_store(0, SMALL)
    alive = {int(key) for key in keys}
    push_ones(store, keys)
    for key in np.random.default_rng(1).permutation(keys).tolist():
        assert store.erase(np.asarray([key], np.uint64)) == 1
        alive.remove(key)
        store.check_consistency()
        left = np.asarray(sorted(alive), np.uint64)
        assert store.pull(left, np.empty((len(left), 1), np.float32)) == 0
    assert store.rows == 0


def test_an_index_under_churn_always_ends_its_look_ups() -> None:
    store = new_store(0, SMALL)
    rng = np.random.default_rng(2)
    alive = random_keys(500, 3)
    push_ones(store, alive)
    stats = store.stats()
    for _ in range(400):
        gone = rng.integers(0, 500, 100)
        store.erase(alive[gone])
        alive[np.unique(gone)] = rng.integers(0, 1 << 64, len(np.unique(gone)), np.uint64)
        push_ones(store, alive)
        assert store.rows == 500
    store.check_consistency()
    absent = random_keys(10_000, 4)
    assert store.pull(absent, np.empty((10_000, 1), np.float32)) == 10_000
    assert store.stats()["index_bytes"] <= 2 * stats["index_bytes"]
    assert store.stats()["row_bytes"] <= 2 * stats["row_bytes"]


@pytest.mark.parametrize("partition_bits", [0, 6])
def test_memory_goes_down_when_most_rows_have_gone(partition_bits: int) -> None:
    keys = random_keys(40_000)
    store = new_store(partition_bits)
    push_ones(store, keys)
    full = used_bytes(store)
    kept = np.empty((4000, 16), np.float32)
    store.pull(keys[:4000], kept)
    assert store.erase(keys[4000:]) == 36_000
    store.check_consistency()
    out = np.empty((4000, 16), np.float32)
    assert store.pull(keys[:4000], out) == 0
    assert out.tobytes() == kept.tobytes()
    assert used_bytes(store) < full / 2
    store.erase(keys)
    assert used_bytes(store) == 0


def test_the_order_of_rows_stays_when_memory_is_given_back() -> None:
    keys = random_keys(5000)
    store = new_store(0)
    push_ones(store, keys)
    kept = np.random.default_rng(0).permutation(5000)[:400]
    mask = np.zeros(5000, bool)
    mask[kept] = True
    before = store.stats()["row_bytes"]
    store.erase(np.random.default_rng(1).permutation(keys[~mask]))
    assert store.export_partition(0)[0].tolist() == keys[mask].tolist()
    assert store.stats()["row_bytes"] < before / 2


def test_promotion_gives_the_memory_of_narrow_rows_back() -> None:
    spec = TableSpec("t", (PartSpec("w", 1), PartSpec("v", 8)))
    store = Store(0, store_parts(spec), 1, counters=2, promotion=(1, 2.0))
    keys = random_keys(3000)
    push_ones(store, keys)
    store.push(keys, np.zeros((3000, 9), np.float32), delta=True)
    assert store.stats()["promoted"] == 3000
    store.check_consistency()
    wide_row = 8 + 4 * 20
    assert store.stats()["narrow_rows"] == 0
    assert store.stats()["row_bytes"] < 3000 * wide_row * 1.2
    assert store.pull(keys, np.empty((3000, 9), np.float32)) == 0


def test_a_narrow_row_costs_less_than_a_wide_one() -> None:
    spec = TableSpec("t", (PartSpec("w", 1), PartSpec("v", 64)))
    narrow, wide = new_store(0, spec, 1), new_store(0, spec, 1)
    push_ones(narrow, random_keys(1000), narrow=True)
    push_ones(wide, random_keys(1000))
    assert narrow.stats()["row_bytes"] * 10 < wide.stats()["row_bytes"]


def test_an_empty_partition_costs_at_most_128_bytes() -> None:
    stats = new_store(20).stats()
    assert stats["directory_bytes"] / 2**20 <= 128
    assert stats["index_bytes"] == stats["row_bytes"] == 0


def test_a_row_costs_little_more_than_its_bytes() -> None:
    store = new_store(4)
    push_ones(store, random_keys(200_000))
    stats = store.stats()
    payload = 8 + 4 * 16 + 4
    assert stats["rows"] == 200_000
    assert (stats["index_bytes"] + stats["row_bytes"]) / 200_000 < 1.25 * payload
    assert stats["free_bytes"] == stats["row_bytes"] - 200_000 * (payload - 8) - unit_bytes(store)


def unit_bytes(store: Store) -> int:
    """Units of 16 rows: 4 bytes for the position of each, and 4 for each in a list of a power of two."""
    units = [-(-store.partition_rows(partition) // 16) for partition in range(1 << store.partition_bits)]
    return sum(4 * (count + (1 << (count - 1).bit_length())) for count in units)


def test_the_longest_rows_work() -> None:
    spec = TableSpec("t", tuple(PartSpec(f"v{place}", 4096) for place in range(8)))
    store = new_store(1, spec)
    keys = random_keys(100)
    push_ones(store, keys)
    assert store.pull(keys, np.empty((100, 8 * 4096), np.float32)) == 0
    assert store.erase(keys[:90]) == 90
    store.check_consistency()


def test_a_partition_refuses_more_rows_than_its_limit_and_goes_on() -> None:
    store = new_store(0, SMALL)
    limit = 1 << 23
    block = np.zeros((1 << 20, 1), np.float32)
    for start in range(0, limit, 1 << 20):
        store.push(np.arange(start, start + (1 << 20), dtype=np.uint64), block)
    more = np.asarray([3, limit, limit + 1], np.uint64)
    with pytest.raises(OverflowError, match="limit of 8388608 rows; the first 1 of 3 keys are done"):
        store.push(more, np.full((3, 1), -2.0, np.float32))
    out = np.empty((3, 1), np.float32)
    assert store.pull(more, out) == 2
    assert out[:, 0].tolist() == [2.0, 0.0, 0.0]
    assert store.erase(more) == 1
    push_ones(store, more[1:2])
    assert store.rows == limit


OUT_OF_MEMORY = """
    import resource
    import numpy as np
    from cython_ext.table.store import Store
    from tests.table.test_store_memory import SPEC, new_store

    store = new_store({bits})
    keys = np.random.default_rng(0).integers(0, 1 << 64, 3_000_000, np.uint64)
    gradients = np.ones((len(keys), 16), np.float32)
    out = np.empty_like(gradients)
    space = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + (48 << 20), space + (48 << 20)))
    try:
        store.push(keys, gradients)
        raise SystemExit("expected a MemoryError")
    except MemoryError as error:
        done = int(str(error).split("the first ")[1].split()[0])
    store.check_consistency()
    assert 0 < done < len(keys) and store.rows == done, (done, store.rows)
    assert store.pull(keys[:done], out[:done]) == 0
    assert store.pull(keys[done:], out[done:]) == len(keys) - done
    store.push(keys[:done], gradients[:done])
    assert store.erase(keys[: done // 2]) == done // 2
    store.check_consistency()
    store.push(keys[: done // 4], gradients[: done // 4])
    assert store.erase(keys) == done - done // 2 + done // 4
    assert store.stats()["row_bytes"] == 0
"""


@LIMITS_MEMORY
@pytest.mark.parametrize("bits", [0, 10])
def test_a_table_that_finds_no_memory_says_so_and_goes_on(bits: int) -> None:
    script = textwrap.dedent(OUT_OF_MEMORY.format(bits=bits))
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr


# --- estimates for the memory limit: keys without rows, rows that become wide, memory


BY_SHOWS = TableSpec("t", (PartSpec("w", 1), PartSpec("v", 16)), compact=Compact("v", shows=3))
BY_SCORE = TableSpec(
    "t", BY_SHOWS.parts, compact=Compact("v", score=2), score=Score(nonclick=0.5, click=2.0, decay=1.0)
)


def push_keys(
    store: Store, keys: np.ndarray, shows: np.ndarray | None = None, clicks: np.ndarray | None = None
) -> None:
    store.push(keys, np.ones((keys.size, store.dim), np.float32), shows=shows, clicks=clicks)


def some(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


@pytest.mark.parametrize("spec", [BY_SHOWS, BY_SCORE], ids=["shows", "score"])
@pytest.mark.parametrize("seed", range(4))
def test_keys_that_are_made_and_rows_that_become_wide_are_those_of_the_push(
    spec: TableSpec, seed: int
) -> None:
    rng, store = np.random.default_rng(seed), make_store(spec, 3)
    for _ in range(40):
        keys = rng.choice(some(300), rng.integers(1, 60), replace=False)
        shows = rng.integers(1, 4, keys.size).astype(np.float32) if rng.random() < 0.7 else None
        clicks = rng.integers(0, 2, keys.size).astype(np.float32) if rng.random() < 0.5 else None
        made, widened, _ = store.foresee(keys, shows, clicks)
        before = store.stats()
        push_keys(store, keys, shows, clicks)
        after = store.stats()
        assert (made, widened) == (
            after["rows"] - before["rows"],
            after["promoted"] - before["promoted"],
        )
        store.erase(rng.choice(some(300), 20, replace=False))


def test_memory_is_foreseen_for_rows_that_find_no_place() -> None:
    store, key = make_store(BY_SHOWS, 0), 0
    assert store.foresee(some(1))[2] > 0
    push_keys(store, some(1))
    while not store.foresee(some(1, key + 1))[2]:
        key += 1
        push_keys(store, some(1, key))
    assert store.foresee(some(1))[2] == 0  # it has its row
    assert store.foresee(some(1), np.float32([3]))[2] > 0  # a wide one, of which there is none
    store.erase(some(1))
    assert store.foresee(some(1, key + 1))[2] == 0  # the place that it has left
    assert store.foresee(some(2, key + 1))[2] > 0


@SHARED_SLABS
def test_units_that_a_slab_has_left_take_no_memory() -> None:
    store = make_store(BY_SHOWS, 4)
    push_keys(store, some(3000))
    push_keys(store, some(10), np.full(10, 3, np.float32))
    before = store.stats()
    assert store.foresee(some(200, 10), np.full(200, 3, np.float32)) == (0, 200, 0)
    push_keys(store, some(200, 10), np.full(200, 3, np.float32))
    assert store.stats()["row_bytes"] > before["row_bytes"]


def test_rows_that_are_put_in_are_foreseen_as_they_are() -> None:
    store = make_store(BY_SHOWS, 2)
    wide, narrow = store.foresee_rows(some(100)), store.foresee_rows(some(100), narrow=True)
    assert wide[:2] == narrow[:2] == (100, 0)
    assert wide[2] > 2 * narrow[2] > 0
    push_keys(store, some(100))
    assert store.foresee_rows(some(100), narrow=True) == (0, 0, 0)
    assert store.foresee_rows(some(100))[:2] == (0, 100)


def test_partitions_that_hold_something_are_counted() -> None:
    store = make_store(BY_SHOWS, 6)
    assert store.held() == (0, 0, 0)
    keys = some(20)
    push_keys(store, keys)
    partitions = len({partition_of(int(key), 6) for key in keys})
    assert store.held() == (partitions, 0, partitions)
    push_keys(store, keys[:5], np.full(5, 3, np.float32))
    wide = len({partition_of(int(key), 6) for key in keys[:5]})
    assert store.held()[:2] == (partitions, wide)
