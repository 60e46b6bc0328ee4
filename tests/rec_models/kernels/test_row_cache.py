"""Rows that a trainer keeps: what is served, for how long, and how gradients are written back."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.model.row_cache import RowCache
from tests.support.definitions.table import unmix64

SCAN, LIVES = 32, 8
F32 = np.float32


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


class Spot:
    """One spot of the definition; its floats follow later than its key."""

    def __init__(self, dim: int) -> None:
        self.key: int | None = None
        self.pulled = self.touched = 0
        self.repeated = False
        self.owner: int | None = None
        self.row = self.base = self.moved = np.zeros(dim, F32)
        self.sums = np.full(dim, np.inf, F32)


class CacheByDefinition:
    """`RowCache` in a dict and a list."""

    def __init__(
        self,
        spots: int,
        parts: list[int],
        rates: list[float],
        modes: list[int],
        first_sums: list[float],
        pushers: int,
        age: int,
    ) -> None:
        self.modes, self.first_sums, self.pushers = modes, list(map(F32, first_sums)), F32(pushers)
        self.dim, self.age, self.batch, self.hand = sum(parts), age, 0, 0
        self.places: dict[int, int] = {}
        self.spots = [Spot(self.dim) for _ in range(spots)]
        self.filled = 0
        ends = np.cumsum(parts).tolist()
        self.parts = [
            (end - size, end, F32(rate)) for size, end, rate in zip(parts, ends, rates, strict=True)
        ]

    def is_fresh(self, spot: Spot) -> bool:
        since_pull = self.batch - spot.pulled
        written_back = spot.repeated and self.batch - spot.touched <= self.age
        return since_pull <= self.age or (written_back and since_pull <= self.age * LIVES)

    def plan(self, keys: list[int]) -> tuple[list[int], list[int]]:
        self.batch += 1
        spots, missed = [], []
        for place, key in enumerate(keys):
            number = self.places.get(key, -1)
            spots.append(number)
            if number >= 0:
                spot = self.spots[number]
                if self.is_fresh(spot):
                    spot.touched = self.batch
                    continue
                spot.touched = spot.pulled = self.batch
                spot.repeated = True
            missed.append(place)
        for place in missed:
            if spots[place] < 0:
                spots[place] = self.take(keys[place])
        return spots, missed

    def take(self, key: int) -> int:
        number = self.filled
        if self.filled < len(self.spots):
            self.filled += 1
        else:
            number = self.oldest()
            if number < 0:
                return -1
            del self.places[self.spots[number].key]  # type: ignore[arg-type]
        spot = self.spots[number]
        spot.key, spot.pulled, spot.touched, spot.repeated = key, self.batch, self.batch, False
        self.places[key] = number
        return number

    def oldest(self) -> int:
        best = -1
        for _ in range(SCAN):
            number, self.hand = self.hand, (self.hand + 1) % len(self.spots)
            touched = self.spots[number].touched
            if touched == self.batch:
                continue
            if best < 0 or touched < self.spots[best].touched:
                best = number
            if self.batch - touched > self.age:
                return number
        return best

    def assemble(
        self, keys: list[int], spots: list[int], missed: list[int], pulled: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        out = np.empty((len(spots), self.dim), F32)
        for place, number in enumerate(spots):
            if place not in missed:
                out[place] = self.spots[number].row
        for place, row, is_new in zip(missed, pulled, new, strict=True):
            out[place] = row
            if spots[place] >= 0:
                self.keep(keys[place], self.spots[spots[place]], row, is_new)
        return out

    def keep(self, key: int, spot: Spot, row: np.ndarray, is_new: bool) -> None:
        sums = np.full(self.dim, np.inf, F32) if spot.owner != key else spot.sums
        for part, (first, end, rate) in enumerate(self.parts):
            if is_new:
                sums[first:end] = self.first_sums[part]
            elif sums[first] == np.inf and spot.owner == key:
                along = square = F32(0)
                for j in range(first, end):
                    along = F32(along + F32(F32(spot.base[j] - row[j]) * spot.moved[j]))
                    square = F32(square + F32(spot.moved[j] * spot.moved[j]))
                root = F32(F32(rate * square) / along) if along > 0 else F32(np.inf)
                sums[first:end] = F32(root * root)
        spot.owner, spot.sums = key, sums
        spot.row, spot.base, spot.moved = row.copy(), row.copy(), np.zeros(self.dim, F32)

    def step(self, spots: list[int], gradients: np.ndarray) -> None:
        for number, gradient in zip(spots, gradients, strict=True):
            if number < 0:
                continue
            spot = self.spots[number]
            for part, (first, end, rate) in enumerate(self.parts):
                mean = F32(0)
                for j in range(first, end):
                    mean = F32(mean + F32(gradient[j] * gradient[j]))
                mean = F32(mean / F32(end - first))
                for j in range(first, end):
                    if self.modes[part] == 0:
                        spot.row[j] -= F32(rate * gradient[j])
                        continue
                    square = mean if self.modes[part] == 2 else F32(gradient[j] * gradient[j])
                    spot.sums[j] += F32(self.pushers * square)
                    if spot.sums[j] > 0:
                        spot.row[j] -= F32(F32(rate * gradient[j]) / np.sqrt(spot.sums[j]))
            spot.moved = spot.moved + gradient


Given = tuple[int, list[int], list[float], list[int], list[float], int, int]


class Both:
    """A cache and its definition, whose plans must agree."""

    def __init__(self, given_: Given, seed: int, universe: int) -> None:
        self.cache, self.definition = RowCache(*given_), CacheByDefinition(*given_)
        self.random, self.universe = np.random.default_rng(seed), universe

    def plan(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Some keys, their spots and the places of the missed ones."""
        size = self.random.integers(0, self.universe // 2 + 1)
        keys = self.random.choice(self.universe, size, replace=False).astype(np.uint64) * np.uint64(2**60 + 1)
        places, missed = self.cache.plan(keys)
        assert (places.tolist(), missed.tolist()) == self.definition.plan(keys.tolist())
        return keys, places, missed


@settings(deadline=None, max_examples=60)
@given(
    spots=st.integers(1, 40),
    age=st.integers(1, 3),
    ahead=st.integers(0, 2),
    seed=st.integers(0, 10_000),
    universe=st.integers(3, 60),
)
def test_it_does_what_the_definition_does_however_far_plans_run_ahead(
    spots: int, age: int, ahead: int, seed: int, universe: int
) -> None:
    parts, rates = [1, 3], [0.1, 0.05]
    given_ = (spots, parts, rates, [seed % 3, seed % 2 + 1], [1e-6, 0.0], 1 + seed % 2, age)
    both = Both(given_, seed, universe)
    cache, definition, rng = both.cache, both.definition, both.random
    waiting: deque[tuple[np.ndarray, np.ndarray, np.ndarray]] = deque()

    def move() -> None:
        keys, places, missed = waiting.popleft()
        pulled = rng.normal(size=(missed.size, 4)).astype(F32)
        gradients = rng.normal(size=(keys.size, 4)).astype(F32)
        new = rng.random(missed.size) < 0.3
        out = np.full((keys.size, 4), 9.0, F32)
        cache.assemble(keys, places, missed, pulled, new, out)
        want = definition.assemble(keys.tolist(), places.tolist(), missed.tolist(), pulled, new)
        np.testing.assert_array_equal(out, want)
        cache.step(places, gradients)
        definition.step(places.tolist(), gradients)

    for _ in range(25):
        waiting.append(both.plan())
        if len(waiting) > ahead:
            move()
    while waiting:
        move()


@settings(deadline=None, max_examples=40)
@given(
    spots=st.integers(1, 300),
    age=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    universe=st.integers(100, 1000),
)
def test_plans_of_many_keys_which_go_in_blocks_are_the_definitions(
    spots: int, age: int, seed: int, universe: int
) -> None:
    both = Both((spots, [1], [0.1], [0], [0.0], 1, age), seed, universe)
    for _ in range(12):
        both.plan()


def cache_of(spots: int, age: int, dim: int = 1, mode: int = 1, first_sum: float = 0.0) -> RowCache:
    return RowCache(spots, [dim], [0.1], [mode], [first_sum], 1, age)


def batch(cache: RowCache, keys: np.ndarray, values: dict[int, float]) -> tuple[list[float], list[int]]:
    """One batch of rows of one float: what it reads, and which keys it has pulled."""
    spots, missed = cache.plan(keys)
    pulled = np.array([[values[key]] for key in keys[missed].tolist()], F32).reshape(-1, 1)
    out = np.empty((keys.size, 1), F32)
    cache.assemble(keys, spots, missed, pulled, np.zeros(missed.size, bool), out)
    return out.ravel().tolist(), keys[missed].tolist()


@pytest.mark.parametrize("age", [1, 2, 8])
def test_a_row_is_pulled_anew_when_it_is_older_than_the_age(age: int) -> None:
    cache = cache_of(10, age)
    for step in range(age + 1):
        read, pulled = batch(cache, keys_of(5), {5: step})
        assert (read, pulled) == ([0.0], [5] if step == 0 else [])
    assert batch(cache, keys_of(5), {5: 7.0}) == ([7.0], [5])


def test_a_row_that_is_written_back_is_served_longer_and_then_pulled_all_the_same() -> None:
    cache, pulls = cache_of(10, 2), []
    for number in range(60):
        pulls += [number] if batch(cache, keys_of(5), {5: 0.0})[1] else []
    assert pulls == [0, 3, 3 + 17, 3 + 34, 3 + 51]


def test_a_written_back_row_that_no_batch_has_touched_is_pulled_anew() -> None:
    cache = cache_of(10, 2)
    for _ in range(4):
        batch(cache, keys_of(5), {5: 0.0})
    for _ in range(3):
        batch(cache, keys_of(6), {6: 0.0})
    assert batch(cache, keys_of(5), {5: 1.0}) == ([1.0], [5])


def test_the_first_and_the_last_key_are_ordinary() -> None:
    cache = cache_of(4, 8)
    values = {0: 1.0, 2**64 - 1: 2.0}
    assert batch(cache, keys_of(0, 2**64 - 1), values)[0] == [1, 2]
    assert batch(cache, keys_of(2**64 - 1, 0), {}) == ([2, 1], [])


def follow(cache: RowCache, server: Any, steps: int, size: float = 0.01, new: bool = False) -> list[float]:
    """Return the distance of a cached row from the server's, batch by batch; ``server`` takes gradients."""
    key, gradient, errors = keys_of(3), np.array([[size, -size]], F32), []
    for number in range(steps):
        spots, missed = cache.plan(key)
        out = np.empty((1, 2), F32)
        came = np.repeat(server.row[None], missed.size, 0).astype(F32)
        cache.assemble(key, spots, missed, came, np.full(missed.size, new and number == 0), out)
        errors.append(float(np.abs(out[0] - server.row).max()))
        cache.step(spots, gradient)
        server.step(gradient[0])
    return errors


class AdagradRow:
    """A row of a server."""

    def __init__(self, total: float) -> None:
        self.row, self.total = np.array([1.0, -2.0]), total

    def step(self, gradient: np.ndarray) -> None:
        self.total = self.total + gradient.astype(float) ** 2
        self.row = self.row - 0.1 * gradient / np.sqrt(self.total)


def test_a_new_row_follows_its_server_from_the_first_step_on() -> None:
    errors = follow(cache_of(4, 8, dim=2, first_sum=1e-6), AdagradRow(1e-6), 40, new=True)
    assert max(errors) < 1e-6


def test_a_known_row_follows_its_server_once_it_has_been_pulled_twice() -> None:
    errors = follow(cache_of(4, 2, dim=2), AdagradRow(4.0), 20)
    assert errors[1] > 1e-4
    assert errors[2] > errors[1]
    assert max(errors[3:]) < 1e-5


def test_plain_steps_are_those_of_sgd() -> None:
    class Row(AdagradRow):
        def step(self, gradient: np.ndarray) -> None:
            self.row = self.row - 0.1 * gradient

    assert max(follow(cache_of(4, 8, dim=2, mode=0), Row(0), 40)) < 1e-5


def test_a_step_of_the_copy_is_never_longer_than_a_step_of_adagrad() -> None:
    cache, key = cache_of(4, 1, dim=2), keys_of(3)
    row = np.zeros((1, 2), F32)
    for number in range(3):  # its row moves by 0.1 for a gradient of 1e-6: a rate of 1e5
        spots, missed = cache.plan(key)
        out = np.empty((1, 2), F32)
        came, new = np.full((missed.size, 2), -0.1 * number, F32), np.zeros(missed.size, bool)
        cache.assemble(key, spots, missed, came, new, out)
        cache.step(spots, np.full((1, 2), 1e-6 if number < 2 else 1e3, F32))
    spots, missed = cache.plan(key)
    assert not missed.size
    cache.assemble(key, spots, missed, row[:0], np.zeros(0, bool), row)
    assert np.abs(row - out).max() <= 0.1 + 1e-6


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cache_of(0, 1), r"spots: expected a whole number in 1\.\.268435456, got 0"),
        (lambda: RowCache(1, [], [], [], [], 1, 1), "expected at least one part"),
        (
            lambda: RowCache(1, [1, 2], [0.1], [1], [0], 1, 1),
            "expected learning rates, modes and sums of 2 parts",
        ),
        (lambda: RowCache(1, [0], [0.1], [1], [0], 1, 1), "part: expected a whole number"),
        (lambda: RowCache(1, [1], [np.nan], [1], [0], 1, 1), "expected finite rates and sums >= 0"),
        (lambda: RowCache(1, [1], [0.1], [3], [0], 1, 1), "mode: expected a whole number"),
        (lambda: RowCache(1, [1], [0.1], [1], [0], 0, 1), "pushers: expected a whole number"),
        (lambda: cache_of(1, 0), "age: expected a whole number"),
        (lambda: cache_of(1, 1).plan(np.array([1])), "keys: expected C-contiguous uint64"),
        (lambda: assembled(spots=[5]), r"spots: expected -1\.\.2"),
        (lambda: assembled(spots=[-1]), "spots and places that plan gave"),
        (lambda: assembled(missed=[1]), r"missed: expected places in 0\.\.0"),
        (lambda: assembled(missed=[0, 0]), "spots and places that plan gave"),
        (lambda: assembled(rows=2), r"pulled: expected C-contiguous float32 \(0, 1\)"),
        (lambda: cache_of(3, 1).step(np.zeros(1, np.int32), np.ones((2, 1), F32)), "gradients"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


def assembled(spots: Any = (0,), missed: Any = (), rows: int | None = None) -> None:
    """One batch of one key with something wrong."""
    count = len(missed) if rows is None else rows
    cache_of(3, 1).assemble(
        keys_of(1),
        np.array(spots, np.int32),
        np.array(missed, np.int32),
        np.ones((count, 1), F32),
        np.zeros(len(missed), bool),
        np.empty((1, 1), F32),
    )


def test_two_keys_of_which_cells_hold_the_same_half_are_two() -> None:
    cache = cache_of(8, 3)
    one, other = (unmix64(high << 32 | 5) for high in (1, 2))
    assert cache.plan(keys_of(one))[1].tolist() == [0]
    assert cache.plan(keys_of(other))[1].tolist() == [0]
    assert cache.plan(keys_of(one, other))[1].tolist() == []


def test_a_gradient_of_0_does_not_move_a_row_whose_sum_is_0() -> None:
    cache, key, out = cache_of(4, 3), keys_of(7), np.empty((1, 1), F32)
    for missed in (1, 0):
        places, found = cache.plan(key)
        assert found.size == missed
        cache.assemble(key, places, found, np.ones((missed, 1), F32), np.ones(missed, bool), out)
        assert out.tolist() == [[1.0]]
        cache.step(places, np.zeros((1, 1), F32))
