"""Row layout: columns of an exported row, with weights of all parts, and state led by its counters.

The state of a row is ``[last_seen][shows, clicks][scale of each part][state of each part]``, all float32;
items that a table does not need are absent. A narrow row has the same for its own parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pslib.table.tables import PartSpec, TableSpec

__all__ = ["RowLayout", "counter_names", "scale_name"]


def counter_names(spec: TableSpec) -> tuple[str, ...]:
    """Counters of a row of this table, in storage order."""
    seen = ("last_seen",) if spec.needs_seen else ()
    return (*seen, "shows", "clicks") if spec.needs_counts else seen


def scale_name(part: PartSpec) -> str:
    """Name of the scale of one part of an int8 row."""
    return f"{part.name}_scale"


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of the arrays returned by ``Store.export_partition`` for rows of one class.

    Attributes
    ----------
    parts : tuple of PartSpec
        Parts of these rows.
    head : tuple of str
        Names of the scalars at the head of the state: counters, then scales.
    """

    parts: tuple[PartSpec, ...]
    head: tuple[str, ...]

    @staticmethod
    def of(spec: TableSpec, narrow: bool = False) -> RowLayout:
        """Layout of the wide rows of a table, or of the narrow ones."""
        parts = spec.parts[: spec.narrow_parts] if narrow else spec.parts
        scales = tuple(scale_name(part) for part in parts) if spec.storage == "int8" else ()
        return RowLayout(parts, (*counter_names(spec), *scales))

    @property
    def dim(self) -> int:
        """Weights of a row."""
        return sum(part.dim for part in self.parts)

    @property
    def state_floats(self) -> int:
        """Floats of its state, including counters and scales."""
        return len(self.head) + sum(part.state_floats for part in self.parts)

    def columns(self) -> Iterator[tuple[PartSpec, slice, slice]]:
        """Each part with its columns in the weights and in the state."""
        at, state_at = 0, len(self.head)
        for part in self.parts:
            yield part, slice(at, at + part.dim), slice(state_at, state_at + part.state_floats)
            at += part.dim
            state_at += part.state_floats
