"""libffm parser: ``label field:index:value ...``, to columns by field number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
class FfmFields:
    """Properties of the fields of a file.

    Attributes
    ----------
    lengths : dict of int to int
        Most entries of each field in one record.
    valued : set of int
        Fields with a value other than 1.
    """

    lengths: Mapping[int, int]
    valued: frozenset[int]


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
    pairs, times = np.unique(found.rows * FIELDS_MAX + found.fields, return_counts=True)
    lengths: dict[int, int] = {}
    for field in np.unique(found.fields).tolist():
        lengths[field] = int(times[pairs % FIELDS_MAX == field].max())
    return FfmFields(lengths, frozenset(np.unique(found.fields[found.values != 1.0]).tolist()))


def merged(some: FfmFields, more: FfmFields) -> FfmFields:
    """Merge the properties of two parts of a file."""
    names = sorted({*some.lengths, *more.lengths})
    lengths = {name: max(some.lengths.get(name, 0), more.lengths.get(name, 0)) for name in names}
    return FfmFields(lengths, some.valued | more.valued)


def looker(seen: list[FfmFields]) -> Parser:
    """Parser that only collects field properties into ``seen``; its tables have labels only."""

    def parse(raw: bytes) -> Parsed:
        found = _entries(raw)
        seen[:] = [merged(seen[0], _fields_of(found)) if seen else _fields_of(found)]
        return Parsed(pa.table({"label": found.labels}), [])

    return parse


def ffm_schema(fields: FfmFields) -> Schema:
    """Schema with one pslib field per libffm field: a number if it has one index with values, else keys."""
    single = [name for name, most in fields.lengths.items() if most <= 1]
    return Schema(
        label="label",
        dense=[DenseField(f"f{name}_value") for name in single if name in fields.valued],
        sparse=[SparseField(f"f{name}") for name in single if name not in fields.valued],
        ragged=[RaggedField(f"f{name}", pooling="sum") for name in fields.lengths if name not in single],
    )


def ffm_parser(fields: FfmFields) -> Parser:
    """Parser to columns ``f<number>`` (int64, a list if a record may have several), and ``_value``s."""

    def parse(raw: bytes) -> Parsed:
        found = _entries(raw)
        columns: dict[str, Any] = {"label": found.labels}
        for name, most in fields.lengths.items():
            mine = found.fields == name
            columns[f"f{name}"] = _column(found, mine, found.indexes, most)
            if name in fields.valued:
                columns[f"f{name}_value"] = _column(found, mine, found.values, most)
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
