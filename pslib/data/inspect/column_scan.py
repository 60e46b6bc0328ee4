"""Column scan: counts, ranges and the first bad value of a column, accumulated array by array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import hll_sketch  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.common.hashing import mix64
from pslib.data.column_types import key_kind, label_problem, weight_problem
from pslib.data.columns import float32_of, is_list, keys_of, numbers_of, validity_of
from pslib.data.inspect.column_reader import row_group_of
from pslib.data.inspect.text_lists import TextLists, TextSample
from pslib.data.text_values import TEXT_KINDS, WHOLE, matches
from pslib.data.value_checks import DENSE, LABEL, WEIGHT, Rule, first_problem, place_of

WHOLE_MAX = 2.0**53  # beyond it every float is whole
KEYS_MAX = 8_192
"""Most keys kept, at least half after a cut: a share is known to 0.016 (two standard errors)."""


class KeySample:
    """Counts of keys sampled by their hash, so that a sampled key is counted from its first occurrence.

    Keys whose mixed number begins with ``level`` zero bits are kept; when there are too many, the level
    rises. So every key has the same chance, independent of its frequency (Gibbons 2001, distinct sampling).
    """

    def __init__(self) -> None:
        self._level = 0
        self._keys, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)

    def add(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """Add counts, (n,), to distinct ``keys``, (n,)."""
        kept = self._chosen(keys)
        together = np.concatenate([self._keys, keys[kept]])
        self._keys, inverse = np.unique(together, return_inverse=True)
        weights = np.concatenate([self._counts, counts[kept]])
        self._counts = np.bincount(inverse, weights, self._keys.size).astype(np.int64)
        while self._keys.size > KEYS_MAX:
            self._level += 1
            kept = self._chosen(self._keys)
            self._keys, self._counts = self._keys[kept], self._counts[kept]

    def share_below(self, count: int) -> float:
        """Share of keys that occur fewer than ``count`` times; 0 without keys."""
        return float(np.mean(self._counts < count)) if self._keys.size else 0.0

    def _chosen(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if self._level == 0:
            return np.ones(keys.size, np.bool_)
        return mix64(np.ascontiguousarray(keys)) >> np.uint64(64 - self._level) == 0


SKETCH_BITS = 14
"""Bits of a HyperLogLog sketch (Flajolet et al. 2007; Apache DataSketches): 16 KB, error 0.8 % or less."""


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """Statistics of one column.

    Attributes
    ----------
    name, kind : str
        Column name and Arrow type; types that are read alike, as int32 and int64 in different files, form one
        column with both type names.
    role : str
        ``"label"``, ``"weight"``, ``"dense"``, ``"sparse"``, ``"ragged"``, or ``""`` if no schema names it.
    rows, nulls : int
        Rows, and rows without a value.
    nans, infinite : int
        Counts among numbers; infinite in float32, the model's type.
    zeros, ones : int
        Numbers equal to 0 and to 1.
    smallest, largest : float, int or None
        Range of finite numbers, or of string lengths in bytes; for lists, of their elements.
    distinct : int or None
        Estimated number of distinct values (0.8 %); None for floats.
    lengths : (int, float, int) or None
        Smallest, mean and largest number of elements of a list.
    empty_lists, null_elements : int
    once : float or None
        Estimated share of distinct values that occur once (0.016).
    file : str
        First file with the column of this type.
    whole : bool
        Floats, none of which has a fraction.
    text_kind, text : str
        Kind of `TEXT_KINDS` that all strings are, or empty, and one of them.
    text_lists : TextLists or None
        Lists that the strings hold, if they do.
    """

    name: str
    kind: str
    role: str
    rows: int
    nulls: int
    nans: int
    infinite: int
    zeros: int
    ones: int
    smallest: float | int | None
    largest: float | int | None
    distinct: int | None
    lengths: tuple[int, float, int] | None
    empty_lists: int
    null_elements: int
    once: float | None = None
    file: str = ""
    whole: bool = False
    text_kind: str = ""
    text: str = ""
    text_lists: TextLists | None = None

    @property
    def reach(self) -> float:
        """Largest absolute value; 0.0 without values."""
        if self.smallest is None or self.largest is None:
            return 0.0
        return max(abs(self.smallest), abs(self.largest))

    @property
    def ids_hint(self) -> str:
        """Advice for whole numbers stored as floats, in case they are ids; else empty, as for 0 and 1."""
        if not self.whole or (self.smallest in (0, 1) and self.largest in (0, 1)):
            return ""
        return (
            "if they are ids, write them as integers, which makes a sparse field (pandas makes ids "
            f"{self.kind} where one is missing: astype('Int64') keeps them)"
        )


def read_alike(kind: pa.DataType) -> str:
    """Name shared by all types that are read alike: ``"integer"``, ``"list of string"`` ...

    ``"null"`` for a column without any value, and for lists of such: they match every other type.
    """
    if not is_list(kind):
        return key_kind(kind) or ("float" if types.is_floating(kind) else str(kind))
    inner = read_alike(kind.value_type)
    return inner if inner == "null" else f"list of {inner}"


class ColumnScan:
    """Scan a column of any type; problems and notes name the first value concerned.

    Parameters
    ----------
    name : str
    role : str
        As in `ColumnReport`; decides what counts as a problem.
    """

    def __init__(self, name: str, role: str) -> None:
        self.name, self.role = name, role
        self._kinds: list[pa.DataType] = []
        self._file = ""
        self._rows = self._nulls = self._nans = self._infinite = self._zeros = self._ones = 0
        self._smallest: Any = None
        self._largest: Any = None
        self._lists = self._elements = self._empty = self._null_elements = 0
        self._shortest, self._longest = math.inf, 0
        self._sketch: hll_sketch | None = None
        self._sample = KeySample()
        self._bad: dict[str, tuple[str, int]] = {}
        self._now: tuple[str, Sequence[int]] = ("", ())
        self._whole, self._texts, self._example = False, [*TEXT_KINDS], ""
        self._lists_in = TextSample()

    def begin(self, kind: pa.DataType, file: str, group_rows: Sequence[int]) -> None:
        """Begin a file in which the column has this type; all its types are `read_alike`."""
        self._file, self._now = self._file or file, (file, group_rows)
        if not self._kinds:
            self._whole = types.is_floating(kind.value_type if is_list(kind) else kind)
        if kind not in self._kinds:
            self._kinds.append(kind)

    def add(self, array: pa.Array, first_row: int) -> None:
        """Scan rows of the file that has begun, from ``first_row`` on."""
        self._rows += len(array)
        self._nulls += array.null_count
        if types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        if self.role == "label" and label_problem(array.type) is None:
            self._hold_to(LABEL, array, first_row)
        if self.role == "weight" and weight_problem(array.type) is None:
            self._hold_to(WEIGHT, array, first_row)
        values = self._add_lists(array) if is_list(array.type) else array
        if types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if types.is_floating(values.type):
            self._add_floats(values, first_row)
        elif types.is_integer(values.type) or types.is_boolean(values.type):
            integers = values.cast(pa.int8()) if types.is_boolean(values.type) else values
            zero, one = (pc.sum(pc.equal(integers, pa.scalar(end, integers.type))).as_py() for end in (0, 1))
            self._zeros, self._ones = self._zeros + (zero or 0), self._ones + (one or 0)
            self._widen(pc.min_max(integers))
        elif key_kind(values.type) == "string":
            self._add_texts(values)
        self._count_distinct(values)

    def problems(self) -> list[str]:
        """One line per kind of bad value: location of the first, and their number."""
        return [_counted(text, count) for what, (text, count) in self._bad.items() if what != "nan"]

    def notes(self) -> list[str]:
        """Valid but notable properties."""
        said = [_counted(text, count) for what, (text, count) in self._bad.items() if what == "nan"]
        if self._rows and self._nulls == self._rows:
            said.append(f"column {self.name!r}: every value is missing")
        return said

    def report(self) -> ColumnReport:
        """Statistics so far."""
        lengths = None
        if self._lists:
            lengths = (int(self._shortest), self._elements / self._lists, self._longest)
        return ColumnReport(
            name=self.name,
            kind=", ".join(self._kind_names()),
            role=self.role,
            rows=self._rows,
            nulls=self._nulls,
            nans=self._nans,
            infinite=self._infinite,
            zeros=self._zeros,
            ones=self._ones,
            smallest=self._smallest,
            largest=self._largest,
            distinct=None if self._sketch is None else round(self._sketch.get_estimate()),
            lengths=lengths,
            empty_lists=self._empty,
            null_elements=self._null_elements,
            once=None if self._sketch is None else self._sample.share_below(2),
            file=self._file,
            whole=self._whole and self._smallest is not None,
            text_kind=self._texts[0] if self._texts and self._example else "",
            text=self._example,
            text_lists=None if self._texts and self._example else self._lists_in.lists(),
        )

    def _kind_names(self) -> list[str]:
        """Type names in file order; null is omitted if there are others."""
        return [str(kind) for kind in self._kinds if not types.is_null(kind)] or ["null"]

    def _note(self, what: str, line: str, count: int) -> None:
        """Count bad values of a kind; keep the line about the first."""
        text, before = self._bad.get(what, (line, 0))
        self._bad[what] = (text, before + count)

    def _hold_to(self, rule: Rule, array: pa.Array, first_row: int) -> None:
        bad = rule.bad(array)
        if bad.any():
            row, (file, group_rows) = int(np.argmax(bad)), self._now
            group = row_group_of(first_row + row, group_rows)
            problem = first_problem(array.slice(row), rule, file, first_row + row, group, self.name)
            self._note(rule.expected, str(problem), int(np.count_nonzero(bad)))

    def _add_floats(self, values: pa.Array, first_row: int) -> None:
        numbers = numbers_of(values)
        valid = validity_of(values)
        present = np.ones(numbers.size, np.bool_) if valid is None else valid != 0
        single = float32_of(numbers)
        nan = np.isnan(single) & present
        self._nans += int(np.count_nonzero(nan))
        self._infinite += int(np.count_nonzero(np.isinf(single) & present))
        self._zeros += int(np.count_nonzero((numbers == 0) & present))
        self._ones += int(np.count_nonzero((numbers == 1) & present))
        if self.role == "dense":
            self._hold_to(DENSE, values, first_row)
            if nan.any():
                row, (file, group_rows) = first_row + int(np.argmax(nan)), self._now
                place = place_of(file, row, row_group_of(row, group_rows), self.name)
                said = f"{place}: a value that is no number counts as missing, got nan"
                self._note("nan", said, int(np.count_nonzero(nan)))
        finite = numbers[present & np.isfinite(numbers)].astype(np.float64)
        if finite.size:
            self._widen_to(float(finite.min()), float(finite.max()))
            self._add_whole(finite)

    def _add_whole(self, finite: NDArray[np.float64]) -> None:
        """Count distinct numbers while none has a fraction: they may be ids."""
        self._whole = self._whole and bool((finite == np.trunc(finite)).all())
        if not self._whole:
            self._sketch = None
        elif np.abs(finite).max() < WHOLE_MAX:
            self._count_distinct(pa.array(finite.astype(np.int64)))

    def _add_texts(self, values: pa.Array) -> None:
        self._widen(pc.min_max(pc.binary_length(values)))
        if not (types.is_string(values.type) or types.is_large_string(values.type)):
            return
        if not self._lists:
            self._lists_in.add(values)
        if not self._texts:
            return
        texts = pc.unique(values).drop_null()
        self._texts = [kind for kind in self._texts if _all_match(TEXT_KINDS[kind], texts)]
        if matches(WHOLE, self._example or "0"):  # one that is no whole number tells more
            others = texts.filter(pc.invert(pc.match_substring_regex(texts, f"^{WHOLE}$")))
            self._example = next(iter((others if len(others) else texts).to_pylist()), self._example)

    def _add_lists(self, array: pa.Array) -> pa.Array:
        lengths = pc.list_value_length(array).drop_null()
        if len(lengths):
            span = pc.min_max(lengths)
            self._lists += len(lengths)
            self._elements += pc.sum(lengths).as_py()
            self._empty += pc.sum(pc.equal(lengths, 0)).as_py()
            self._shortest = min(self._shortest, span["min"].as_py())
            self._longest = max(self._longest, span["max"].as_py())
        elements = array.flatten()
        self._null_elements += elements.null_count
        return elements

    def _widen(self, span: Any) -> None:
        if span["min"].as_py() is not None:
            self._widen_to(span["min"].as_py(), span["max"].as_py())

    def _widen_to(self, low: float, high: float) -> None:
        self._smallest = low if self._smallest is None else min(self._smallest, low)
        self._largest = high if self._largest is None else max(self._largest, high)

    def _count_distinct(self, values: pa.Array) -> None:
        if key_kind(values.type) not in ("integer", "string"):
            return
        if self._sketch is None:
            self._sketch = hll_sketch(SKETCH_BITS)
        keys, counts = np.unique(keys_of(values.drop_null(), 0), return_counts=True)
        self._sample.add(keys, counts)
        for key in keys.view(np.int64).tolist():
            self._sketch.update(key)


def _all_match(pattern: str, texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, f"^{pattern}$"), min_count=0).as_py())


def _counted(text: str, count: int) -> str:
    return text if count == 1 else f"{text}; {count:,} such values in all"
