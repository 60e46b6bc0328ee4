"""Proposal for training on some data: the role of each column, with reasons, and the rows to test on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from shlex import quote

from pslib.data.column_types import as_written, column_problem, label_advice, label_problem
from pslib.data.data_files import Paths, text_format
from pslib.data.dataset import open_parquet
from pslib.data.features import UNITS, time_unit
from pslib.data.inspect.check import DENSE_FAR, NUMBERS, CheckReport, check
from pslib.data.inspect.column_scan import ColumnReport
from pslib.data.inspect.label_leakage import LabelSample
from pslib.data.inspect.row_sample import RowSample
from pslib.data.inspect.time_split import Split, name_words, split_of
from pslib.data.text_values import OTHER_TIME
from pslib.errors import DataError
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from pslib.storage import shown
from pslib.text import counted

RARE_VALUES, RARE_SHARE = 10_000, 0.25
"""Distinct values, and share of them seen once, from which on a column gets an admission threshold."""
UNIQUE_SHARE = 0.9
"""Distinct share from which on a key identifies the row, so that nothing can be learnt from it."""
UNIQUE_ROWS = 1000
"""With fewer rows than these, all-distinct names are plausible."""
SESSION_COLUMNS = 3
"""Most columns (list, session, time) of a session data set, which has no label."""
CLICK_WORDS = (
    ("session", "visit", "visitor", "user", "customer", "member"),
    ("item", "product", "article", "movie", "film", "song", "track", "video", "news", "sku"),
    ("time", "timestamp", "ts", "datetime", "date", "eventtime", "eventdate", "timeframe"),
)
"""Names of session, item and time columns, optionally with ``_id`` appended; the first of them is taken."""
FLOATS = ("halffloat", "float", "double")
WHOLES = ("int", "uint", *FLOATS)
NO_TIME = (0, -1)
"""Whole numbers that stand for a missing time."""
TEST_SHARE = 0.1
"""Share of the rows that is proposed to test on."""
NO_INTEGERS = "lists of whole numbers as floats: cast them to integers, which makes a ragged field"
NO_LIST = "lists of numbers with fractions: no field is made of them"


@dataclass(frozen=True, slots=True)
class Choice:
    """Proposed role of one column.

    Attributes
    ----------
    name : str
    role : str
        label, dense, sparse, ragged, time (of the split), or empty: omitted.
    reason : str
    leak : bool
        True if it is omitted because it leaks the label.
    auc_alone : float or None
        AUC of the label by this column alone, if that is suspiciously large.
    """

    name: str
    role: str
    reason: str
    leak: bool = False
    auc_alone: float | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """Data report, proposed schema and proposed split.

    Attributes
    ----------
    report : CheckReport
        Result of `check` without a schema.
    schema : Schema
    choices : tuple of Choice
        One per column, in column order.
    split : Split
        Rows to test on; none of sessions, whose tests have other columns.
    """

    report: CheckReport
    schema: Schema
    choices: tuple[Choice, ...]
    split: Split

    def held_out(self) -> str | None:
        """Line about the rows to test on; None if there are none."""
        split = self.split
        if not split.test_share:
            return None
        rows = self.report.rows - split.train_rows
        which = "rows drawn by a hash" if split.test_by is None else f"the last rows by {split.test_by}"
        return f"{which}, {rows:,} of {self.report.rows:,}, are held out and evaluated after the training"

    def leaks(self) -> str | None:
        """Line about columns that leak the label; None if there are none."""
        names = [choice.name for choice in self.choices if choice.leak]
        if not names:
            return None
        return (
            f"left out, for they give the label away: {', '.join(names)}; a model that reads them looks "
            "perfect and predicts nothing; add one to the schema if it is known when a prediction is made"
        )

    def near_leaks(self) -> str | None:
        """Line about columns that nearly determine the label; None if there are none."""
        near = [f"{one.name} ({one.auc_alone:.3f})" for one in self.choices if one.auc_alone is not None]
        if not near:
            return None
        return (
            f"AUC of the label by one column alone: {', '.join(near)}; leave it out of the schema unless it "
            "is known when a prediction is made: what follows a click, such as the time on its page, is not"
        )

    def float_ids(self) -> str | None:
        """Line about columns with the names of ids whose whole numbers are floats; None if there are none."""
        dense = {choice.name for choice in self.choices if choice.role == "dense"}
        ids = [one for one in self.report.columns if one.name in dense and one.ids_hint and _names_ids(one)]
        if not ids:
            return None
        return f"{', '.join(one.name for one in ids)}: {ids[0].kind}, read as quantities; {ids[0].ids_hint}"

    def cut_off(self) -> str | None:
        """Line about values too rare to learn from; None if they are few."""
        keyed = {choice.name for choice in self.choices if choice.role in ("sparse", "ragged")}
        columns = [one for one in self.report.columns if one.name in keyed and not one.text_lists]
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


def _names_ids(column: ColumnReport) -> bool:
    """Return True for a name of ids: ``user``, ``itemId``, ``campaign_id``."""
    words = name_words(column.name)
    return "id" in words or bool(words & {*CLICK_WORDS[0], *CLICK_WORDS[1]})


def _is_rare(column: ColumnReport) -> bool:
    """Return True if many of the values occur once."""
    return (column.distinct or 0) >= RARE_VALUES and (column.once or 0) >= RARE_SHARE


def describe(
    path: Paths,
    label: str | None = None,
    *,
    test_share: float = TEST_SHARE,
    progress: Callable[[int], object] | None = None,
) -> Description:
    """Read all values of some data files and propose a schema and a split.

    Parameters
    ----------
    path : path, URI, folder, glob pattern, or a sequence of them
    label : str, optional
        Default: the column named label or click, else the only one with values 0 and 1.
    test_share : float
        Share of the rows to test on: the last ones if there is a column of times; 0: none.
    progress : callable, optional
        Called with the number of values of each part read.

    Raises
    ------
    DataError
        If nothing can be read, a column has two types, or no column can be the label (or several can, or the
        named one can't).
    """
    rows = RowSample()
    report = check(path, label=label, sample=rows, progress=progress)
    if not report.rows:
        files = ", ".join(shown(one.file) for one in report.files)
        raise DataError(*(report.problems or [f"{files}: expected at least one row, got none"]))
    _refuse_changed(report)
    chosen = label or _label_of(report)
    if chosen is None:
        return _sessions(report)
    _refuse_type(report, chosen)
    sample = LabelSample(rows, chosen)
    choices = (*(_without_leak(_choice(one, chosen), sample) for one in report.columns), *_unread(report))
    split = split_of(report, test_share)
    times = {one.name: _other_reading(one) for one in report.columns}
    choices = tuple(
        _with_time(one, times.get(one.name)) if one.name == split.test_by else one for one in choices
    )
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
        ragged=_lists(report, choices),
    )
    return Description(report, schema, choices, split)


def _with_time(choice: Choice, reading: str | None) -> Choice:
    """Use a column of times for the split alone: later times are unseen keys."""
    return Choice(choice.name, "time", f"the split is by it{reading or f'; {choice.reason}'}")


def _lists(report: CheckReport, choices: Sequence[Choice]) -> list[RaggedField]:
    """Fields of lists; of texts with their separator."""
    texts = {one.name: {"separator": one.text_lists.separator} for one in report.columns if one.text_lists}
    return [RaggedField(one.name, **texts.get(one.name, {})) for one in choices if one.role == "ragged"]


def _without_leak(choice: Choice, sample: LabelSample) -> Choice:
    """Omit features that leak the label: they are unknown at prediction time."""
    if choice.role not in ("dense", "sparse"):
        return choice
    why = sample.leak(choice.name)
    if why is not None:
        return Choice(choice.name, "", why, leak=True)
    return replace(choice, auc_alone=sample.auc_alone(choice.name))


def _refuse_changed(report: CheckReport) -> None:
    """Raise if files differ in how a column is read."""
    first: dict[str, ColumnReport] = {}
    for column in report.columns:
        before = first.setdefault(column.name, column)
        if before is not column:
            other = column if before.kind == "string" else before
            is_text = text_format(other.file) and "string" in (column.kind, before.kind)
            way = (
                as_written(other.file, column.name)
                if is_text
                else "write both with one type (in pandas a missing value makes whole numbers double: "
                "astype('Int64') keeps them)"
            )
            raise DataError(
                f"{shown(column.file)}: column {column.name!r} is {column.kind}, but {before.kind} in "
                f"{shown(before.file)}; {way}"
            )


def _refuse_type(report: CheckReport, label: str) -> None:
    """Raise if a column's type is invalid for a label."""
    column = next((column for column in report.columns if column.name == label), None)
    if column is not None and column.kind.startswith(NUMBERS):
        return
    file = report.files[0].file if column is None else column.file
    with open_parquet(file) as opened:
        problem = column_problem(opened.schema_arrow, label, label_problem, shown(file))
    if problem:
        raise DataError(problem)


def _unread(report: CheckReport) -> Iterator[Choice]:
    """Omitted columns, of types that give neither keys nor numbers directly."""
    yield from (Choice(name, "", reason) for name, reason in report.unread.items())


def _label_of(report: CheckReport) -> str | None:
    """The column of 0 and 1; None for sessions, which have one list each and no label."""
    columns = report.columns
    named = [column.name for column in columns if column.role == "label"]
    binary = [column.name for column in columns if _is_binary(column)]
    if named or len(binary) == 1:
        return (named or binary)[0]
    names = [*(one.name for one in columns), *(one.name for one in _unread(report))]
    lists = sum(_is_listed(column) for column in columns)
    if not binary and lists == 1 and len(names) <= SESSION_COLUMNS:
        return None
    found = f"several hold 0 and 1 alone ({', '.join(binary)})" if binary else "none holds 0 and 1 alone"
    clicks = None if binary else _click_columns(names)
    ways = [] if binary else [_of_values([column for column in columns if column.name not in (clicks or ())])]
    if clicks:
        session, item, time = map(quote, clicks)
        sessions = (
            "if each row is a click, none is needed: two_tower reads such rows, and a model of sessions "
            "(gru4rec ...) a row a session: pslib convert sessions "
            f"--session {session} --item {item} --time {time} SRC OUT"
        )
        ways = [sessions, *ways]
    raise DataError(
        "; ".join([f"which column is the label? {found}: name it with --label", *filter(None, ways)])
    )


def _of_values(columns: Sequence[ColumnReport]) -> str:
    """Way to a label of other values, of a column of two if there is one; empty without a column."""
    two = next((column for column in columns if column.distinct == 2), None)
    name, which = ("COLUMN", "another column") if two is None else (two.name, repr(two.name))
    return f"if it is {which}, {label_advice(columns[0].file, name)}" if columns else ""


def _click_columns(names: Sequence[str]) -> tuple[str, str, str] | None:
    """Session or user, item and time columns, found by name."""
    plain = {name.lower().replace("_", ""): name for name in names}
    found = []
    for words in CLICK_WORDS:
        named = [name for word in words for name in (plain.get(word), plain.get(f"{word}id")) if name]
        if not named:
            return None
        found.append(named[0])
    return found[0], found[1], found[2]


def _sessions(report: CheckReport) -> Description:
    """Session schema: one list of items per example, all other columns unread."""
    choices = []
    for column in report.columns:
        if _is_list_of_fractions(column):
            choices.append(Choice(column.name, "", NO_LIST))
        elif not _is_listed(column):
            choices.append(Choice(column.name, "", "a session model reads the list alone"))
        else:
            known = column.distinct if column.lengths else None
            items = f"{known:,} different items" if known else "items"
            reason = f"sessions of {_mean_length(column):.1f} of {items} on average, no label"
            choices.append(Choice(column.name, "ragged", reason))
    schema = Schema(label=None, ragged=_lists(report, choices))
    return Description(report, schema, (*choices, *_unread(report)), Split(0.0, None, report.rows))


def _is_listed(column: ColumnReport) -> bool:
    """Return True for lists that a ragged field reads."""
    in_texts = column.text_lists is not None
    return in_texts or (column.lengths is not None and not _is_list_of_fractions(column))


def _mean_length(column: ColumnReport) -> float:
    if column.text_lists:
        return column.text_lists.mean
    return column.lengths[1] if column.lengths else 0.0


def _is_binary(column: ColumnReport) -> bool:
    return (
        column.kind.startswith(NUMBERS)
        and min(column.zeros, column.ones) > 0
        and column.zeros + column.ones == column.rows
    )


def _is_list_of_fractions(column: ColumnReport) -> bool:
    """Return True for lists of fractions, which no ragged field reads."""
    return column.lengths is not None and any(word in column.kind for word in ("float", "double"))


def _number(column: ColumnReport) -> Choice:
    """Role of a column of numbers with fractions."""
    if column.infinite:
        what = counted(column.infinite, "infinite value")
        reason = f"{what}, and a dense one is finite in float32: replace them, then add it"
        return Choice(column.name, "", reason)
    log1p = f", and it reaches {column.reach:,.6g}: log1p" if column.reach > DENSE_FAR else ""
    if not column.whole:
        return Choice(column.name, "dense", f"a number with fractions{log1p}")
    distinct = "" if column.distinct is None else f"{column.distinct:,} different "
    reason = f"{distinct}whole numbers as {column.kind}{log1p}{_other_reading(column)}"
    return Choice(column.name, "dense", reason)


def _unreadable(column: ColumnReport) -> str:
    """Reason why no field can be made of a column as it is; empty if one can."""
    if column.nulls == column.rows:
        return "every value is missing"
    if column.text_kind == OTHER_TIME:
        form = f"times in a form that is not read ({column.text!r}): write them as 2026-03-01 23:02"
        return f"{form}, and the split is by them"
    if _is_list_of_fractions(column):
        return NO_INTEGERS if column.whole else NO_LIST
    return ""


def _choice(column: ColumnReport, label: str) -> Choice:
    name, rows = column.name, max(column.rows, 1)
    if name == label:
        return Choice(name, "label", f"{column.ones / rows:.2%} are 1")
    if why := _unreadable(column):
        return Choice(name, "", why)
    if _is_listed(column):
        divided = f", texts divided by {column.text_lists.separator!r}" if column.text_lists else ""
        return Choice(name, "ragged", f"lists of {_mean_length(column):.1f} on average{divided}")
    if column.kind.startswith(FLOATS):
        return _number(column)
    if column.distinct is None or column.distinct <= 1:
        return Choice(name, "", "always the same value")
    also = _other_reading(column)
    if rows >= UNIQUE_ROWS and column.distinct > UNIQUE_SHARE * rows:
        reason = f"{column.distinct:,} different values in {rows:,} rows: it names the row{also}"
        return Choice(name, "", reason)
    return Choice(name, "sparse", f"{column.distinct:,} different values{also}")


def _other_reading(column: ColumnReport) -> str:
    """Other readings of values, between which only their meaning decides: a number, a time, an id."""
    text = f"; each is the text of a {column.text_kind} ({column.text!r})"
    if column.text_kind == "number":
        return f"{text}: if it is a quantity, cast it to double, which makes a dense field"
    if column.text_kind == "time":
        return f"{text}: written as a timestamp, {_take_hour(column)}"
    if column.smallest is None or column.largest is None or not column.kind.startswith(WHOLES):
        return ""
    low, high = int(column.smallest), int(column.largest)
    unit = time_unit(high)
    if unit and (low in NO_TIME or time_unit(low) == unit):
        name, a_second = UNITS[unit]
        ends = (high if low in NO_TIME else low, high)
        first, last = (datetime.fromtimestamp(one // a_second, UTC).date() for one in ends)
        written = "" if unit == "s" and not column.whole else f"written as timestamp('{unit}'), "
        return f"; if they are {name} since 1970 ({first} to {last}): {written}{_take_hour(column)}"
    return f"; {column.ids_hint}" if column.ids_hint else ""


def _take_hour(column: ColumnReport) -> str:
    return f"{{name: {column.name}_hour, of: {column.name}, take: hour}} makes keys of it"
