"""``pslib checkpoint ls | verify | diff``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from launch.cli.command import (
    FOLDER,
    argument,
    group,
    json_option,
    progress_bar,
    show,
)
from pslib.errors import EXIT_DONE
from pslib.text import counted

if TYPE_CHECKING:
    from pslib.checkpoint import CheckpointInfo
    from pslib.checkpoint.diff import CheckpointDiff, TableDiff, ValueDiff


WHERE = "a checkpoint, or a folder whose newest numbered one is meant; s3://, gs:// and hdfs:// too"
path_argument = argument("path", "PATH", WHERE, FOLDER)


@group("checkpoint", "pslib checkpoint verify runs/first/checkpoint")
def checkpoint_command() -> None:
    """List, verify or compare checkpoints."""


@checkpoint_command.command("ls", examples="pslib checkpoint ls runs")
@argument("folder", "FOLDER", "a folder; s3://, gs:// and hdfs:// too", FOLDER)
@json_option
def ls_command(folder: str, as_json: bool) -> int:
    """List the checkpoints in a folder and below it."""
    from pslib.checkpoint import list_checkpoints

    found = list_checkpoints(folder)
    lines = list(_aligned([HEADINGS, *map(_info_cells, found)])) if found else [f"no checkpoints in {folder}"]
    lines += [f"damaged: {one.problem}" for one in found if one.state == "damaged"]
    show({"checkpoints": [_info_plain(one) for one in found]}, lines, as_json)
    return EXIT_DONE


HEADINGS = ("saved (UTC)", "state", "model", "rows", "size", "servers", "format", "path")


def _info_plain(info: CheckpointInfo) -> dict[str, Any]:
    from pslib.storage import shown

    manifest = info.manifest
    plain = {"path": shown(info.path), "state": info.state, "bytes": info.bytes, "problem": info.problem}
    if manifest is None:
        return plain
    return plain | {
        "saved_utc": manifest.saved_utc,
        "model": manifest.about.get("model"),
        "epochs": manifest.about.get("epochs"),
        "steps": manifest.about.get("steps"),
        "tables": info.rows,
        "dense": manifest.dense.get("length", 0),
        "servers": manifest.servers,
        "follows": manifest.increment.get("of"),
        "format_version": manifest.format_version,
    }


def _info_cells(info: CheckpointInfo) -> tuple[str, ...]:
    plain = _info_plain(info)
    rows = ", ".join(f"{name} {count:,}" for name, count in info.rows.items())
    saved = str(plain.get("saved_utc", "")).removesuffix("+00:00").replace("T", " ")
    numbers = (str(plain.get(name, "")) for name in ("servers", "format_version"))
    return (
        saved,
        f"{info.state}, follows {plain['follows']}" if plain.get("follows") else info.state,
        str(plain.get("model") or ""),
        rows,
        _size(info.bytes),
        *numbers,
        plain["path"],
    )


@checkpoint_command.command("verify", examples="pslib checkpoint verify runs/first/checkpoint")
@path_argument
@json_option
def verify_command(path: str, as_json: bool) -> int:
    """Read every byte of a checkpoint; exit code 64 when one is not as it was written."""
    from pslib.checkpoint import newest
    from pslib.checkpoint.folders import chain_of
    from pslib.checkpoint.verification import verify_checkpoint
    from pslib.errors import CheckpointError
    from pslib.storage import shown

    path = newest(path)
    total = sum(entry.bytes for link in chain_of(path) for entry in link.manifest.files)
    with progress_bar("verify", total, "B") as progress:
        report = verify_checkpoint(path, progress)
    lines = list(report.problems)
    if report.ok:
        rows = ", ".join(f"{name} {counted(count, 'row')}" for name, count in report.rows.items())
        lines = [f"{shown(path)}: whole; {counted(report.files, 'file')}, {_size(report.bytes)}; {rows}"]
    plain = {
        "path": shown(path),
        "ok": report.ok,
        "files": report.files,
        "bytes": report.bytes,
        "tables": report.rows,
        "problems": list(report.problems),
    }
    show(plain, lines, as_json)
    return EXIT_DONE if report.ok else CheckpointError.exit_code


@checkpoint_command.command(
    "diff", examples="pslib checkpoint diff runs/first/checkpoint runs/second/checkpoint"
)
@argument("a", "A", WHERE, FOLDER)
@argument("b", "B", "another", FOLDER)
@json_option
def diff_command(a: str, b: str, as_json: bool) -> int:
    """Say which rows and dense parameters differ, and how far."""
    from pslib.checkpoint import newest
    from pslib.checkpoint.diff import diff_checkpoints

    a, b = newest(a), newest(b)
    with progress_bar("compare", _rows_of(a) + _rows_of(b), " rows") as progress:
        found = diff_checkpoints(a, b, progress)
    show(_diff_plain(found), _diff_lines(found), as_json)
    return EXIT_DONE


def _rows_of(path: str) -> int:
    """Count the stored rows of a checkpoint, those of increments included."""
    from pslib.checkpoint import read_manifest

    files = read_manifest(path).files
    return sum(entry.rows for entry in files if entry.table and entry.kind == "rows")


def _diff_plain(found: CheckpointDiff) -> dict[str, Any]:
    tables = {
        name: {
            "rows_only_a": one.only_a,
            "rows_only_b": one.only_b,
            "rows_both": one.both,
            "rows_changed": one.changed,
            "columns": {column: _values_plain(values) for column, values in one.columns.items()},
            "not_compared": one.not_compared,
        }
        for name, one in found.tables.items()
    }
    return {
        "equal": found.equal,
        "tables": tables,
        "tables_only_a": found.tables_only_a,
        "tables_only_b": found.tables_only_b,
        "dense_lengths": list(found.dense_lengths),
        "dense": None if found.dense is None else _values_plain(found.dense),
    }


def _values_plain(values: ValueDiff) -> dict[str, Any]:
    return {name: getattr(values, name) for name in ("changed", "max_difference", "mean_difference")}


def _diff_lines(found: CheckpointDiff) -> Iterator[str]:
    for which, names in (("A", found.tables_only_a), ("B", found.tables_only_b)):
        yield from (f"table {name}: only in {which}" for name in names)
    for name, one in found.tables.items():
        yield from _table_lines(name, one)
    lengths = found.dense_lengths
    if found.dense is None:
        yield f"dense: {lengths[0]:,} parameters in A, {lengths[1]:,} in B: not compared"
    elif lengths[0]:
        yield f"dense: {found.dense.changed:,} of {lengths[0]:,} changed{_how_far(found.dense)}"
    yield "equal" if found.equal else "different"


def _table_lines(name: str, one: TableDiff) -> Iterator[str]:
    yield (
        f"table {name}: {counted(one.only_a, 'row')} only in A, {one.only_b:,} only in B, "
        f"{one.changed:,} of {one.both:,} changed"
    )
    for column, values in one.columns.items():
        if values.changed:
            yield f"  {column}: {counted(values.changed, 'row')} changed{_how_far(values)}"
    yield from (f"  not compared: {problem}" for problem in one.not_compared)


def _how_far(values: ValueDiff) -> str:
    if not values.changed:
        return ""
    return f", |difference| up to {values.max_difference:.6g}, {values.mean_difference:.6g} on average"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Return the lines of a table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
