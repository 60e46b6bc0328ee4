"""Definition of a table with policies: a dict of rows with counters, and counts of keys without rows.

`PolicyTable` does each thing that a Store does in the most obvious way, key after key, in float32 with one
rounding an operation. Beside it stand the formulas of its parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pslib.table.tables import TableSpec
from tests.support.definitions.optimizers import sum_of_squares
from tests.support.definitions.storage import GOLDEN
from tests.support.definitions.table import DictTable, Floats, Keys, mix64, partition_of

ALWAYS, COUNT, BLOOM, CHANCE = range(4)
NEVER, BY_SHOWS, BY_SCORE = range(3)
AGE, NORM, SCORE = range(3)
LAST_SEEN, SHOWS = 1, 2

MASK64 = (1 << 64) - 1
F32 = np.float32


def norm(weights: Iterable[Floats]) -> np.float32:
    """sqrt(sum of squares), in float32: each part in 16 lanes, then part after part."""
    total = F32(0)
    with np.errstate(all="ignore"):
        for part in weights:
            total += sum_of_squares(part)
        return np.sqrt(total)


def weight_of(shows: float) -> int:
    """Shows of one occurrence, rounded down, 1..65535."""
    return int(min(max(math.floor(shows), 1), 65_535))


def faded(count: int, factor: float) -> int:
    """floor(float32(count) * float32(factor)), the product rounded to float32."""
    return math.floor(F32(count) * F32(factor))


def is_lucky(key: int, salt: int, chance: float) -> bool:
    """24 bits of key and salt, as a number below 1, are below the chance."""
    word = mix64(key ^ mix64(salt ^ int(GOLDEN)))
    return F32(word >> 40) * F32(2**-24) < F32(chance)


def filter_places(key: int, counters: int) -> list[int]:
    """Return the places of the four counters of a key."""
    word = mix64((mix64(key) + int(GOLDEN)) & MASK64)
    first, step = word & 0xFFFFFFFF, word >> 32 | 1
    return [(first + i * step) % (1 << 32) % counters for i in range(4)]


def false_rate(keys: int, counters: int) -> float:
    """Return the probability that all counters of a new key are shared with the `keys` of a filter."""
    return float((1 - math.exp(-4 * keys / counters)) ** 4)


class PolicyTable(DictTable):
    """A DictTable whose keys earn their rows, whose rows count, and whose rows leave."""

    def __init__(
        self,
        spec: TableSpec,
        partition_bits: int,
        narrow_parts: int = 0,
        *,
        storage: int = 0,
        counters: int = 0,
        admission: tuple[int, float, int] = (0, 0.0, 0),
        promotion: tuple[int, float] = (0, 0.0),
        score: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        super().__init__(spec, partition_bits, narrow_parts, storage=storage, counters=counters)
        self.admission, self.promotion, self.coefficients = admission, promotion, score
        self.counted: dict[int, int] = {}
        self.filters: dict[int, list[int]] = {}
        self.happened: Counter[str] = Counter()

    # --- who gets a row

    def admits(self, key: int, weight: int, salt: int) -> bool:
        kind, number, counters = self.admission
        if kind == COUNT:
            count = self.counted.pop(key, 0) + weight
            if count < number:
                self.counted[key] = count
            return count >= number
        if kind == BLOOM:
            return self.filter_admits(key, weight, int(number), counters)
        return kind == ALWAYS or is_lucky(key, salt, number)

    def filter_admits(self, key: int, weight: int, number: int, counters: int) -> bool:
        partition, places = partition_of(key, self.partition_bits), filter_places(key, counters)
        known = self.filters.get(partition, [0] * counters)
        estimate = min(known[place] for place in places) + weight
        if estimate < number:
            for place in places:
                known[place] = max(known[place], estimate)
            self.filters[partition] = known
        return estimate >= number

    # --- rows

    def push(
        self,
        keys: Keys,
        gradients: Floats,
        narrow: bool = False,
        *,
        salt: int = 0,
        now: float = 0.0,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        due = []
        for place, key in enumerate(keys.tolist()):
            one = slice(place, place + 1)
            if key not in self.table:
                if not self.admits(key, weight_of(1 if shows is None else shows[place]), salt):
                    self.happened["turned_away"] += 1
                    continue
                self.happened["admitted"] += self.admission[0] != ALWAYS
            super().push(
                keys[one],
                gradients[one],
                narrow or self.promotion[0] != NEVER,
                salt=salt,
                now=now,
                shows=None if shows is None else shows[one],
                clicks=None if clicks is None else clicks[one],
            )
            if self.promotion[0] != NEVER and self.proof(key) >= F32(self.promotion[1]):
                due.append(key)
        self.promote(np.asarray(due, np.uint64))

    def proof(self, key: int) -> np.float32:
        return self.table[key].counters[-2] if self.promotion[0] == BY_SHOWS else self.score_of(key)

    def score_of(self, key: int) -> np.float32:
        shows, clicks = self.table[key].counters[-2:]
        nonclick, click = map(F32, self.coefficients)
        return (shows - clicks) * nonclick + clicks * click

    def promote(self, keys: Keys) -> int:
        promoted = super().promote(keys)
        self.happened["promoted"] += promoted
        return promoted

    def erase(self, keys: Keys) -> int:
        for key in keys.tolist():
            self.counted.pop(key, None)
        return super().erase(keys)

    def put(self, keys: Keys, weights: Floats, state: Floats, narrow: bool) -> None:
        super().put(keys, weights, state, narrow)
        for key in keys.tolist():
            self.counted.pop(key, None)

    def drop_partition(self, partition: int) -> int:
        self.filters.pop(partition, None)
        for key in [key for key in self.counted if partition_of(key, self.partition_bits) == partition]:
            del self.counted[key]
        return super().drop_partition(partition)

    def row_bytes(self, key: int) -> tuple[bool, bytes, bytes]:
        """Return True for a narrow row, its weights, its state."""
        row = self.table[key]
        return self.is_narrow(key), np.concatenate(row.weights).tobytes(), row.all_state().tobytes()

    # --- decay and eviction

    def of(self, partitions: NDArray[np.uint32] | None, keys: Iterable[int]) -> list[int]:
        chosen = None if partitions is None else set(partitions.tolist())
        return [key for key in keys if chosen is None or partition_of(key, self.partition_bits) in chosen]

    def decay(self, factor: float, partitions: NDArray[np.uint32] | None = None) -> None:
        for key in self.of(partitions, self.table if self.counters & SHOWS else ()):
            self.table[key].counters[-2:] *= F32(factor)
        for key in self.of(partitions, list(self.counted)):
            self.counted[key] = faded(self.counted[key], factor)
            if self.counted[key] == 0:
                del self.counted[key]
        for partition in (
            list(self.filters) if partitions is None else set(partitions.tolist()) & set(self.filters)
        ):
            self.filters[partition] = [faded(count, factor) for count in self.filters[partition]]
            if not any(self.filters[partition]):
                del self.filters[partition]

    def worth(self, rule: int, key: int) -> np.float32:
        if rule == NORM:
            return norm(self.table[key].weights)
        return self.table[key].counters[0] if rule == AGE else self.score_of(key)

    def leaves(self, rule: int, key: int, number: float, now: float) -> bool:
        if rule == AGE:
            return bool(F32(now) - self.table[key].counters[0] > F32(number))
        return bool(self.worth(rule, key) < F32(number))

    def evict(
        self, rule: int, number: float, now: float = 0.0, partitions: NDArray[np.uint32] | None = None
    ) -> int:
        gone = [key for key in self.of(partitions, self.table) if self.leaves(rule, key, number, now)]
        for key in gone:
            del self.table[key]
        self.happened[("evicted_age", "evicted_norm", "evicted_score")[rule]] += len(gone)
        return len(gone)

    def evict_these(self, rule: int, share: float, gone: set[int]) -> None:
        """Evict these rows, which must be the worst share of all; any of equal rows may be chosen."""
        assert len(gone) == math.ceil(share * len(self.table))
        worst = [self.worth(rule, key) for key in gone]
        best = [self.worth(rule, key) for key in self.table if key not in gone]
        assert not worst or not best or max(worst) <= min(best)
        for key in gone:
            del self.table[key]
        self.happened["evicted_share"] += len(gone)
