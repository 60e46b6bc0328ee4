"""Checks for values that cannot be trained on, with their location and a hint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.data.column_types import label_advice
from pslib.data.columns import float32_of, numbers_of, validity_of
from pslib.data.parquet_files import (
    SCAN_ROWS,
    ChunkStatistics,
    group_batches,
    open_file,
    parquet_from,
    statistics_in,
)
from pslib.schema import Schema
from pslib.storage import shown
from pslib.text import quoted

FLOAT32_MAX = float(np.finfo(np.float32).max)


def _bad_labels(array: pa.Array) -> NDArray[np.bool_]:
    values, valid = numbers_of(array), validity_of(array)
    bad = (values != 0) & (values != 1)
    return bad if valid is None else bad | (valid == 0)


def _bad_numbers(array: pa.Array) -> NDArray[np.bool_]:
    valid, bad = validity_of(array), np.isinf(float32_of(numbers_of(array)))
    return bad if valid is None else bad & (valid != 0)


def _bad_weights(array: pa.Array) -> NDArray[np.bool_]:
    valid, narrow = validity_of(array), float32_of(numbers_of(array))
    bad = ~((narrow >= 0) & (narrow <= FLOAT32_MAX))  # false for nan too
    return bad if valid is None else bad | (valid == 0)


def _label_shown(told: ChunkStatistics) -> bool:
    return bool(told.nulls) or any(not 0 <= end <= 1 for end in _ends(told))


def _weight_shown(told: ChunkStatistics) -> bool:
    return bool(told.nulls) or min(_ends(told), default=0) < 0 or _number_shown(told)


def _number_shown(told: ChunkStatistics) -> bool:
    return max(map(abs, _ends(told)), default=0) > FLOAT32_MAX


def _ends(told: ChunkStatistics) -> list[float]:
    return [end for end in (told.smallest, told.largest) if end is not None]


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for the values of a column.

    Attributes
    ----------
    expected : str
        Text of the rule.
    advice : callable
        Hint for a value that breaks it, by its file and column.
    bad : callable
        Mask of an array's values that break the rule, ``(n,)`` bool.
    in_statistics : callable
        True if a row group's statistics show such a value.
    """

    expected: str
    advice: Callable[[str, str], str]
    bad: Callable[[pa.Array], NDArray[np.bool_]]
    in_statistics: Callable[[ChunkStatistics], bool]


LABEL = Rule(
    "a label is 0 or 1",
    lambda file, column: f"{label_advice(file, column)}; or leave such rows out",
    _bad_labels,
    _label_shown,
)
WEIGHT = Rule(
    "a weight is finite in float32 and not negative",
    lambda file, column: "write 0 for an example that does not count, and 1 for an ordinary one",
    _bad_weights,
    _weight_shown,
)
DENSE = Rule(
    "a dense value is finite in float32",
    lambda file, column: "write a null where it is unknown, or a number that is in reach",
    _bad_numbers,
    _number_shown,
)


def place_of(file: str, row: int, row_group: int, column: str) -> str:
    """Location of a value, for messages; ``row`` counts in the file, from 0."""
    return f"{shown(file)}: row {row} (from 0) in row group {row_group}, column {column!r}"


def first_problem(
    array: pa.Array, rule: Rule, file: str, first_row: int, row_group: int, column: str
) -> str | None:
    """Error line for the first value of an array that breaks the rule; None if there is none."""
    bad = rule.bad(array)
    if not bad.any():
        return None
    i = int(np.argmax(bad))
    value = array[i].as_py()
    came, advice = "null" if value is None else quoted(value), rule.advice(file, column)
    return f"{place_of(file, first_row + i, row_group, column)}: {rule.expected}, got {came}; {advice}"


Statistics = Mapping[str, Sequence[ChunkStatistics]]
"""Statistics of some columns, of each row group."""


def statistics_of(footer: pa.Buffer, metadata: pq.FileMetaData, schema: Schema) -> Statistics:
    """Read the row-group statistics of targets and numbers.

    Parameters
    ----------
    footer : pyarrow.Buffer
        From `pslib.data.parquet_files.footer_of`.
    metadata : pyarrow.parquet.FileMetaData
        Its columns match ``schema``.
    schema : Schema
    """
    rules = _rules(schema)
    if not rules:
        return {}  # a look through the footer of 2,000 columns in 100 row groups takes a second
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    types = {column.path: column.physical_type for column in columns if column.path in rules}
    return statistics_in(footer, types, metadata.num_row_groups)


def statistics_problems(file: str, statistics: Statistics, schema: Schema) -> list[str]:
    """Check targets and numbers by row-group statistics, without decoding if all are valid.

    Parameters
    ----------
    file : str
        Opened if statistics show an invalid value.
    statistics : mapping
        From `statistics_of`.
    schema : Schema

    Returns
    -------
    list of str
        At most one line per column: its first bad value.
    """
    problems = []
    for name, rule in _rules(schema).items():
        shown = [group for group, told in enumerate(statistics.get(name, ())) if rule.in_statistics(told)]
        if shown and (problem := _first_in(file, shown, name, rule)):
            problems.append(problem)
    return problems


def label_ends(statistics: Statistics, schema: Schema) -> dict[str, set[float]]:
    """Return the ends of the ranges of each label's values; those of unknown ranges are 0 and 1."""
    found = {}
    for name in schema.labels:
        ends = [_ends(told) or [0, 1] for told in statistics.get(name, [ChunkStatistics()])]
        found[name] = {float(end) for some in ends for end in some}
    return found


def _rules(schema: Schema) -> dict[str, Rule]:
    rules = {field.name: DENSE for field in schema.dense} | dict.fromkeys(schema.labels, LABEL)
    return rules if schema.weight is None else rules | {schema.weight: WEIGHT}


def _first_in(file: str, groups: Iterable[int], name: str, rule: Rule) -> str | None:
    with parquet_from(open_file(file)) as opened:
        rows = [opened.metadata.row_group(group).num_rows for group in range(opened.metadata.num_row_groups)]
        for group in groups:
            for array, row in _arrays(opened, group, name):
                if problem := first_problem(array, rule, file, sum(rows[:group]) + row, group, name):
                    return problem
    return None


def has_values(files: Iterable[str], name: str) -> bool:
    """Return whether a column has any value in these files; reads up to the first one."""
    for file in files:
        with parquet_from(open_file(file)) as opened:
            there = name in opened.schema_arrow.names
            groups = range(opened.metadata.num_row_groups) if there else ()
            if any(array.null_count < len(array) for i in groups for array, _ in _arrays(opened, i, name)):
                return True
    return False


def _arrays(opened: pq.ParquetFile, group: int, name: str) -> Iterator[tuple[pa.Array, int]]:
    """Yield parts of a row group's column, each with its first row."""
    row = 0
    try:
        for batch in group_batches(opened, group, [name], SCAN_ROWS):
            yield batch.column(name), row  # a struct 'a' with a 'b' comes beside a column 'a.b'
            row += len(batch)
    except (OSError, pa.ArrowException):  # the later read reports it
        return
