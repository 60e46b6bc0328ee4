"""What role each column of some data should have, and why: a schema to begin with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyarrow import types

from pslib.data.column_types import label_problem
from pslib.data.dataset import Paths, open_parquet
from pslib.data.inspect.check import DENSE_FAR, CheckReport, check
from pslib.data.inspect.column_scan import ColumnReport
from pslib.data.inspect.label_leakage import LabelSample
from pslib.errors import DataError
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from pslib.storage import shown
from pslib.text import counted

__all__ = ["Choice", "Description", "describe"]

RARE_VALUES, RARE_SHARE = 10_000, 0.25
"""A column with so many different values, and such a share of them seen once, is worth a cut-off."""
UNIQUE_SHARE = 0.9
"""A key that is another one in so many rows names the row: nothing can be learned of it."""
UNIQUE_ROWS = 1000
"""In fewer rows than these a name may well be another one each time."""
SESSION_COLUMNS = 3
"""A list with so few columns beside it, its session and its time, and nothing to predict, is a session."""
CLICK_WORDS = (
    {"session", "visit"},
    {"item", "product", "article"},
    {"time", "timestamp", "ts", "datetime", "date", "eventdate", "timeframe"},
)
"""What columns of sessions, items and times are called, perhaps with ``_id`` behind it."""
NO_LIST = "lists of numbers with fractions: no field is made of them"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is proposed for one column.

    Attributes
    ----------
    name : str
    role : str
        label, dense, sparse, ragged, or empty: left out.
    reason : str
    leak : bool
        Whether it is left out because it gives the label away.
    """

    name: str
    role: str
    reason: str
    leak: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """What there is, and what to make of it.

    Attributes
    ----------
    report : CheckReport
        What `check` found without a schema.
    schema : Schema
    choices : tuple of Choice
        One a column, in their order.
    """

    report: CheckReport
    schema: Schema
    choices: tuple[Choice, ...]

    def leaks(self) -> str | None:
        """A line about columns that give the label away; None where there is none."""
        names = [choice.name for choice in self.choices if choice.leak]
        if not names:
            return None
        return (
            f"left out, for they give the label away: {', '.join(names)}; a model that reads them looks "
            "perfect and predicts nothing; add one to the schema if it is known when a prediction is made"
        )

    def cut_off(self) -> str | None:
        """A line about values that are too rare to learn from; None where there are few of them."""
        keyed = {choice.name for choice in self.choices if choice.role in ("sparse", "ragged")}
        columns = [column for column in self.report.columns if column.name in keyed]
        rare = [column for column in columns if _is_rare(column)]
        if not rare:
            return None
        values = sum(column.distinct or 0 for column in rare)
        once = sum(round((column.once or 0) * (column.distinct or 0)) for column in rare)
        return (
            f"about {once:,} of {values:,} values of {', '.join(column.name for column in rare)} occur "
            "once: table: {admission: {name: ByCount, count: 2}} gives a row to none of them until it comes "
            "again"
        )


def _is_rare(column: ColumnReport) -> bool:
    """Whether many of the values are seen once."""
    return (column.distinct or 0) >= RARE_VALUES and (column.once or 0) >= RARE_SHARE


def describe(path: Paths, label: str | None = None) -> Description:
    """Read all values of some Parquet files and propose a schema.

    Parameters
    ----------
    path : path, URI, folder, glob pattern, or a sequence of them
    label : str, optional
        Default: the column that is named label or click, else the only one that holds 0 and 1 alone.

    Raises
    ------
    DataError
        When nothing can be read, a column has two types, or no column can be the label (or several could, or
        the one that is named can't).
    """
    report = check(path, label=label)
    if not report.rows:
        files = ", ".join(shown(one.file) for one in report.files)
        raise DataError(*(report.problems or [f"{files}: expected at least one row, got none"]))
    _refuse_changed(report)
    chosen = label or _label_of(report)
    if chosen is None:
        return _sessions(report)
    if chosen not in {column.name for column in report.columns}:
        raise DataError(f"no column {chosen!r}; there is {', '.join(one.name for one in report.columns)}")
    _refuse_type(report, chosen)
    sample = LabelSample([(one.file, one.group_rows) for one in report.files], chosen)
    choices = (*(_without_leak(_choice(one, chosen), sample) for one in report.columns), *_unread(report))
    if not any(one.role in ("dense", "sparse", "ragged") for one in choices):
        left = "; ".join(f"{one.name!r}: {one.reason}" for one in choices if one.role != "label")
        raise DataError(
            f"{shown(report.files[0].file)}: no column but the label {chosen!r} makes a field; {left}"
        )
    far = {column.name for column in report.columns if column.reach > DENSE_FAR}
    schema = Schema(
        label=chosen,
        dense=[DenseField(one.name, log1p=one.name in far) for one in choices if one.role == "dense"],
        sparse=[SparseField(one.name) for one in choices if one.role == "sparse"],
        ragged=[RaggedField(one.name) for one in choices if one.role == "ragged"],
    )
    return Description(report, schema, choices)


def _without_leak(choice: Choice, sample: LabelSample) -> Choice:
    """A feature that gives the label away is none: at the time of a prediction nobody knows it."""
    if choice.role not in ("dense", "sparse"):
        return choice
    why = sample.leak(choice.name)
    return choice if why is None else Choice(choice.name, "", why, leak=True)


def _refuse_changed(report: CheckReport) -> None:
    """Raise where a column is read in one way in one file and in another way in another."""
    first: dict[str, ColumnReport] = {}
    for column in report.columns:
        before = first.setdefault(column.name, column)
        if before is not column:
            raise DataError(
                f"{shown(column.file)}: column {column.name!r} is {column.kind}, but {before.kind} in "
                f"{shown(before.file)}; write both with one type (in pandas a missing value makes whole "
                "numbers double: astype('Int64') keeps them)"
            )


def _refuse_type(report: CheckReport, label: str) -> None:
    """Raise where no label can be read from a column of this type."""
    file = next(column.file for column in report.columns if column.name == label)
    with open_parquet(file) as opened:
        problem = label_problem(opened.schema_arrow.field(label).type)
    if problem:
        raise DataError(f"{shown(file)}: column {label!r}: {problem}")


def _unread(report: CheckReport) -> Iterator[Choice]:
    """Columns of types that neither keys nor numbers are made of as they stand."""
    with open_parquet(report.files[0].file) as opened:
        fields = list(opened.schema_arrow)
    read = {column.name for column in report.columns}
    for field in fields:
        if field.name in read:
            continue
        reason = f"a {field.type}: no field is made of it"
        count = [one.name for one in fields].count(field.name)
        if count > 1:
            reason = f"is there {count} times; rename all but one"
        if types.is_timestamp(field.type) or types.is_date(field.type):
            take = "weekday" if types.is_date(field.type) else "hour"  # a date has no hour
            setting = f"{{name: {field.name}_{take}, of: {field.name}, take: {take}}}"
            reason = f"a {field.type}: {setting} makes keys of it"
        yield Choice(field.name, "", reason)


def _label_of(report: CheckReport) -> str | None:
    """The column of 0 and 1; None for sessions, which have one list each and no label."""
    columns = report.columns
    named = [column.name for column in columns if column.role == "label"]
    binary = [column.name for column in columns if _is_binary(column)]
    if named or len(binary) == 1:
        return (named or binary)[0]
    names = [*(one.name for one in columns), *(one.name for one in _unread(report))]
    lists = sum(column.lengths is not None and not _is_list_of_fractions(column) for column in columns)
    if not binary and lists == 1 and len(names) <= SESSION_COLUMNS:
        return None
    if clicks := _click_columns(names):
        session, item, time = clicks
        raise DataError(
            f"columns {session!r}, {item!r} and {time!r} look like clicks of sessions, a row each; a session "
            "model reads a row a session, with a list of its items: write them as pyarrow's "
            f"table.sort_by({time!r}).group_by({session!r}, use_threads=False)"
            f".aggregate([({item!r}, 'list')]) gives them; or name the column of 0 and 1 with --label"
        )
    found = f"several hold 0 and 1 alone ({', '.join(binary)})" if binary else "none holds 0 and 1 alone"
    raise DataError(f"which column is the label? {found}: name it with --label")


def _click_columns(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Which columns hold session, item and time, by their names."""
    plain = {name.lower().replace("_", ""): name for name in names}
    found = []
    for words in CLICK_WORDS:
        named = [name for word, name in plain.items() if word.removesuffix("id") in words]
        if not named:
            return None
        found.append(named[0])
    return found[0], found[1], found[2]


def _sessions(report: CheckReport) -> Description:
    """Sessions: one list of items an example, and nothing else is read."""
    choices = []
    for column in report.columns:
        if _is_list_of_fractions(column):
            choices.append(Choice(column.name, "", NO_LIST))
        elif column.lengths is None:
            choices.append(Choice(column.name, "", "a session model reads the list alone"))
        else:
            items = f"{column.distinct:,} different items" if column.distinct else "items"
            reason = f"sessions of {column.lengths[1]:.1f} of {items} on average, no label"
            choices.append(Choice(column.name, "ragged", reason))
    lists = [RaggedField(one.name) for one in choices if one.role == "ragged"]
    return Description(report, Schema(label=None, ragged=lists), (*choices, *_unread(report)))


def _is_binary(column: ColumnReport) -> bool:
    is_number = column.kind.startswith(("int", "uint", "float", "double", "bool"))
    return is_number and min(column.zeros, column.ones) > 0 and column.zeros + column.ones == column.rows


def _is_list_of_fractions(column: ColumnReport) -> bool:
    """Lists that no ragged field reads."""
    return column.lengths is not None and any(word in column.kind for word in ("float", "double"))


def _number(column: ColumnReport) -> Choice:
    """What becomes of numbers with fractions."""
    if column.infinite:
        what = counted(column.infinite, "infinite value")
        reason = f"{what}, and a dense one is finite in float32: replace them, then add it"
        return Choice(column.name, "", reason)
    log1p = f", and it reaches {column.reach:,.6g}: log1p" if column.reach > DENSE_FAR else ""
    return Choice(column.name, "dense", f"a number with fractions{log1p}")


def _choice(column: ColumnReport, label: str) -> Choice:
    name, rows = column.name, max(column.rows, 1)
    if name == label:
        return Choice(name, "label", f"{column.ones / rows:.2%} are 1")
    if column.nulls == column.rows:
        return Choice(name, "", "every value is missing")
    if _is_list_of_fractions(column):
        return Choice(name, "", NO_LIST)
    if column.lengths:
        return Choice(name, "ragged", f"lists of {column.lengths[1]:.1f} on average")
    if column.distinct is None:
        return _number(column)
    if column.distinct <= 1:
        return Choice(name, "", "always the same value")
    if rows >= UNIQUE_ROWS and column.distinct > UNIQUE_SHARE * rows:
        return Choice(name, "", f"{column.distinct:,} different values in {rows:,} rows: it names the row")
    return Choice(name, "sparse", f"{column.distinct:,} different values")
