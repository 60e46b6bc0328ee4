"""``pslib convert FORMAT``: make a Parquet file of a text file."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import rich_click as click

from launch.cli.command import FILE, group, json_option, overwrite_option, show, together
from pslib.errors import EXIT_DONE

if TYPE_CHECKING:
    from pslib.data.convert.job import ConvertReport

__all__ = ["convert_command"]

file_options = together(
    click.argument("source", type=FILE, metavar="SRC", help="the text file"),
    click.argument("out", type=FILE, metavar="OUT", help="the Parquet file"),
    overwrite_option,
    click.option(
        "--rejects-max-share",
        type=float,
        default=0.001,
        metavar="SHARE",
        help="largest share of records that can't be read (default 0.001)",
    ),
    json_option,
)
column_options = together(
    click.option("--label", default="label", metavar="NAME", help="column of 0 and 1 (default: label)"),
    click.option("--dense", metavar="NAMES", help="number columns, with commas between"),
    click.option("--sparse", metavar="NAMES", help="key columns, with commas between"),
)


@group("convert", "pslib convert csv clicks.csv clicks.parquet --label click --sparse user,item")
def convert_command() -> None:
    """Make a Parquet file of a text file."""


@convert_command.command("criteo", examples="pslib convert criteo day_0.tsv.gz day_0.parquet")
@file_options
def criteo_command(source: str, out: str, overwrite: bool, rejects_max_share: float, as_json: bool) -> int:
    """Convert Criteo's click logs: label, 13 numbers, 26 categories, tabs, no header."""
    from pslib.data.convert.convert import convert_criteo

    report = convert_criteo(source, out, overwrite=overwrite, rejects_max_share=rejects_max_share)
    return _shown(report, as_json)


@convert_command.command(
    "csv",
    examples="pslib convert csv clicks.csv clicks.parquet --label click --dense price --sparse user,item",
)
@file_options
@column_options
@click.option("--integers", metavar="NAMES", help="key columns to store as integers")
@click.option("--delimiter", default=",", metavar="C", help="one character, or tab (default: ,)")
def csv_command(
    source: str,
    out: str,
    overwrite: bool,
    rejects_max_share: float,
    as_json: bool,
    label: str,
    dense: str | None,
    sparse: str | None,
    integers: str | None,
    delimiter: str,
) -> int:
    """Convert comma-separated values whose first line names the columns."""
    from pslib.data.convert.convert import convert_csv

    report = convert_csv(
        source,
        out,
        label=label,
        dense=_names(dense),
        sparse=_names(sparse),
        integers=_names(integers) or (),
        delimiter={"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter),
        overwrite=overwrite,
        rejects_max_share=rejects_max_share,
    )
    return _shown(report, as_json)


@convert_command.command(
    "jsonl", examples="pslib convert jsonl events.jsonl.gz events.parquet --label clicked"
)
@file_options
@column_options
def jsonl_command(
    source: str,
    out: str,
    overwrite: bool,
    rejects_max_share: float,
    as_json: bool,
    label: str,
    dense: str | None,
    sparse: str | None,
) -> int:
    """Convert JSON lines: an object a line."""
    from pslib.data.convert.convert import convert_jsonl

    report = convert_jsonl(
        source,
        out,
        label=label,
        dense=_names(dense),
        sparse=_names(sparse),
        overwrite=overwrite,
        rejects_max_share=rejects_max_share,
    )
    return _shown(report, as_json)


@convert_command.command("libsvm", examples="pslib convert libsvm a9a.txt a9a.parquet")
@file_options
def libsvm_command(source: str, out: str, overwrite: bool, rejects_max_share: float, as_json: bool) -> int:
    """Convert lines of label index:value ..., as one list column of ids."""
    from pslib.data.convert.convert import convert_libsvm

    report = convert_libsvm(source, out, overwrite=overwrite, rejects_max_share=rejects_max_share)
    return _shown(report, as_json)


@convert_command.command("libffm", examples="pslib convert libffm ffm.txt ffm.parquet")
@file_options
def libffm_command(source: str, out: str, overwrite: bool, rejects_max_share: float, as_json: bool) -> int:
    """Convert lines of label field:index:value ..., as a column a field."""
    from pslib.data.convert.convert import convert_libffm

    report = convert_libffm(source, out, overwrite=overwrite, rejects_max_share=rejects_max_share)
    return _shown(report, as_json)


def _names(text: str | None) -> list[str] | None:
    """Split a text at its commas; None: not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _shown(report: ConvertReport, as_json: bool) -> int:
    from launch.job.schema_text import schema_yaml

    rejects = [{"line": record.line, "reason": record.reason} for record in report.first_rejects]
    plain = asdict(report) | {"first_rejects": rejects, "schema": report.schema.to_dict()}
    text = schema_yaml(report.schema).rstrip("\n")
    show(plain, [*report.lines(), "for the job file:", text], as_json)
    return EXIT_DONE
