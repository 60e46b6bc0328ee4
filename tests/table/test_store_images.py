"""The image of a Store is the Store at one instant, whatever is done to it while the image is copied out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.common.hashing import partition_of
from cython_ext.table.images import (
    image_begin,
    image_counts,
    image_end,
    image_filters,
    image_gone,
    image_rows,
    image_settle,
    image_stop,
    image_stop_keeping,
    image_written,
)
from cython_ext.table.store import Store
from pslib.shard.stores import make_store
from pslib.table.optimizers import SGD, Adagrad, Adam
from pslib.table.policies import ByAge, ByBloom, ByCount, ByScore, Compact, Score
from pslib.table.tables import PartSpec, TableSpec

BITS = 4
KEYS = 300

TABLES = {
    "one part of 16 floats": TableSpec("t", (PartSpec("v", 16, SGD()),)),
    "two parts, Adam": TableSpec("t", (PartSpec("w", 1, Adagrad()), PartSpec("v", 5, Adam()))),
    "int8": TableSpec("t", (PartSpec("v", 6, Adagrad()),), storage="int8"),
    "bfloat16, aged": TableSpec(
        "t", (PartSpec("v", 16, Adagrad()),), storage="bfloat16", eviction=(ByAge(3),)
    ),
    "counted": TableSpec("t", (PartSpec("v", 3, Adagrad()),), admission=ByCount(3)),
    "Bloom": TableSpec("t", (PartSpec("v", 3, Adagrad()),), admission=ByBloom(3, 64)),
    "promoted": TableSpec(
        "t",
        (PartSpec("w", 1, Adagrad()), PartSpec("v", 4, Adagrad())),
        compact=Compact("v", shows=3),
        score=Score(),
        eviction=(ByScore(0.3),),
        admission=ByCount(2),
    ),
}


@dataclass
class Content:
    """Content of a Store in plain Python: rows and counts by key, filters by partition."""

    rows: dict[int, bytes] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    filters: dict[int, bytes] = field(default_factory=dict)

    def add_rows(self, keys: Any, weights: Any, state: Any, narrow: bool) -> None:
        for key, row, numbers in zip(keys.tolist(), weights, state, strict=True):
            assert key not in self.rows, "a key stands twice in an image"
            self.rows[key] = bytes([narrow]) + row.tobytes() + numbers.tobytes()

    def add_counts(self, keys: Any, counts: Any) -> None:
        assert not self.counts.keys() & set(keys.tolist())
        self.counts |= dict(zip(keys.tolist(), counts.tolist(), strict=True))


def content_now(store: Store) -> Content:
    """Read all of a Store at once: the definition of its image."""
    content = Content()
    for partition in range(1 << BITS):
        for narrow in (False, True) if store.narrow_parts else (False,):
            content.add_rows(*store.export_partition(partition, narrow), narrow)
        content.add_counts(*store.export_counts(partition))
        if (counters := store.export_filter(partition)).size:
            content.filters[partition] = counters.tobytes()
    return content


def copy_piece(store: Store, into: Content, first: int, rows: int) -> int:
    """Copy the next partitions of an image; return where it goes on."""
    stop = image_stop(store, first, rows)
    for narrow in (False, True) if store.narrow_parts else (False,):
        into.add_rows(*image_rows(store, first, stop, narrow), narrow)
    into.add_counts(*image_counts(store, first, stop))
    numbers, counters = image_filters(store, first, stop)
    into.filters |= {number: row.tobytes() for number, row in zip(numbers.tolist(), counters, strict=True)}
    image_written(store, first, stop)
    return stop


def push(store: Store, spec: TableSpec, keys: Any, seed: int, step: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((keys.size, store.dim), np.float32)
    store.push(keys, gradients, salt=seed, now=float(step))


def assign(store: Store, spec: TableSpec, keys: Any, seed: int, step: int) -> None:
    distinct = np.unique(keys)
    weights = np.random.default_rng(seed).standard_normal((distinct.size, store.dim), np.float32)
    store.assign(distinct, weights)


def evict(store: Store, spec: TableSpec, keys: Any, seed: int, step: int) -> None:
    for rule in spec.eviction:
        store.evict(rule.kind, rule.number, float(step))
    store.evict_share(1, 0.1)


def count(store: Store, spec: TableSpec, keys: Any, seed: int, step: int) -> None:
    if isinstance(spec.admission, ByCount):
        partitions = partition_of(np.unique(keys), BITS)
        some = np.unique(keys)[partitions == partitions[0]]
        store.import_counts(int(partitions[0]), some, np.full(some.size, 1, np.uint32))


def add_filter(store: Store, spec: TableSpec, keys: Any, seed: int, step: int) -> None:
    if isinstance(spec.admission, ByBloom):
        store.import_filter(seed % (1 << BITS), np.arange(64, dtype=np.uint8) % 2)


CHANGES = {
    "push": push,
    "erase": lambda store, _spec, keys, _seed, _step: store.erase(keys),
    "assign": assign,
    "drop": lambda store, _spec, _keys, seed, _step: store.drop_partition(seed % (1 << BITS)),
    "decay": lambda store, _spec, _keys, _seed, _step: store.decay(0.5),
    "evict": evict,
    "count": count,
    "filter": add_filter,
}


def change(store: Store, spec: TableSpec, what: str, seed: int, step: int) -> None:
    """Do one of the things that change a Store."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, KEYS, rng.integers(1, 120)).astype(np.uint64)
    CHANGES[what](store, spec, keys, seed, step)


changes = st.lists(st.tuples(st.sampled_from(["push", "push", *CHANGES]), st.integers(0, 2**31)), max_size=8)


@given(st.sampled_from(sorted(TABLES)), changes, st.data())
@settings(max_examples=150)
def test_an_image_is_the_store_at_its_instant(name: str, before: list[Any], data: st.DataObject) -> None:
    spec = TABLES[name]
    store, step = make_store(spec, BITS), 0
    for what, seed in [("push", 1), *before]:
        change(store, spec, what, seed, step)
        step += 1
    expected, image, first = content_now(store), Content(), 0
    image_begin(store)
    while first < 1 << BITS:
        for what, seed in data.draw(changes):
            change(store, spec, what, seed, step)
            step += 1
        first = copy_piece(store, image, first, data.draw(st.integers(1, 80)))
    assert image == expected
    image_end(store)
    assert store.tracking_bytes == 0
    store.check_consistency()


@given(st.sampled_from(sorted(TABLES)), st.data())
@settings(max_examples=100)
def test_increments_on_top_of_a_full_image_are_the_store(name: str, data: st.DataObject) -> None:
    """Tombstones first, then rows; counts and filters come whole. Some images are given up on the way."""
    spec = TABLES[name]
    store, step = make_store(spec, BITS), 0
    loaded = Content()
    for number in range(4):
        expected, image, first = content_now(store), Content(), 0
        image_begin(store, increment=number > 0, keep=True)
        gone = image_gone(store).tolist()
        while first < 1 << BITS:
            for what, seed in data.draw(changes):
                if what != "drop":  # a partition that goes to another server leaves no tombstones
                    change(store, spec, what, seed, step)
                step += 1
            first = copy_piece(store, image, first, 60)
        image_end(store)
        committed = number == 0 or data.draw(st.booleans())
        image_settle(store, committed)
        if committed:
            for key in gone:
                loaded.rows.pop(key, None)
            loaded = Content(loaded.rows | image.rows, image.counts, image.filters)
            assert loaded == expected


def test_an_increment_holds_what_was_touched_and_no_more() -> None:
    spec = TABLES["two parts, Adam"]
    store = make_store(spec, BITS)
    keys = np.arange(1000, dtype=np.uint64)
    store.push(keys, np.ones((1000, 6), np.float32))
    image_begin(store, keep=True)
    image_end(store)
    image_settle(store, True)
    store.push(keys[:10], np.ones((10, 6), np.float32))
    store.erase(keys[5:8])
    image_begin(store, increment=True)
    rows = image_rows(store, 0, 1 << BITS)[0]
    assert sorted(rows.tolist()) == [0, 1, 2, 3, 4, 8, 9]
    assert image_gone(store).tolist() == [5, 6, 7]
    image_end(store)


def test_rows_are_copied_once_and_not_after_their_partition_is_written() -> None:
    store = make_store(TABLES["one part of 16 floats"], BITS)
    keys = np.arange(4096, dtype=np.uint64)
    gradients = np.ones((4096, 16), np.float32)
    store.push(keys, gradients)
    image_begin(store)
    empty = store.tracking_bytes
    store.push(keys[:100], gradients[:100])
    once = store.tracking_bytes
    store.push(keys[:100], gradients[:100])
    assert store.tracking_bytes == once > empty
    image_written(store, 0, 1 << BITS)
    store.push(keys, gradients)
    assert store.tracking_bytes == once
    image_end(store)


def test_what_is_asked_at_the_wrong_time_is_refused() -> None:
    store = make_store(TABLES["counted"], BITS)
    with pytest.raises(ValueError, match="image_rows: expected an image that has begun"):
        image_rows(store, 0, 1)
    with pytest.raises(ValueError, match="expected an image with keep before the first increment"):
        image_begin(store, increment=True)
    image_begin(store)
    with pytest.raises(ValueError, match="expected no image that is being taken"):
        image_begin(store)
    with pytest.raises(ValueError, match="image_rows: stop"):
        image_rows(store, 0, 17)
    image_stop_keeping(store)
    assert store.tracking_bytes == 0
