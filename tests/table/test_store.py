"""A table's rows: push, pull, erase, assign, promotion, moves of partitions, and refused arguments."""

import threading

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Normal, Uniform
from pslib.table.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.table import DictTable, first_values
from tests.support.tables.stores import pulled

SPEC = TableSpec(
    "embedding", (PartSpec("w", 1, SGD(0.5), Normal(0.1)), PartSpec("v", 3, Adagrad(0.5), Uniform(0.1)))
)
KEYS = np.asarray([0, 5, 2**64 - 1, 2**63], np.uint64)
ONES = np.ones((4, 4), np.float32)
NONE = np.zeros(0, np.uint64)


def new_store(partition_bits: int = 2, narrow_parts: int = 0, spec: TableSpec = SPEC) -> Store:
    return Store(partition_bits, store_parts(spec), narrow_parts)


def first(keys: np.ndarray, spec: TableSpec = SPEC) -> np.ndarray:
    parts = [first_values(part.initializer, keys, part.dim, spec.part_seed(part)) for part in spec.parts]
    return np.concatenate(parts, axis=1)


def test_a_pull_creates_no_rows() -> None:
    store = new_store()
    before = store.stats()
    out = np.empty((4, 4), np.float32)
    assert store.pull(KEYS, out) == 4
    assert out.tobytes() == first(KEYS).tobytes()
    assert store.rows == 0
    assert store.stats() == before


def test_a_pull_counts_absent_keys_each_time() -> None:
    store = new_store()
    store.push(KEYS[:1], ONES[:1])
    keys = np.asarray([0, 5, 5, 0, 7], np.uint64)
    assert store.pull(keys, np.empty((5, 4), np.float32)) == 3


def test_a_push_makes_rows_from_first_values_and_steps_them() -> None:
    store = new_store()
    store.push(KEYS, ONES)
    weights = pulled(store, KEYS)
    assert store.rows == 4
    assert weights[:, 0] == pytest.approx(first(KEYS)[:, 0] - 0.5, abs=1e-6)
    assert weights[:, 1:] == pytest.approx(first(KEYS)[:, 1:] - 0.5, abs=1e-6)


def test_a_key_that_repeats_in_a_push_takes_one_step_for_each_time_in_order() -> None:
    store, model = new_store(), DictTable(SPEC, 2)
    keys = np.asarray([9, 3, 9, 9, 3], np.uint64)
    gradients = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    store.push(keys, gradients)
    model.push(keys, gradients)
    one_by_one = new_store()
    for place in range(5):
        one_by_one.push(keys[place : place + 1], gradients[place : place + 1])
    expected = np.empty((2, 4), np.float32)
    model.pull(keys[:2], expected)
    assert pulled(store, keys[:2]).tobytes() == expected.tobytes()
    assert pulled(one_by_one, keys[:2]).tobytes() == expected.tobytes()


def test_the_lowest_and_the_highest_key_are_ordinary() -> None:
    store = new_store(0)
    ends = np.asarray([0, 2**64 - 1], np.uint64)
    store.push(ends, ONES[:2])
    assert store.pull(ends, np.empty((2, 4), np.float32)) == 0
    assert store.erase(ends[:1]) == 1
    assert store.pull(ends, np.empty((2, 4), np.float32)) == 1
    assert store.export_partition(0)[0].tolist() == [2**64 - 1]


def test_no_keys_are_an_ordinary_batch() -> None:
    store = new_store(narrow_parts=1)
    store.push(NONE, np.zeros((0, 4), np.float32))
    store.assign(NONE, np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32))
    store.import_partition(0, NONE, np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32))
    assert store.pull(NONE, np.zeros((0, 4), np.float32)) == 0
    assert store.erase(NONE) == store.rows == 0
    assert store.partitions().tolist() == []


def test_an_erased_key_begins_again() -> None:
    store = new_store()
    store.push(KEYS, ONES)
    once = pulled(store, KEYS)
    store.push(KEYS, ONES)
    store.erase(KEYS)
    assert pulled(store, KEYS).tobytes() == first(KEYS).tobytes()
    store.push(KEYS, ONES)
    assert pulled(store, KEYS).tobytes() == once.tobytes()


def test_a_partition_moves_with_weights_and_state() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 1 << 64, 3000, np.uint64)
    one, other = new_store(), new_store()
    for _ in range(3):
        one.push(keys, rng.standard_normal((3000, 4)).astype(np.float32))
    for partition in one.partitions().tolist():
        other.import_partition(partition, *one.export_partition(partition))
        one.check_consistency()
    gradients = rng.standard_normal((3000, 4)).astype(np.float32)
    one.push(keys, gradients)
    other.push(keys, gradients)
    for partition in range(4):
        for have, want in zip(
            other.export_partition(partition), one.export_partition(partition), strict=True
        ):
            assert have.tobytes() == want.tobytes()


def test_rows_are_exported_by_row_number_and_erased_numbers_are_used_again() -> None:
    store = new_store(0)
    keys = np.arange(1, 9, dtype=np.uint64)
    store.push(keys, np.ones((8, 4), np.float32))
    store.erase(keys[[2, 5]])
    assert store.export_partition(0)[0].tolist() == [1, 2, 4, 5, 7, 8]
    bytes_before = store.stats()["row_bytes"]
    store.push(np.asarray([100, 101, 102], np.uint64), np.ones((3, 4), np.float32))
    assert store.export_partition(0)[0].tolist() == [1, 2, 101, 4, 5, 100, 7, 8, 102]
    assert store.stats()["row_bytes"] == bytes_before  # 9 rows, as many as were ever there at once and one


def test_keys_lie_in_the_partition_of_their_top_bits() -> None:
    keys = np.random.default_rng(3).integers(0, 1 << 64, 2000, np.uint64)
    for bits in (0, 1, 7, 20):
        store = new_store(bits)
        store.push(keys, np.ones((2000, 4), np.float32))
        expected = partition_of(keys, bits)
        assert store.partitions().tolist() == sorted(set(expected.tolist()))
        for partition in store.partitions().tolist()[:50]:
            assert set(store.export_partition(partition)[0].tolist()) == set(
                keys[expected == partition].tolist()
            )


def test_a_foreign_key_is_not_imported() -> None:
    store = new_store(4)
    keys = np.arange(100, dtype=np.uint64)
    mine = int(partition_of(keys, 4)[0])
    with pytest.raises(
        ValueError, match=f"expected keys of partition {mine}, got .* of another one at place"
    ):
        store.import_partition(mine, keys, np.ones((100, 4), np.float32), np.ones((100, 3), np.float32))
    assert store.rows == 0


def test_a_narrow_row_has_the_first_parts_and_first_values_for_the_others() -> None:
    store = new_store(narrow_parts=1)
    store.push(KEYS, ONES, narrow=True)
    weights = pulled(store, KEYS)
    assert (weights[:, 0] == first(KEYS)[:, 0] - np.float32(0.5)).all()
    assert weights[:, 1:].tobytes() == first(KEYS)[:, 1:].tobytes()
    assert store.stats()["narrow_rows"] == 4
    assert store.pull(KEYS, np.empty((4, 4), np.float32)) == 0
    store.push(KEYS, ONES)
    assert store.stats()["narrow_rows"] == 4
    assert pulled(store, KEYS)[:, 1:].tobytes() == first(KEYS)[:, 1:].tobytes()


def test_a_promoted_row_keeps_what_it_had_and_begins_the_rest() -> None:
    spec = TableSpec("t", (PartSpec("w", 2, Adam(0.1)), PartSpec("v", 3, Adagrad(0.1, 1e-10, 0.5))))
    by_two_shows = (1, 2.0)
    store = Store(0, store_parts(spec), 1, counters=2, promotion=by_two_shows)
    gradients = np.full((4, 5), 2.0, np.float32)
    store.push(KEYS, gradients)
    _, narrow_weights, narrow_state = store.export_partition(0, narrow=True)
    before = pulled(store, KEYS)
    store.push(KEYS[:3], np.zeros((3, 5), np.float32), delta=True)
    assert pulled(store, KEYS).tobytes() == before.tobytes()
    keys, weights, state = store.export_partition(0)
    assert keys.tolist() == KEYS[:3].tolist()
    assert weights[:, :2].tobytes() == narrow_weights[:3].tobytes()
    assert state[:, 0].tolist() == [2] * 3
    assert state[:, 2:7].tobytes() == narrow_state[:3, 2:].tobytes()
    assert (state[:, 7:] == 0.5).all()
    assert (store.stats()["narrow_rows"], store.stats()["promoted"]) == (1, 3)


def test_a_store_without_narrow_rows_exports_none_and_refuses_to_make_one() -> None:
    store = new_store()
    keys, weights, state = store.export_partition(0, narrow=True)
    assert (keys.shape, weights.shape, state.shape) == ((0,), (0, 0), (0, 0))
    store.import_partition(0, keys, weights, state, narrow=True)
    with pytest.raises(ValueError, match="push: expected narrow=False"):
        store.push(KEYS, ONES, narrow=True)


def test_read_only_and_unaligned_arrays_from_the_network_are_read() -> None:
    store, reference = new_store(), new_store()
    reference.push(KEYS, ONES)
    frame = b"?" + KEYS.tobytes() + ONES.tobytes()
    keys = np.frombuffer(frame, np.uint64, 4, 1)
    assert not keys.flags.aligned
    store.push(keys, np.frombuffer(frame, np.float32, 16, 33).reshape(4, 4))
    assert pulled(store, KEYS).tobytes() == pulled(reference, KEYS).tobytes()


def test_two_threads_work_on_two_stores_at_once() -> None:
    stores = [new_store(), new_store()]
    keys = np.random.default_rng(4).integers(0, 1 << 64, 50_000, np.uint64)
    gradients = np.ones((50_000, 4), np.float32)
    threads = [threading.Thread(target=store.push, args=(keys, gradients)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pulled(stores[0], keys).tobytes() == pulled(stores[1], keys).tobytes()


def test_weights_decay_only_in_rows_that_count_when_they_were_seen() -> None:
    spec = TableSpec("t", (PartSpec("v", 2, SGD(0.5, weight_decay=0.5), Uniform(0.1)),))
    with pytest.raises(
        ValueError, match=r"part 0: modifiers: expected counters with last_seen.*got counters=2"
    ):
        Store(0, store_parts(spec), counters=2)
    store = Store(0, store_parts(spec), counters=1)
    keys = np.asarray([3], np.uint64)
    store.push(keys, np.full((1, 2), -2, np.float32), now=10)
    now, later, before = np.empty((3, 1, 2), np.float32)
    store.pull(keys, now, 10)
    store.pull(keys, later, 12)
    store.pull(keys, before, 7)
    assert later.tolist() == (now * np.float32(0.75**2)).tolist()
    assert before.tolist() == now.tolist()
    store.push(keys, np.zeros((1, 2), np.float32), now=12)
    store.pull(keys, now, 12)
    assert now.tolist() == later.tolist()


def test_rows_count_shows_clicks_and_the_last_time_they_were_seen() -> None:
    store = Store(0, store_parts(SPEC), counters=3)
    keys = np.asarray([4, 5, 4], np.uint64)
    store.push(keys, ONES[:3], now=7, shows=np.asarray([1, 2.5, 3], np.float32))
    store.push(keys[:2], ONES[:2], now=-2, clicks=np.asarray([0.5, 2], np.float32))
    order, _, state = store.export_partition(0)
    assert order.tolist() == [4, 5]
    assert state[:, :3].tolist() == [[7, 5, 0.5], [7, 3.5, 2]]
    assert store.state_floats == 3 + SPEC.state_floats


def test_a_store_that_is_initialised_again_keeps_its_rows() -> None:
    store = new_store()
    store.push(np.array([1], np.uint64), np.ones((1, store.dim), np.float32))
    store.__init__(0, store_parts(SPEC))  # type: ignore[misc]
    assert store.rows == 1
    store.check_consistency()


WIDTHS = (
    (PartSpec("v", 16, RowwiseAdagrad(0.1), Uniform(0.1)),),
    (PartSpec("v", 16, RowwiseAdagrad(0.1, initial_accumulator=0.3), Uniform(0.2)),),
    (PartSpec("w", 1, SGD(0.1), Normal(0.1)), PartSpec("v", 16, RowwiseAdagrad(0.1), Uniform(0.1))),
    (PartSpec("v", 33, Adam(0.01), Normal(0.1)), PartSpec("u", 7, Adagrad(0.1), Uniform(0.1))),
    (PartSpec("v", 64, RowwiseAdagrad(0.1), Normal(0.1)), PartSpec("u", 5, RowwiseAdagrad(0.1))),
)


@pytest.mark.parametrize("level", ["plain", "avx2", "avx512"])
@pytest.mark.parametrize("parts", WIDTHS, ids=lambda parts: "+".join(str(part.dim) for part in parts))
def test_every_instruction_set_gives_the_bits_of_the_definition(
    level: str, parts: tuple[PartSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if level not in vector_levels():
        pytest.skip(
            f"this processor can't run {level}; those that it has, {', '.join(vector_levels())}, are each "
            "held against the definition here, plain C everywhere"
        )
    monkeypatch.setenv("PSLIB_VECTORS", level)
    spec = TableSpec("t", parts)
    store, model = new_store(1, spec=spec), DictTable(spec, 1)
    rng = np.random.default_rng(7)
    for _ in range(3):
        keys = rng.integers(0, 400, 300).astype(np.uint64)
        gradients = rng.standard_normal((300, spec.dim)).astype(np.float32)
        store.push(keys, gradients)
        model.push(keys, gradients)
    keys = np.arange(500, dtype=np.uint64)
    have, want = np.empty((500, spec.dim), np.float32), np.empty((500, spec.dim), np.float32)
    assert store.pull(keys, have) == model.pull(keys, want) > 0
    assert have.tobytes() == want.tobytes()
    store.check_consistency()


# --- refused arguments: a message names what was wrong, and nothing changes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.push(KEYS.astype(np.int64), ONES), "push: keys: expected C-contiguous uint64.*int64"),
        (lambda s: s.push(KEYS.astype(">u8"), ONES), "push: keys: expected C-contiguous uint64.*>u8"),
        (lambda s: s.push(KEYS.tolist(), ONES), "push: keys: expected.*got list"),
        (lambda s: s.push(np.repeat(KEYS, 2)[::2], ONES), "push: keys: expected C-contiguous.*got strided"),
        (lambda s: s.push(KEYS, ONES[:3]), r"push: gradients: expected.*\(4, 4\), got.*\(3, 4\)"),
        (lambda s: s.push(KEYS, ONES.astype(np.float64)), "push: gradients: expected.*float32.*float64"),
        (lambda s: s.push(KEYS, np.asfortranarray(ONES)), "push: gradients: expected C-contiguous.*strided"),
        (
            lambda s: s.pull(KEYS, np.zeros((4, 5), np.float32)),
            r"pull: out: expected.*\(4, 4\), got.*\(4, 5\)",
        ),
        (
            lambda s: s.pull(KEYS, np.frombuffer(bytes(64), np.float32).reshape(4, 4)),
            "pull: out: .*writeable",
        ),
        (
            lambda s: s.pull(KEYS, ONES.copy(), np.nan),
            "pull: now: expected a number that is finite as float32",
        ),
        (lambda s: s.push(KEYS, ONES, now=1e39), "push: now: expected .* finite as float32, got 1e.39"),
        (lambda s: s.push(KEYS, ONES, now="1"), "push: now: expected a number.*got '1'"),
        (
            lambda s: s.push(KEYS, ONES, salt=-1),
            "push: salt: expected a whole number in 0..18446744073709551615",
        ),
        (
            lambda s: s.push(KEYS, ONES, shows=ONES[:3, 0].copy()),
            r"push: shows: expected.*\(4,\), got.*\(3,\)",
        ),
        (lambda s: s.push(KEYS, ONES, shows=np.ones(4)), "push: shows: expected.*float32.*float64"),
        (
            lambda s: s.push(KEYS, ONES, shows=np.asarray([1, 2, 0, 1], np.float32)),
            "push: shows: expected finite counts above 0, got 0.0 at place 2",
        ),
        (
            lambda s: s.push(KEYS, ONES, clicks=np.asarray([0, np.nan, 0, -1], np.float32)),
            "push: clicks: expected finite counts not below 0, got nan at place 1",
        ),
        (
            lambda s: s.push(KEYS, ONES, shows=np.full(4, np.inf, np.float32)),
            "push: shows: .*got inf at place 0",
        ),
        (lambda s: s.erase(KEYS.reshape(2, 2)), r"erase: keys: expected.*\(n,\), got.*\(2, 2\)"),
        (lambda s: s.assign(KEYS, ONES, ONES), r"assign: state: expected.*\(4, 3\), got.*\(4, 4\)"),
        (lambda s: s.export_partition(4), "partition: expected a whole number in 0..3, got 4"),
        (lambda s: s.import_partition(-1, KEYS, ONES, ONES), "partition: expected.*got -1"),
        (lambda s: s.drop_partition(1.0), "partition: expected a whole number.*got 1.0"),
        (lambda s: s.partition_rows(2**40), "partition: expected a whole number in 0..3"),
    ],
)
def test_a_wrong_argument_is_refused_by_name_and_changes_nothing(call, message: str) -> None:  # type: ignore[no-untyped-def]
    store = new_store()
    with pytest.raises(ValueError, match=message):
        call(store)
    assert store.rows == 0


def part_with(place: int, value: object) -> list[object]:
    part: list[object] = list(store_parts(SPEC)[0])
    part[place] = value
    return part


@pytest.mark.parametrize(
    ("bits", "parts", "narrow_parts", "message"),
    [
        (21, store_parts(SPEC), 0, "partition_bits: expected a whole number in 0..20, got 21"),
        (-1, store_parts(SPEC), 0, "partition_bits"),
        (True, store_parts(SPEC), 0, "partition_bits"),
        (0, [], 0, "number of parts: expected a whole number in 1..8, got 0"),
        (0, store_parts(SPEC) * 5, 0, "number of parts: .*got 10"),
        (0, store_parts(SPEC), 2, "narrow_parts: expected a whole number in 0..1, got 2"),
        (0, [part_with(0, 0)], 0, "part 0: dim: expected a whole number in 1..4096, got 0"),
        (0, [part_with(0, 4097)], 0, "part 0: dim"),
        (0, [part_with(1, 9)], 0, "part 0: optimizer_kind: expected a whole number in 0..5, got 9"),
        (0, [part_with(1, 3)], 0, "part 0: corrections: expected .* for Adam, got 0"),
        (0, [part_with(2, np.zeros(3, np.float32))], 0, "part 0: hyperparameters"),
        (0, [part_with(3, np.zeros(3, np.float32))], 0, "part 0: modifiers"),
        (0, [part_with(4, np.zeros((2, 3), np.float32))], 0, "part 0: corrections"),
        (0, [part_with(5, 3)], 0, "part 0: initializer_kind"),
        (0, [part_with(6, np.zeros(1, np.float32))], 0, "part 0: initializer numbers"),
        (0, [part_with(7, 2**64)], 0, "part 0: part_seed"),
        (
            0,
            [part_with(8, np.zeros(1, np.float32))],
            0,
            r"part 0: initial_state: expected.*\(0,\), got.*\(1,\)",
        ),
        (0, [store_parts(SPEC)[0][:8]], 0, "part 0: expected a tuple of 9, got 8"),
    ],
)
def test_a_wrong_description_of_a_table_is_refused(
    bits: int, parts: list, narrow_parts: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Store(bits, parts, narrow_parts)


def test_there_is_no_store_without_its_memory() -> None:
    """A subclass that forgets super().__init__() has what it was made with; else there is no object."""

    class Forgetful(Store):
        def __init__(self, *arguments: object) -> None:
            pass

    assert Forgetful(0, store_parts(SPEC)).stats()["rows"] == 0
    with pytest.raises(TypeError, match="at least 2 positional arguments"):
        Store.__new__(Store)  # type: ignore[call-arg]


def test_an_instruction_set_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vector_levels()[0] == "plain"
    monkeypatch.setenv("PSLIB_VECTORS", "mmx")
    with pytest.raises(ValueError, match=r"PSLIB_VECTORS: expected one of plain.* got mmx"):
        new_store()
