"""What a column of the data means: label, numbers, keys, lists of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pslib.errors import ConfigurationError
from pslib.tables import text_hash

__all__ = ["DenseField", "RaggedField", "Schema", "SparseField"]

POOLINGS = ("sum", "mean")

FieldT = TypeVar("FieldT", "DenseField", "SparseField", "RaggedField")


@dataclass(frozen=True, slots=True)
class DenseField:
    """One number an example.

    Attributes
    ----------
    name : str
        Column name.
    fill : float
        Stands for null and for NaN.
    log1p : bool
        Whether to feed ``sign(x) * log(1 + |x|)``, the usual squeeze for counts.
    """

    name: str
    fill: float = 0.0
    log1p: bool = False


@dataclass(frozen=True, slots=True)
class SparseField:
    """One key an example, made from an integer or a string.

    Attributes
    ----------
    name : str
        Column name.
    vocabulary : str or None
        Fields that name the same vocabulary share keys, hence rows; default: the field's own name.
    """

    name: str
    vocabulary: str | None = None

    @property
    def salt(self) -> int:
        """64-bit salt that keeps equal raw values of different vocabularies apart."""
        return text_hash("field", self.vocabulary or self.name)


@dataclass(frozen=True, slots=True)
class RaggedField:
    """Any number of keys an example (a list column), pooled to one vector.

    Attributes
    ----------
    name : str
        Column name.
    pooling : {"sum", "mean"}
        How the rows of one example are joined; an empty or null list gives zeros.
    vocabulary : str or None
        As for SparseField.
    """

    name: str
    pooling: str = "mean"
    vocabulary: str | None = None

    @property
    def salt(self) -> int:
        """64-bit salt of the vocabulary."""
        return text_hash("field", self.vocabulary or self.name)


def _fields(kind: type[FieldT], given: Iterable[str | FieldT]) -> tuple[FieldT, ...]:
    if isinstance(given, str):  # iterable too: it would become a column a letter
        raise ConfigurationError(
            f"expected a list of column names or fields, got {given!r}: write [{given!r}]"
        )
    return tuple(kind(item) if isinstance(item, str) else item for item in given)


@dataclass(frozen=True, init=False)
class Schema:
    """The columns that a model reads.

    Parameters
    ----------
    label : str
        Column of 0 and 1 (integer, float or boolean).
    dense, sparse, ragged
        Names, or fields where a default should change.

    Raises
    ------
    ConfigurationError
        When a column is named twice, there is no feature, or a pooling is unknown; all problems at once. Or
        when a list of columns is one text.

    Examples
    --------
    >>> Schema(label="click", sparse=["user", "item"], dense=["price"]).columns
    ('click', 'price', 'user', 'item')
    """

    label: str
    dense: tuple[DenseField, ...]
    sparse: tuple[SparseField, ...]
    ragged: tuple[RaggedField, ...]

    def __init__(
        self,
        *,
        label: str,
        dense: Iterable[str | DenseField] = (),
        sparse: Iterable[str | SparseField] = (),
        ragged: Iterable[str | RaggedField] = (),
    ) -> None:
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "dense", _fields(DenseField, dense))
        object.__setattr__(self, "sparse", _fields(SparseField, sparse))
        object.__setattr__(self, "ragged", _fields(RaggedField, ragged))
        problems = []
        names = self.columns
        problems += [f"column {n!r} is named twice" for n in sorted({n for n in names if names.count(n) > 1})]
        if len(names) == 1:
            problems.append("the schema has no feature: give at least one dense, sparse or ragged column")
        problems += [
            f"ragged column {field.name!r}: pooling must be {' or '.join(POOLINGS)}, got {field.pooling!r}"
            for field in self.ragged
            if field.pooling not in POOLINGS
        ]
        if problems:
            raise ConfigurationError(*problems)

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names: label, dense, sparse, ragged."""
        fields: tuple[DenseField | SparseField | RaggedField, ...] = (*self.dense, *self.sparse, *self.ragged)
        return (self.label, *(field.name for field in fields))

    def to_dict(self) -> dict[str, object]:
        """Plain form for manifests and fingerprints."""
        return {
            "label": self.label,
            "dense": [{"name": f.name, "fill": f.fill, "log1p": f.log1p} for f in self.dense],
            "sparse": [{"name": f.name, "vocabulary": f.vocabulary} for f in self.sparse],
            "ragged": [
                {"name": f.name, "pooling": f.pooling, "vocabulary": f.vocabulary} for f in self.ragged
            ],
        }

    @staticmethod
    def from_dict(plain: Mapping[str, object]) -> Schema:
        """Read back what `to_dict` wrote; entries may also be bare names."""

        def build(kind: type[FieldT], name: str) -> list[str | FieldT]:
            given: Iterable[Any] = plain.get(name) or ()  # type: ignore[assignment]
            return [item if isinstance(item, str) else kind(**item) for item in given]

        return Schema(
            label=str(plain["label"]),
            dense=build(DenseField, "dense"),
            sparse=build(SparseField, "sparse"),
            ragged=build(RaggedField, "ragged"),
        )
