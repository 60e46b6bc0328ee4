"""``pslib convert FORMAT``: make a Parquet file of a text file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import rich_click as click

from launch.cli.command import (
    FILE,
    argument,
    flag,
    group,
    json_option,
    option,
    overwrite_option,
    show,
    together,
)
from pslib.errors import EXIT_DONE


@group("convert", "pslib convert csv clicks.csv clicks.parquet --label click --sparse user,item")
def convert_command() -> None:
    """Make a Parquet file of a text file, or of clicks one of sessions."""


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _delimiter(text: str) -> str:
    return {"tab": "\t", "\\t": "\t"}.get(text, text)


REJECTS = "largest share of records that can't be read (default 0.001)"
FILE_OPTIONS = (
    argument("source", "SRC", "the text file", FILE),
    argument("out", "OUT", "the Parquet file", FILE),
    overwrite_option,
    option("--rejects-max-share", "SHARE", REJECTS, float, default=0.001),
    json_option,
)
COLUMN_OPTIONS = (
    option("--label", "NAME", "column of 0 and 1 (default: label)", default="label"),
    flag("--no-label", "keep all columns, typed by all their values, as training on SRC itself reads them"),
    option("--dense", "NAMES", "number columns, with commas between", _names),
    option("--sparse", "NAMES", "key columns, with commas between", _names),
    option("--positive", "VALUES", "values of the label that count as 1, with commas between", _names),
)


def _add(name: str, text: str, examples: str, *options: Callable[[Any], Any]) -> None:
    """Add the command of a format; its options are arguments of ``convert_NAME``."""

    @convert_command.command(name, help=text, examples=examples)
    @together(*FILE_OPTIONS, *options)
    def convert(source: str, out: str, as_json: bool, **settings: Any) -> int:
        from launch.job.sections import schema_yaml
        from pslib.data.convert import convert as converters

        if settings.pop("no_label", False):
            settings["label"] = None
        report = getattr(converters, f"convert_{name}")(source, out, **settings)
        rejects = [{"line": record.line, "reason": record.reason} for record in report.first_rejects]
        schema, lines = report.schema, report.lines()
        plain = asdict(report) | {"first_rejects": rejects, "schema": schema and schema.to_dict()}
        if schema is not None:
            job = quote(str(Path(out).with_suffix(".yaml")))
            lines.append(f"lists and times are found by: pslib describe {quote(out)} --out {job}")
            lines += ["for the job file:", schema_yaml(schema).rstrip("\n")]
        show(plain, lines, as_json)
        return EXIT_DONE


_add(
    "criteo",
    "Convert Criteo's click logs: label, 13 numbers, 26 categories, tabs, no header.",
    "pslib convert criteo day_0.tsv.gz day_0.parquet",
)
_add(
    "csv",
    "Convert comma-separated values; the first line names the columns, or --columns.",
    """
pslib convert csv clicks.csv clicks.parquet --label click --dense price --sparse user,item
pslib convert csv new.csv.gz new.parquet --no-label
pslib convert csv bare.csv bare.parquet --columns user,item,bought --label bought --positive yes
""",
    *COLUMN_OPTIONS,
    option("--columns", "NAMES", "names of the columns, of a file without a header", _names),
    option("--integers", "NAMES", "key columns to store as integers", _names, default=""),
    option("--delimiter", "C", "one character, or tab (default: that of the first line)", _delimiter),
)
_add(
    "jsonl",
    "Convert JSON lines: an object a line.",
    "pslib convert jsonl events.jsonl.gz events.parquet --label clicked",
    *COLUMN_OPTIONS,
)
_add(
    "libsvm",
    "Convert lines of label index:value ..., as one list column of ids.",
    "pslib convert libsvm a9a.txt a9a.parquet",
)
_add(
    "libffm",
    "Convert lines of label field:index:value ..., as a column a field.",
    "pslib convert libffm ffm.txt ffm.parquet",
)


@convert_command.command(
    "sessions",
    examples="""
pslib convert sessions clicks.csv sessions.parquet --session session --item item --time time
pslib convert sessions clicks/ train.parquet --session user --item item --time ts --test-out test.parquet
""",
)
@argument("source", "SRC", "clicks, a row each: a file or folder of Parquet, CSV or JSON lines", FILE)
@argument("out", "OUT", "the Parquet file, with a list of items a session", FILE)
@option("--session", "NAME", "column of the session, or of the user", required=True)
@option("--item", "NAME", "column of the item", required=True)
@option("--time", "NAME", "column of times, by which items are in order", required=True)
@option("--test-out", "FILE", "hold sessions out, the last ones, and write them there to test on", FILE)
@option(
    "--test-share",
    "SHARE",
    "of the sessions, held out for --test-out (default 0.1)",
    click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
)
@overwrite_option
@json_option
def sessions_command(source: str, out: str, as_json: bool, **settings: Any) -> int:
    """Make sessions of clicks, as models of sessions read them."""
    from pslib.data.convert.sessions import convert_sessions

    report = convert_sessions(source, out, **settings)
    show(asdict(report), report.lines(), as_json)
    return EXIT_DONE
