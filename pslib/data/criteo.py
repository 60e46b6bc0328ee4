"""Names of the columns of Criteo's click logs, which the generator shares."""

from __future__ import annotations

from pslib.schema import DenseField, Schema

__all__ = ["CRITEO_DENSE", "CRITEO_LABEL", "CRITEO_SPARSE", "criteo_schema"]

CRITEO_LABEL = "label"
CRITEO_DENSE = tuple(f"I{number}" for number in range(1, 14))
CRITEO_SPARSE = tuple(f"C{number}" for number in range(1, 27))


def criteo_schema() -> Schema:
    """label, I1..I13 as log(1 + x) with 0 for a missing count, C1..C26 as one key each."""
    return Schema(
        label=CRITEO_LABEL,
        dense=[DenseField(name, log1p=True) for name in CRITEO_DENSE],
        sparse=CRITEO_SPARSE,
    )
