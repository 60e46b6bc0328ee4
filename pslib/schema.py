"""Schema: columns of the data as label, weight, numbers, keys and lists of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Annotated, Any, TypeVar

from pslib.errors import ConfigurationError
from pslib.settings import NOT_EMPTY, Setting, Settings, short_repr
from pslib.table.tables import text_hash
from pslib.validation import came

POOLINGS = ("sum", "mean")

TAKES = ("hour", "weekday", "day", "month")
LOG_BUCKETS = "log"

FieldT = TypeVar("FieldT", "DenseField", "SparseField", "RaggedField")


ColumnName = Annotated[str, Setting("Column name.", pattern=NOT_EMPTY)]
Vocabulary = Annotated[
    str | None,
    Setting(
        "Fields that name the same one share keys, hence rows; none: the field's own.",
        pattern=NOT_EMPTY,
    ),
]


class Column(Settings):
    """Base of fields; a job file may give the bare name of a column."""

    __slots__ = ()

    def __repr__(self) -> str:
        return short_repr(self)

    @classmethod
    def _read(cls, value: Any, validate: Callable[[Any], Any]) -> Any:
        return super()._read({"name": value} if isinstance(value, str) else value, validate)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """Give editors both forms."""
        return {"anyOf": [{"type": "string"}, handler(schema)]}


@dataclass(frozen=True, slots=True, repr=False)
class DenseField(Column):
    """One number an example."""

    AT = "dense field {name!r}: "

    name: ColumnName
    fill: Annotated[float, Setting("Stands for null and for NaN.")] = 0.0
    log1p: Annotated[bool, Setting("Feed ``sign(x) * log(1 + |x|)``, the usual squeeze for counts.")] = False


@dataclass(frozen=True, slots=True, repr=False)
class SparseField(Column):
    """One key an example, made from an integer or a string."""

    AT = "sparse field {name!r}: "

    name: ColumnName
    vocabulary: Vocabulary = None
    of: Annotated[
        str | tuple[str, ...] | None,
        Setting("Column that it is made from, or several for a cross of them; none: the one of its name."),
    ] = None
    take: Annotated[
        str | None,
        Setting(
            "Part of a time to take: of a timestamp (in its own time zone), a date or whole seconds since "
            "1970.",
            choices=TAKES,
        ),
    ] = None
    buckets: Annotated[
        tuple[float, ...] | str | None,
        Setting("Ascending bounds of a number's buckets, or log, the squeeze ``floor(log(x)^2)``."),
    ] = None

    def _problems(self) -> Iterator[str]:
        if len(set(self.columns)) < len(self.columns) or not all(self.columns):
            yield "of: expected a column, or several that differ"
        if (self.take is not None) + (self.buckets is not None) + (len(self.columns) > 1) > 1:
            yield "take, buckets and a cross of columns each need a field of their own"
        if self.buckets is not None and self.buckets != LOG_BUCKETS and not _ascend(self.buckets):
            yield f"buckets: expected ascending numbers or {LOG_BUCKETS!r}, got {self.buckets!r:.60}"

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


@dataclass(frozen=True, slots=True, repr=False)
class RaggedField(Column):
    """Any number of keys an example (a list column, or texts with a separator), pooled to one vector."""

    AT = "ragged field {name!r}: "

    name: ColumnName
    pooling: Annotated[
        str,
        Setting("Joins the rows of one example; an empty or null list gives zeros.", choices=POOLINGS),
    ] = "mean"
    vocabulary: Vocabulary = None
    separator: Annotated[
        str | None,
        Setting(
            "Splits the texts of a column without lists, as ``Drama|Comedy``; empty parts are left out.",
            pattern=NOT_EMPTY,
        ),
    ] = None

    @property
    def salt(self) -> int:
        """64-bit salt of the vocabulary."""
        return text_hash("field", self.vocabulary or self.name)


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


def _ragged_dict(field: RaggedField) -> dict[str, object]:
    """Plain form; a separator only where there is one, as in checkpoints of before there was any."""
    plain: dict[str, object] = {
        "name": field.name,
        "pooling": field.pooling,
        "vocabulary": field.vocabulary,
    }
    return plain if field.separator is None else plain | {"separator": field.separator}


def _sparse_dict(field: SparseField) -> dict[str, object]:
    """Plain form; what a field does not use is left out, as in checkpoints of before there was any."""
    plain: dict[str, object] = {"name": field.name, "vocabulary": field.vocabulary}
    for name in ("of", "take", "buckets"):
        value = getattr(field, name)
        if value is not None:
            plain[name] = list(value) if isinstance(value, tuple) else value
    return plain


@dataclass(frozen=True, init=False, repr=False)
class Schema(Settings):
    """The columns that a model reads: the section ``data.schema`` of a job file.

    Fields are names, or `DenseField`, `SparseField` and `RaggedField` where a default should change.

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

    AT = ""

    label: Annotated[
        str | None,
        Setting(
            "Column of 0 and 1 (integer, float or boolean); none for sessions, which are their own label.",
        ),
    ] = None
    dense: Annotated[tuple[DenseField, ...], Setting("Columns of numbers.")] = ()
    sparse: Annotated[tuple[SparseField, ...], Setting("Columns of one key an example.")] = ()
    ragged: Annotated[tuple[RaggedField, ...], Setting("List columns.")] = ()
    more_labels: Annotated[
        tuple[str, ...],
        Setting("Further columns of 0 and 1, for models of several tasks; ``label`` is their first task."),
    ] = ()
    weight: Annotated[
        str | None,
        Setting(
            "Column of numbers, 0 or more and finite: how much an example counts in the loss; none: all "
            "alike.",
        ),
    ] = None

    def __init__(
        self,
        *,
        label: str | None = None,
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
        self.__post_init__()

    def __repr__(self) -> str:
        told = [f"label={self.label!r}"]
        for kind in ("dense", "sparse", "ragged"):
            columns = [one.name if one == type(one)(one.name) else one for one in getattr(self, kind)]
            told += [f"{kind}={columns}"] if columns else []
        told += [f"more_labels={list(self.more_labels)}"] if self.more_labels else []
        told += [f"weight={self.weight!r}"] if self.weight is not None else []
        return f"Schema({', '.join(told)})"

    def _problems(self) -> Iterator[str]:
        named = (
            ("label", self.label),
            ("weight", self.weight),
            *(("more_labels", n) for n in self.more_labels),
        )
        yield from (
            f"{what}: expected a text that is not empty, got ''" for what, name in named if name == ""
        )
        if self.label is None:
            without = {"more_labels": self.more_labels, "weight": self.weight}
            yield from (
                f"{what}: expected a label with it; sessions are their own label"
                for what, name in without.items()
                if name
            )
        yield from self._twice()
        for field in self.sparse:
            if set(self.labels) & set(field.columns) and field.name not in self.labels:
                yield f"sparse field {field.name!r}: it is made from the label, which it would give away"
        if not (self.dense or self.sparse or self.ragged):
            yield "the schema has no feature: give at least one dense, sparse or ragged column"

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
            "ragged": [_ragged_dict(field) for field in self.ragged],
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
