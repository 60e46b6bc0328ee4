"""Where each number of an exported row stands: weights of all parts, and state with its counters in front.

State of a row is ``[last_seen][shows, clicks][scale of each part][state of each part]``, all float32; what a
table does not need is not there. A narrow row has the same for its own parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pslib.table.tables import PartSpec, TableSpec

__all__ = ["RowLayout", "counter_names", "scale_name"]


def counter_names(spec: TableSpec) -> tuple[str, ...]:
    """What a row of this table counts, in the order in which it stands."""
    seen = ("last_seen",) if spec.needs_seen else ()
    return (*seen, "shows", "clicks") if spec.needs_counts else seen


def scale_name(part: PartSpec) -> str:
    """Name of the scale of one part of an int8 row."""
    return f"{part.name}_scale"


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of the arrays that ``Store.export_partition`` gives for rows of one class.

    Attributes
    ----------
    parts : tuple of PartSpec
        Parts that these rows have.
    head : tuple of str
        Names of the single numbers at the head of the state: counters, then scales.
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
        """Numbers of its state, counters and scales among them."""
        return len(self.head) + sum(part.state_floats for part in self.parts)

    def columns(self) -> Iterator[tuple[PartSpec, slice, slice]]:
        """Each part with its columns among the weights and among the state."""
        at, state_at = 0, len(self.head)
        for part in self.parts:
            yield part, slice(at, at + part.dim), slice(state_at, state_at + part.state_floats)
            at += part.dim
            state_at += part.state_floats
