"""libffm parser: ``label field:index:value ...``, to columns by field number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pslib.data.convert.csv_criteo import labelled, tokens_of
from pslib.data.convert.records import Parsed, Parser
from pslib.schema import DenseField, RaggedField, Schema, SparseField

FIELDS_MAX = 10_000
"""Most fields; a larger number suggests that the index is written first."""


@dataclass(frozen=True, slots=True)
class FfmField:
    """Properties of a field.

    Attributes
    ----------
    entries, entries_not_0 : int
        Most entries in one record, and most of those whose value is not 0.
    smallest, largest : int
        Range of the indexes.
    zeros, valued : bool
        True if a value is 0, or other than 0 and 1.
    """

    entries: int
    entries_not_0: int
    smallest: int
    largest: int
    zeros: bool
    valued: bool

    @property
    def is_number(self) -> bool:
        """True if only the value tells anything: there is one index, and not all values are 1."""
        return self.smallest == self.largest and (self.zeros or self.valued)

    @property
    def most(self) -> int:
        """Most entries in one record that are read."""
        return self.entries if self.is_number else self.entries_not_0

    def merged(self, other: FfmField) -> FfmField:
        """Properties over two parts of a file."""
        return FfmField(
            max(self.entries, other.entries),
            max(self.entries_not_0, other.entries_not_0),
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
            self.zeros or other.zeros,
            self.valued or other.valued,
        )


FfmFields = Mapping[int, FfmField]
"""Fields of a file by their numbers."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """All ``field:index:value`` entries of some records."""

    labels: Any
    rows: NDArray[np.int64]
    fields: NDArray[np.int64]
    indexes: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.labels)


def _entries(raw: bytes) -> _Entries:
    tokens = tokens_of(raw)
    entries = pc.list_slice(tokens, 1)
    parts = pc.split_pattern(entries.flatten(), ":")
    if len(parts) and not pc.all(pc.equal(pc.list_value_length(parts), 3)).as_py():
        raise ValueError("expected field:index:value after the label")
    none = pa.array([], pa.string())
    halves = [pc.list_element(parts, place) if len(parts) else none for place in range(3)]
    lengths = pc.list_value_length(entries).to_numpy(zero_copy_only=False)
    fields = pc.cast(halves[0], pa.int64()).to_numpy()
    if fields.size and not 0 <= fields.min() <= fields.max() < FIELDS_MAX:
        raise ValueError(f"field: expected 0..{FIELDS_MAX - 1}, got {fields.min()} to {fields.max()}")
    return _Entries(
        pc.list_element(tokens, 0),
        np.repeat(np.arange(lengths.size), lengths),
        fields,
        pc.cast(halves[1], pa.int64()).to_numpy(),
        pc.cast(halves[2], pa.float64()).to_numpy(),
    )


def _fields_of(found: _Entries) -> FfmFields:
    return {field: _field_of(found, found.fields == field) for field in np.unique(found.fields).tolist()}


def _field_of(found: _Entries, mine: NDArray[np.bool_]) -> FfmField:
    rows, indexes, values = found.rows[mine], found.indexes[mine], found.values[mine]
    return FfmField(
        int(np.bincount(rows).max()),
        int(np.bincount(rows[values != 0], minlength=1).max()),
        int(indexes.min()),
        int(indexes.max()),
        bool((values == 0).any()),
        bool(((values != 0) & (values != 1)).any()),
    )


def merged(some: FfmFields, more: FfmFields) -> FfmFields:
    """Merge the properties of two parts of a file."""
    names = sorted({*some, *more})
    parts = {name: [part[name] for part in (some, more) if name in part] for name in names}
    return {name: reduce(FfmField.merged, found) for name, found in parts.items()}


def looker(seen: list[FfmFields]) -> Parser:
    """Parser that only collects field properties into ``seen``; its tables have labels only."""

    def parse(raw: bytes) -> Parsed:
        found = _entries(raw)
        seen[:] = [merged(seen[0], _fields_of(found)) if seen else _fields_of(found)]
        return Parsed(pa.table({"label": found.labels}), [])

    return parse


def ffm_schema(fields: FfmFields) -> Schema:
    """Schema of all fields: numbers, keys with or without a value beside them, and lists of keys."""
    single = {name: field for name, field in fields.items() if field.most <= 1}
    return Schema(
        label="label",
        dense=[DenseField(f"f{name}_value") for name, field in single.items() if _has_values(field)],
        sparse=[SparseField(f"f{name}") for name, field in single.items() if not field.is_number],
        ragged=[RaggedField(f"f{name}", pooling="sum") for name in fields if name not in single],
    )


def _has_values(field: FfmField) -> bool:
    return field.is_number or field.valued


def ffm_notes(fields: FfmFields) -> list[str]:
    """Notes about values that have another reading too."""
    found = fields.items()
    several = [f"f{name}" for name, field in found if field.most > 1 and _has_values(field)]
    both = [f"f{name}" for name, field in found if field.most <= 1 and field.valued and not field.is_number]
    absent = [f"f{name}" for name, field in found if field.zeros and not field.is_number]
    lines = {
        "several indexes with values other than 1: keys, and the values are numbers": both,
        "values other than 1 beside several indexes of a record are kept, and no field reads them": several,
        "an index of the value 0 is no key: to have no value means the same": absent,
    }
    return [f"{', '.join(names)}: {line}" for line, names in lines.items() if names]


def ffm_parser(fields: FfmFields) -> Parser:
    """Parser to columns ``f<number>`` (int64, a list if a record may have several), and ``_value``s."""

    def parse(raw: bytes) -> Parsed:
        found = _entries(raw)
        columns: dict[str, Any] = {"label": found.labels}
        for name, field in fields.items():
            mine = found.fields == name
            if not field.is_number:
                mine &= found.values != 0
            columns[f"f{name}"] = _column(found, mine, found.indexes, field.most)
            if _has_values(field):
                columns[f"f{name}_value"] = _column(found, mine, found.values, field.most)
        return labelled(pa.table(columns), "label")

    return parse


def _column(found: _Entries, mine: NDArray[np.bool_], of: NDArray[Any], most: int) -> pa.Array:
    """Entries of one field, by record: single values or null, or lists."""
    rows, chosen = found.rows[mine], of[mine]
    if most > 1:
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=found.count))])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(chosen))
    values = np.zeros(found.count, of.dtype)
    values[rows] = chosen
    absent = np.ones(found.count, bool)
    absent[rows] = False
    return pa.array(values, mask=absent)
