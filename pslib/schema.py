"""Schema: columns of the data as label, weight, numbers, keys and lists of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, TypeVar

from pslib.errors import ConfigurationError
from pslib.keywords import Keywords
from pslib.table.tables import text_hash
from pslib.validation import came, check_fields

POOLINGS = ("sum", "mean")

TAKES = ("hour", "weekday", "day", "month")
LOG_BUCKETS = "log"

FieldT = TypeVar("FieldT", "DenseField", "SparseField", "RaggedField")


@dataclass(frozen=True, slots=True)
class DenseField(metaclass=Keywords):
    """One number an example.

    Attributes
    ----------
    name : str
        Column name.
    fill : float
        Stands for null and for NaN.
    log1p : bool
        True to feed ``sign(x) * log(1 + |x|)``, the usual squeeze for counts.

    Raises
    ------
    ConfigurationError
        If there is no name, or ``fill`` is NaN or infinite: no model can train on it.
    """

    name: str
    fill: float = 0.0
    log1p: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        problems = _no_name(self)
        if not isfinite(self.fill):
            problems.append(f"fill: expected a finite number, got {self.fill}")
        if problems:
            raise ConfigurationError(*(f"dense field {self.name!r}: {problem}" for problem in problems))


@dataclass(frozen=True, slots=True)
class SparseField(metaclass=Keywords):
    """One key an example, made from an integer or a string.

    Attributes
    ----------
    name : str
        Column name.
    vocabulary : str or None
        Fields that name the same vocabulary share keys, hence rows; default: the field's own name.
    of : str, tuple of str or None
        The column that it is made from, or several for a cross of them; default: the one of its name.
    take : {"hour", "weekday", "day", "month"} or None
        Part of a time to take: of a timestamp (in its own time zone), a date or whole seconds since 1970.
    buckets : tuple of float, "log" or None
        Ascending bounds of a number's buckets, or the squeeze ``floor(log(x)^2)``. See `pslib.data.features`.

    Raises
    ------
    ConfigurationError
        If these do not go together.
    """

    name: str
    vocabulary: str | None = None
    of: str | tuple[str, ...] | None = None
    take: str | None = None
    buckets: tuple[float, ...] | str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        problems = _no_name(self)
        if self.name and (len(set(self.columns)) < len(self.columns) or not all(self.columns)):
            problems.append("of: expected a column, or several that differ")
        if self.take is not None and self.take not in TAKES:
            problems.append(f"take: expected one of {', '.join(TAKES)}, got {self.take!r}")
        if (self.take is not None) + (self.buckets is not None) + (len(self.columns) > 1) > 1:
            problems.append("take, buckets and a cross of columns each need a field of their own")
        if self.buckets is not None and self.buckets != LOG_BUCKETS and not _ascend(self.buckets):
            problems.append(
                f"buckets: expected ascending numbers or {LOG_BUCKETS!r}, got {self.buckets!r:.60}"
            )
        if problems:
            raise ConfigurationError(*(f"sparse field {self.name!r}: {problem}" for problem in problems))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is made from."""
        if self.of is None:
            return (self.name,)
        return (self.of,) if isinstance(self.of, str) else self.of

    @property
    def salt(self) -> int:
        """64-bit salt that keeps equal raw values of different vocabularies apart."""
        return text_hash("field", self.vocabulary or self.name)


@dataclass(frozen=True, slots=True)
class RaggedField(metaclass=Keywords):
    """Any number of keys an example (a list column), pooled to one vector.

    Attributes
    ----------
    name : str
        Column name.
    pooling : {"sum", "mean"}
        Operation that joins the rows of one example; an empty or null list gives zeros.
    vocabulary : str or None
        As for SparseField.

    Raises
    ------
    ConfigurationError
        If there is no name, or no such pooling; all problems at once.
    """

    name: str
    pooling: str = "mean"
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        problems = _no_name(self)
        if self.pooling not in POOLINGS:
            problems.append(f"pooling: expected one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if problems:
            raise ConfigurationError(*(f"ragged field {self.name!r}: {problem}" for problem in problems))

    @property
    def salt(self) -> int:
        """64-bit salt of the vocabulary."""
        return text_hash("field", self.vocabulary or self.name)


def _no_name(field: DenseField | SparseField | RaggedField) -> list[str]:
    """List empty names: of the column, or of the vocabulary, whose default is None."""
    problems = [] if field.name else ["name: expected the name of a column, got ''"]
    if getattr(field, "vocabulary", None) == "":
        problems.append("vocabulary: expected a name, or None for the field's own, got ''")
    return problems


def _ascend(bounds: tuple[float, ...] | str) -> bool:
    """Return True for finite numbers, each larger than the one before."""
    if isinstance(bounds, str) or not bounds:
        return False
    if not all(type(one) in (int, float) and isfinite(one) for one in bounds):
        return False
    return all(low < high for low, high in pairwise(bounds))


def _fields(what: str, kind: type[FieldT], given: Iterable[str | FieldT]) -> tuple[FieldT, ...]:
    fields = [kind(item) if isinstance(item, str) else item for item in _listed(what, given, " or fields")]
    problems = [
        f"{what}: expected a column name or a pslib.{kind.__name__}, got {came(item)}"
        for item in fields
        if not isinstance(item, kind)
    ]
    if problems:
        raise ConfigurationError(*problems)
    return tuple(fields)


def _listed(what: str, given: Iterable[Any], or_what: str = "") -> tuple[Any, ...]:
    """Return the elements of a list; refuse a text, whose letters would become columns."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        write = f": write [{given!r}]" if isinstance(given, str) else ""
        raise ConfigurationError(
            f"{what}: expected a list of column names{or_what}, got {came(given)}{write}"
        )
    return tuple(given)


def _sparse_dict(field: SparseField) -> dict[str, object]:
    """Plain form; what a field does not use is left out, as in checkpoints of before there was any."""
    plain: dict[str, object] = {"name": field.name, "vocabulary": field.vocabulary}
    for name in ("of", "take", "buckets"):
        value = getattr(field, name)
        if value is not None:
            plain[name] = list(value) if isinstance(value, tuple) else value
    return plain


@dataclass(frozen=True, init=False)
class Schema(metaclass=Keywords):
    """The columns that a model reads.

    Parameters
    ----------
    label : str or None
        Column of 0 and 1 (integer, float or boolean); None for sessions, which are their own label.
    dense, sparse, ragged
        Names, or fields where a default should change.
    more_labels : sequence of str
        Further columns of 0 and 1, for models of several tasks; ``label`` is their first task.
    weight : str or None
        Column of numbers, 0 or more and finite: how much an example counts in the loss; None: all alike.

    Raises
    ------
    ConfigurationError
        If a column is named twice or there is no feature; all problems at once. Or when a list of columns
        is one text.

    Examples
    --------
    >>> Schema(label="click", sparse=["user", "item"], dense=["price"]).columns
    ('click', 'price', 'user', 'item')
    """

    label: str | None
    dense: tuple[DenseField, ...]
    sparse: tuple[SparseField, ...]
    ragged: tuple[RaggedField, ...]
    more_labels: tuple[str, ...]
    weight: str | None

    def __init__(
        self,
        *,
        label: str | None,
        dense: Iterable[str | DenseField] = (),
        sparse: Iterable[str | SparseField] = (),
        ragged: Iterable[str | RaggedField] = (),
        more_labels: Iterable[str] = (),
        weight: str | None = None,
    ) -> None:
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "dense", _fields("dense", DenseField, dense))
        object.__setattr__(self, "sparse", _fields("sparse", SparseField, sparse))
        object.__setattr__(self, "ragged", _fields("ragged", RaggedField, ragged))
        object.__setattr__(self, "more_labels", _listed("more_labels", more_labels))
        object.__setattr__(self, "weight", weight)
        check_fields(self, "label", "more_labels", "weight")
        named = (("label", label), ("weight", weight), *(("more_labels", one) for one in self.more_labels))
        problems = [f"{what}: expected the name of a column, got ''" for what, name in named if name == ""]
        problems += self._target_problems()
        fields: tuple[DenseField | SparseField | RaggedField, ...] = (*self.dense, *self.sparse, *self.ragged)
        problems += self._twice()
        problems += [
            f"sparse field {field.name!r}: it is made from the label, which it would give away"
            for field in self.sparse
            if set(self.labels) & set(field.columns) and field.name not in self.labels
        ]
        if not fields:
            problems.append("the schema has no feature: give at least one dense, sparse or ragged column")
        if problems:
            raise ConfigurationError(*problems)

    def _twice(self) -> list[str]:
        """List columns with two roles, with the roles: usually a label that is a feature too."""
        kinds: dict[str, tuple[DenseField | SparseField | RaggedField, ...]] = {
            "dense": self.dense,
            "sparse": self.sparse,
            "ragged": self.ragged,
        }
        named = [(self.label, "label"), *((name, "more_labels") for name in self.more_labels)]
        named += [(self.weight, "weight")]
        named += [(field.name, kind) for kind, fields in kinds.items() for field in fields]
        places: dict[str, list[str]] = {}
        for name, kind in named:
            if name is not None:
                places.setdefault(name, []).append(kind)
        return [
            f"column {n!r} is named twice: {', '.join(at)}" for n, at in sorted(places.items()) if len(at) > 1
        ]

    def _target_problems(self) -> list[str]:
        if self.label is not None:
            return []
        named = [*(["more_labels"] if self.more_labels else []), *(["weight"] if self.weight else [])]
        return [f"{name}: expected a label with it; sessions are their own label" for name in named]

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of all tasks: ``label`` and ``more_labels``."""
        return (*(() if self.label is None else (self.label,)), *self.more_labels)

    @property
    def _targets(self) -> tuple[str, ...]:
        return (*self.labels, *(() if self.weight is None else (self.weight,)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, each once: of labels, weight, dense, sparse, ragged."""
        of_sparse = (name for field in self.sparse for name in field.columns)
        others = [field.name for field in self.ragged]
        return tuple(dict.fromkeys([*self._targets, *(one.name for one in self.dense), *of_sparse, *others]))

    def to_dict(self) -> dict[str, object]:
        """Plain form for manifests and fingerprints; further labels and a weight only where there are any."""
        more: dict[str, object] = {"more_labels": list(self.more_labels)} if self.more_labels else {}
        more |= {"weight": self.weight} if self.weight is not None else {}
        return {
            "label": self.label,
            "dense": [{"name": f.name, "fill": f.fill, "log1p": f.log1p} for f in self.dense],
            "sparse": [_sparse_dict(field) for field in self.sparse],
            "ragged": [
                {"name": f.name, "pooling": f.pooling, "vocabulary": f.vocabulary} for f in self.ragged
            ],
            **more,
        }

    @staticmethod
    def from_dict(plain: Mapping[str, object]) -> Schema:
        """Read back what `to_dict` wrote; entries may also be bare names."""

        def build(kind: type[FieldT], name: str) -> list[str | FieldT]:
            given: Iterable[Any] = plain.get(name) or ()  # type: ignore[assignment]
            return [item if isinstance(item, str) else kind(**item) for item in given]

        weight: Any = plain.get("weight")
        more_labels: Any = plain.get("more_labels") or ()
        return Schema(
            label=None if plain["label"] is None else str(plain["label"]),
            dense=build(DenseField, "dense"),
            sparse=build(SparseField, "sparse"),
            ragged=build(RaggedField, "ragged"),
            more_labels=more_labels,
            weight=None if weight is None else str(weight),
        )
