"""What a Store refuses, and that a refusal names what was wrong and changes nothing."""

import numpy as np
import pytest

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from tests.table.test_store import KEYS, ONES, SPEC, new_store


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
        (lambda s: s.promote(ONES), "promote: keys: expected"),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": 4}, "storage: expected a whole number in 0..3, got 4"),
        ({"counters": -1}, "counters: expected a whole number in 0..3, got -1"),
        ({"admission": (4, 0.0, 0)}, "admission: kind: expected a whole number in 0..3, got 4"),
        ({"admission": (0, 0.0)}, r"admission: expected a tuple of 3, got \(0, 0.0\)"),
        ({"promotion": (3, 0.0)}, "promotion: kind: expected a whole number in 0..2, got 3"),
        ({"promotion": (1, float("inf"))}, "promotion: number: expected a number that is finite"),
        ({"score": (0.1, "click")}, "score: click coefficient: expected a number"),
        ({"score": 0.1}, "score: expected a tuple of 2, got 0.1"),
    ],
)
def test_a_wrong_policy_is_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Store(0, store_parts(SPEC), 1, **options)


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
