"""Differences between two checkpoints: rows of each table and dense parameters.

Both are read by ranges of the hashed key space, so memory is bounded by one range of each, for any size and
any number of servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.checkpoint.dense import dense_vector
from pslib.checkpoint.key_ranges import TableOfCheckpoint, TableRows, floats_of
from pslib.checkpoint.manifest import Manifest, read_manifest
from pslib.table.tables import TableSpec


@dataclass(slots=True)
class ValueDiff:
    """Size of the difference between numbers.

    Attributes
    ----------
    changed : int
        Rows, or dense parameters, that are not bit-identical.
    max_difference : float
        The largest |a - b|; NaN if one of them is NaN.
    sum_difference, numbers : float, int
        Sum of |a - b| over the numbers of changed rows, and the count of these numbers.
    """

    changed: int = 0
    max_difference: float = 0.0
    sum_difference: float = 0.0
    numbers: int = 0

    @property
    def mean_difference(self) -> float:
        """Mean |a - b| over the numbers of changed rows; 0 if none changed."""
        return self.sum_difference / self.numbers if self.numbers else 0.0

    def add(self, one: NDArray[Any], other: NDArray[Any]) -> None:
        """Add changed rows (n, width)."""
        if one.size:
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.abs(one.astype(np.float64) - other)
            self.max_difference = float(np.maximum(self.max_difference, difference.max()))
            self.sum_difference += float(difference.sum())
            self.numbers += difference.size


@dataclass(slots=True)
class TableDiff:
    """Differences of one table: rows in A only, in B only, in both; changes of the latter, by column."""

    only_a: int = 0
    only_b: int = 0
    both: int = 0
    changed: int = 0
    columns: dict[str, ValueDiff] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return True if all rows and columns are bit-identical."""
        return not (self.only_a or self.only_b or self.changed or self.not_compared)


@dataclass(slots=True)
class CheckpointDiff:
    """Result of `diff_checkpoints`; ``dense`` is None if lengths differ."""

    tables: dict[str, TableDiff]
    tables_only_a: list[str]
    tables_only_b: list[str]
    dense: ValueDiff | None
    dense_lengths: tuple[int, int]

    @property
    def equal(self) -> bool:
        """Return True if tables, rows and dense weights are bit-identical."""
        same = all(one.equal for one in self.tables.values())
        alone = self.tables_only_a or self.tables_only_b
        return same and not alone and self.dense is not None and not self.dense.changed


def diff_checkpoints(
    path_a: str, path_b: str, progress: Callable[[int], object] = lambda _rows: None
) -> CheckpointDiff:
    """Compare two checkpoints, of any number of servers.

    Parameters
    ----------
    path_a, path_b : str
    progress : callable
        Called with the number of rows (of A and B) compared since the last call.

    Raises
    ------
    CheckpointError
        If one of them can't be read.
    """
    manifests = read_manifest(path_a), read_manifest(path_b)
    specs_a, specs_b = (one.specs for one in manifests)
    tables = {
        name: _diff_table(
            TableOfCheckpoint(path_a, specs_a[name]), TableOfCheckpoint(path_b, specs_b[name]), progress
        )
        for name in sorted(specs_a.keys() & specs_b.keys())
    }
    lengths = manifests[0].dense_length, manifests[1].dense_length
    return CheckpointDiff(
        tables,
        sorted(specs_a.keys() - specs_b.keys()),
        sorted(specs_b.keys() - specs_a.keys()),
        _diff_dense(path_a, path_b, *manifests) if lengths[0] == lengths[1] else None,
        lengths,
    )


def _diff_table(
    one: TableOfCheckpoint, other: TableOfCheckpoint, progress: Callable[[int], object]
) -> TableDiff:
    found, bits = TableDiff(), max(one.group_bits, other.group_bits)
    columns = _common_columns(one.spec, other.spec, found)
    for group in range(1 << bits):
        rows_a, rows_b = one.read(group, bits), other.read(group, bits)
        _diff_rows(rows_a, rows_b, columns, found)
        progress(rows_a.keys.size + rows_b.keys.size)
    return found


def _common_columns(one: TableSpec, other: TableSpec, found: TableDiff) -> list[str]:
    """Columns with the same meaning in both; others are noted."""
    columns = []
    theirs = {part.name: part for part in other.parts}
    for part in one.parts:
        match = theirs.pop(part.name, None)
        if match is None or match.dim != part.dim:
            came = "is not in B" if match is None else f"has dim {part.dim} in A, {match.dim} in B"
            found.not_compared.append(f"part {part.name} {came}")
            continue
        columns.append(part.name)
        kinds = {(spec.optimizer.kind, spec.state_floats) for spec in (part, match) if spec.state_floats}
        if len(kinds) == 1 and part.state_floats == match.state_floats:
            columns.append(f"{part.name}_state")
        elif kinds:
            found.not_compared.append(f"state of part {part.name}: optimizers differ")
    found.not_compared += [f"part {name} is not in A" for name in theirs]
    found.columns = {name: ValueDiff() for name in columns}
    return columns


def _diff_rows(one: TableRows, other: TableRows, columns: list[str], found: TableDiff) -> None:
    _, at_a, at_b = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
    found.only_a += one.keys.size - at_a.size
    found.only_b += other.keys.size - at_b.size
    found.both += at_a.size
    changed = np.zeros(at_a.size, bool)
    for name in columns:
        (rows_a, valid_a), (rows_b, valid_b) = (floats_of(rows.table, name) for rows in (one, other))
        rows_a, rows_b = rows_a[at_a], rows_b[at_b]
        differ = (rows_a.view(np.uint32) != rows_b.view(np.uint32)).any(axis=1)
        differ |= valid_a[at_a] != valid_b[at_b]
        values = found.columns[name]
        values.changed += int(np.count_nonzero(differ))
        values.add(rows_a[differ], rows_b[differ])
        changed |= differ
    found.changed += int(np.count_nonzero(changed))


def _diff_dense(path_a: str, path_b: str, one: Manifest, other: Manifest) -> ValueDiff:
    a, b = dense_vector(path_a, one), dense_vector(path_b, other)
    differ = a.view(np.uint32) != b.view(np.uint32)
    found = ValueDiff(int(np.count_nonzero(differ)))
    found.add(a[differ], b[differ])
    return found
