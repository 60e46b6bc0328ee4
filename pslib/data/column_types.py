"""Arrow types accepted for keys, labels, weights and numbers, with the reasons for rejecting others."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from shlex import quote
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import types

from pslib.data.column_casts import (
    INTEGER_KIND,
    LEFT_OUT,
    NO_NUMBER,
    NO_TIME,
    STRING_KIND,
    number_columns,
)
from pslib.data.columns import is_list, storage_type
from pslib.data.data_files import text_format
from pslib.data.features import field_problem
from pslib.schema import RaggedField, Schema, SparseField
from pslib.storage import shown
from pslib.text import listed

LACKED_LINES = 4
"""Columns that a file lacks from which on one line is about all: it is another file than was meant."""
KeyKinds = dict[str, tuple[str, str, str]]
"""Key kind of each vocabulary: ``"integer"`` or ``"string"``, with a column and a file that have it."""


def plain_kinds(kinds: KeyKinds) -> dict[str, list[str]]:
    """Form stored in a checkpoint: kind and column of each vocabulary."""
    return {vocabulary: [kind, column] for vocabulary, (kind, column, _file) in kinds.items()}


def kinds_of(about: Mapping[str, Any], place: str) -> KeyKinds:
    """Read the key kinds recorded in a checkpoint.

    Parameters
    ----------
    about : mapping
        `pslib.checkpoint.Manifest.about`.
    place : str
        The checkpoint, for the messages.

    Returns
    -------
    KeyKinds
        Empty if not recorded: the checkpoint is from an earlier pslib, or from before any training.
    """
    kept, where = about.get("key_kinds"), f"the data that {shown(place)} was trained on"
    found = kept.items() if isinstance(kept, Mapping) else ()
    return {vocabulary: (kind, column, where) for vocabulary, (kind, column) in found}


def key_kind(kind: pa.DataType) -> str | None:
    """Return the kind of keys made from values of an Arrow type.

    Returns
    -------
    str or None
        ``"integer"`` (all widths, bool), ``"string"`` (also binary, as bytes), ``"null"``, or None when this
        type makes no keys. A dictionary has the kind of its values.
    """
    if types.is_dictionary(kind):
        return key_kind(kind.value_type)
    if types.is_null(kind):
        return "null"
    if types.is_integer(kind) or types.is_boolean(kind):
        return INTEGER_KIND
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
             types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)  # fmt: skip
    return STRING_KIND if any(test(kind) for test in tests) else None


def label_problem(kind: pa.DataType) -> str | None:
    """Reason why this type is invalid for labels; None if valid."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return None
    return f"a label is integer, float or boolean, got {kind}"


def label_advice(file: str, name: str) -> str:
    """Way to labels of 0 and 1 from other values: by `pslib convert` from text, else in pandas."""
    form = text_format(file)
    way = (
        f"by pslib convert {form} --label {quote(name)} --positive VALUES SRC OUT"
        if form
        else f"in pandas by frame[{name!r}] = frame[{name!r}].isin(VALUES)"
    )
    return f"say which values count as 1, {way}"


def same_labels(values: Mapping[str, Iterable[float]]) -> list[str]:
    """Lines about labels that have one value in all rows.

    Parameters
    ----------
    values : mapping of str to iterable of float
        Some values of each label, at least its smallest and its largest one.
    """
    different = {name: {*map(float, some)} for name, some in values.items()}
    return [
        f"column {name!r}: every label is {int(min(some))}: AUC is not defined, and nothing can be learnt; "
        "is it the right column, and are these all rows?"
        for name, some in different.items()
        if some in ({0.0}, {1.0})
    ]


def weight_problem(kind: pa.DataType) -> str | None:
    """Reason why this type is invalid for weights; None if valid."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return None
    return f"a weight is a number, got {kind}; cast it to float"


def _dense_problem(kind: pa.DataType) -> str | None:
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_integer(value) or types.is_floating(value) or types.is_boolean(value) or types.is_null(value):
        return None
    hint = _inside(value) or ("; make a column of each element" if is_list(value) else "; cast it to float")
    hint = "; did you mean a sparse column?" if key_kind(value) == "string" else hint
    return f"a dense column is integer, float or boolean, got {kind}{hint}"


def _sparse_problem(kind: pa.DataType) -> str | None:
    if key_kind(kind) is not None:
        return None
    hint = _inside(kind) or "; cast it to one of them"
    if is_list(kind):
        hint = "; did you mean a ragged column?"
    elif types.is_floating(kind):
        hint = (
            "; did you mean a dense column? (a float is no identity: cast ids to integer, in pandas "
            'astype("Int64"))'
        )
    elif types.is_timestamp(kind) or types.is_date(kind):
        hint = "; take: hour, weekday, day or month makes keys of it"
    return f"a sparse column is integer, boolean, string or binary, got {kind}{hint}"


def _sparse_check(field: SparseField) -> Callable[[pa.DataType], str | None]:
    """Return the type check for the columns of this sparse field."""
    return partial(field_problem, field) if field.take or field.buckets else _sparse_problem


def unread_reason(name: str, kind: pa.DataType) -> str:
    """Reason why a column of this type makes no field by itself, with what would make one."""
    if types.is_timestamp(kind) or types.is_date(kind):
        take = "weekday" if types.is_date(kind) else "hour"  # a date has no hour
        return f"a {kind}: {{name: {name}_{take}, of: {name}, take: {take}}} makes keys of it"
    hint = _inside(kind)
    if types.is_decimal(kind):
        hint = "; cast it to double for a number, to int64 for keys"
    elif types.is_time(kind) or types.is_duration(kind):
        hint = "; cast it to int64"
    elif is_list(kind):
        hint = "; flatten it" if is_list(kind.value_type) else "; cast what is in it"
    return f"a {kind}: no field is made of it{hint}"


_FOLDER = re.compile(r"([A-Za-z_]\w*)=(.*)")


def folder_columns(file: str) -> dict[str, str]:
    """Columns that stand in the names of a file's folders, as Hive writes them (``day=2024-05-01``)."""
    found = map(_FOLDER.fullmatch, file.split("/")[:-1])
    return {one[1]: unquote(one[2]) for one in found if one}


def _ragged_problem(field: RaggedField, kind: pa.DataType) -> str | None:
    if types.is_null(kind) or (is_list(kind) and key_kind(kind.value_type) is not None):
        return None
    hint = _inside(kind)
    if is_list(kind):
        hint = "; flatten it" if is_list(kind.value_type) else "; cast what is in it"
    elif key_kind(kind) == STRING_KIND:
        hint = (
            "; did you mean a sparse column? texts of lists need a separator: "
            f"{{name: {field.name}, separator: '|'}}, in Python RaggedField({field.name!r}, separator='|')"
        )
    elif key_kind(kind) is not None:
        hint = "; did you mean a sparse column?"
    return f"a ragged column is a list of integers or strings, got {kind}{hint}"


def _inside(kind: pa.DataType) -> str:
    """Advice for nested types, which hold other columns."""
    holds = types.is_struct(kind) or types.is_map(kind)
    return "; make columns of what is in it" if holds else ""


def column_problems(arrow_schema: pa.Schema, schema: Schema, where: str) -> list[str]:
    """List the problems that keep columns of these Arrow types from being read by the schema.

    Parameters
    ----------
    arrow_schema : pyarrow.Schema
        Schema of a file.
    schema : Schema
    where : str
        Name of the file, for the messages.

    Returns
    -------
    list of str
        One line per problem; empty if all columns exist with valid types.
    """
    checks: list[tuple[str, Callable[[pa.DataType], str | None]]] = []
    checks += [(name, label_problem) for name in schema.labels]
    if schema.weight is not None:
        checks.append((schema.weight, weight_problem))
    checks += [(field.name, _dense_problem) for field in schema.dense]
    checks += [(name, _sparse_check(field)) for field in schema.sparse for name in field.columns]
    checks += [(field.name, partial(_ragged_problem, field)) for field in schema.ragged]
    found = (column_problem(arrow_schema, name, check, where) for name, check in checks)
    return _shortened([problem for problem in found if problem])


def _shortened(problems: list[str]) -> list[str]:
    """Return problems with one line for all columns that a file lacks, where its columns are others."""
    lacked = [re.fullmatch(r"(.*: no column )('.*')(; the file has .*)", line) for line in problems]
    known = [one for one in lacked if one]
    if len(known) < LACKED_LINES:
        return problems
    where, _, has = known[0].groups()
    line = f"{where.rstrip()}s {listed(one[2] for one in known)}{has}"
    return [line, *(line for line, one in zip(problems, lacked, strict=True) if not one)]


def column_problem(
    arrow_schema: pa.Schema, name: str, check: Callable[[pa.DataType], str | None], where: str
) -> str | None:
    """Problem that keeps one column from being read; ``check`` is that of its role."""
    places = arrow_schema.get_all_field_indices(name)
    if len(places) == 1:
        field = arrow_schema.field(places[0])
        problem = check(storage_type(field.type))
        advice = f"; {label_advice(where, name)}" if check is label_problem else ""
        told = f"{where}: column {name!r}: {problem}{_of_text(field, check, where)}{advice}"
        return told if problem else None
    if places:
        return f"{where}: column {name!r} is there {len(places)} times; rename all but one"
    hint = _suggestion(name, arrow_schema.names)
    if value := folder_columns(where).get(name):
        hint = f"it stands in the name of a folder ({name}={value}): write it as a column"
    left_out = json.loads((arrow_schema.metadata or {}).get(LEFT_OUT, b"{}"))
    if name in left_out:
        return f"{where}: column {name!r}: {left_out[name]}"
    return f"{where}: no column {name!r}; {hint}"


def _of_text(field: pa.Field, check: Callable[[pa.DataType], str | None], where: str) -> str:
    """Say of a column of a file of text which value makes it text, or how it stays text."""
    metadata = field.metadata or {}
    if text_format(where) and check(pa.string()) is None:
        return f"; {as_written(where, field.name)}"
    for mark, kind, noun in ((NO_TIME, pa.timestamp("us"), "time"), (NO_NUMBER, pa.float64(), "number")):
        if mark in metadata and check(kind) is None:
            return f" (it is text, as {metadata[mark].decode()} is no {noun})"
    return ""


def as_written(file: str, name: str) -> str:
    """Way to read a column of a file of text as its texts, whatever they look like."""
    return (
        "to read it as it is written, make Parquet of it: "
        f"pslib convert {text_format(file)} --no-label --sparse {quote(name)} SRC OUT, and give OUT in place "
        "of SRC (not in a folder with text, which is left out beside Parquet)"
    )


def _suggestion(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"the file has {shown or 'no columns'}"


def _from_csv(kind: str, column: str, arrow_type: pa.DataType) -> str:
    """Advice for strings found in place of integers: usually the file was made from CSV as text."""
    is_text = kind == "string" and not is_list(arrow_type)
    return f" (pslib convert csv makes integers with --integers {quote(column)})" if is_text else ""


class ColumnKinds:
    """Kinds of the keys of each vocabulary, integer or string, over all files.

    Columns of Parquet and of tables in memory have types that must agree. Columns of text files, and parts of
    texts with a separator, are cast to the kind of their vocabulary. Where no earlier data and no typed
    column has one, `settle` chooses: string if a column of a text file is, else integer if one is.

    Parameters
    ----------
    schema : Schema
    before : KeyKinds
        Those of earlier data.
    """

    def __init__(self, schema: Schema, before: KeyKinds) -> None:
        self.columns: list[tuple[str, str]] = []
        for field in schema.sparse:
            if field.take or field.buckets:
                continue
            name = field.vocabulary or field.name
            crossed = len(field.columns) > 1  # columns of a cross may be of different kinds
            places = enumerate(field.columns)
            self.columns += [(column, f"{name}\0{i}" if crossed else name) for i, column in places]
        self.columns += [(field.name, field.vocabulary or field.name) for field in schema.ragged]
        self._numbers = number_columns(schema)
        self._separated = {field.name for field in schema.ragged if field.separator is not None}
        self.seen = dict(before)
        self._untyped: dict[_Untyped, str] = {}

    def conflicts(self, arrow_schema: pa.Schema, file: str, *, typed: bool = True) -> list[str]:
        """Lines about typed columns of a file whose key kind differs from that of earlier files.

        Parameters
        ----------
        arrow_schema : pyarrow.Schema
            Types after `pslib.data.column_casts.ColumnCasts.schema`.
        file : str
        typed : bool
            False of a file of text.
        """
        problems: list[str] = []
        for name, vocabulary in self.columns:
            arrow_type = storage_type(arrow_schema.field(name).type)
            kind = key_kind(arrow_type.value_type if is_list(arrow_type) else arrow_type)
            if kind is None or kind == "null":
                continue
            split = name in self._separated and kind == STRING_KIND
            if split or not typed:
                is_bool = pa.types.is_boolean(arrow_type)
                self._untyped.setdefault(_Untyped(name, vocabulary, kind, split, is_bool), file)
                continue
            first_kind, first_name, first_file = self.seen.setdefault(vocabulary, (kind, name, file))
            if kind != first_kind:
                before = f"{first_kind} in {first_file}"
                if first_name != name:
                    before = f"column {first_name!r}, whose keys it shares, is {before}"
                problems.append(
                    f"{file}: column {name!r} is {kind}, but {before}: equal values would get different "
                    f"keys; write both with one type{_from_csv(kind, name, arrow_type)}"
                )
        return list(dict.fromkeys(problems))

    def settle(self) -> list[str]:
        """Choose the kinds that are open when all files are known; return lines about what can't be cast."""
        for some in _connected(self._untyped):
            known = [self.seen[one.vocabulary] for one in some if one.vocabulary in self.seen]
            for one in some:
                self.seen.setdefault(
                    one.vocabulary, known[0] if known else self._chosen(some, one.vocabulary)
                )
        return [problem for one, file in self._untyped.items() if (problem := self._uncast(one, file))]

    def _chosen(self, some: list[_Untyped], vocabulary: str) -> tuple[str, str, str]:
        """Choose a kind for connected columns, with one that has it, if possible of the vocabulary."""
        whole = {one.kind for one in some if not one.split}
        kind = INTEGER_KIND if whole == {INTEGER_KIND} else STRING_KIND
        of_kind = min(some, key=lambda one: (one.kind != kind, one.split, one.vocabulary != vocabulary))
        return kind, of_kind.name, self._untyped[of_kind]

    def _uncast(self, one: _Untyped, file: str) -> str | None:
        """Reason why a column of a file can't be cast to the kind of its vocabulary."""
        kind, name, where = self.seen[one.vocabulary]
        if kind != STRING_KIND or one.kind == STRING_KIND:
            return None
        if one.is_bool:
            return (
                f"{file}: column {one.name!r} is boolean, but {kind} in {where}: equal values would get "
                f"different keys; {as_written(file, one.name)}"
            )
        if one.name in self._numbers:
            shares = "" if name == one.name else f"whose keys {name!r} shares, "
            return (
                f"{file}: column {one.name!r}, {shares}is read as a number too, but is string in {where}: "
                "expected integers there; or write the number as a column of its own"
            )
        return None

    def of_columns(self) -> dict[str, str]:
        """Return the kind of each column's keys, where it is known."""
        return {name: self.seen[words][0] for name, words in self.columns if words in self.seen}


@dataclass(frozen=True, slots=True)
class _Untyped:
    """Column of keys whose type says nothing: that of a file of text, or of parts of texts."""

    name: str
    vocabulary: str
    kind: str
    split: bool
    is_bool: bool


def _connected(some: Iterable[_Untyped]) -> Iterable[list[_Untyped]]:
    """Group columns that share a name or a vocabulary, directly or through others."""
    groups: dict[tuple[str, str], list[_Untyped]] = {}
    for one in some:
        group = [one]
        at = (("name", one.name), ("vocabulary", one.vocabulary))
        for other in {id(groups[place]): groups[place] for place in at if place in groups}.values():
            group += other
        for each in group:
            groups["name", each.name] = groups["vocabulary", each.vocabulary] = group
    return {id(group): group for group in groups.values()}.values()
