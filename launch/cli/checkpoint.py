"""``pslib checkpoint ls | verify | diff | export``: one function each, from arguments to exit code."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pslib.text import counted

if TYPE_CHECKING:
    from pslib.checkpoint import CheckpointInfo
    from pslib.checkpoint.diff import CheckpointDiff, TableDiff, ValueDiff

__all__ = ["add_checkpoint", "checkpoint_diff", "checkpoint_export", "checkpoint_ls", "checkpoint_verify"]


def add_checkpoint(commands: Any, command: Callable[[Any, str, str, str], argparse.ArgumentParser]) -> None:
    """Add the command and its actions; ``command`` makes a parser from (parsers, name, function, help)."""
    parser = commands.add_parser(
        "checkpoint", help="list, verify, compare or export checkpoints", description="Look into checkpoints."
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    where = "a checkpoint, or a folder whose newest numbered one is meant; s3://, gs:// and hdfs:// too"
    one = command(actions, "ls", "checkpoint_ls", "list the checkpoints in a folder and below it")
    one.add_argument("folder", metavar="FOLDER", help="a folder; s3://, gs:// and hdfs:// too")
    _add_json(one)
    one = command(
        actions,
        "verify",
        "checkpoint_verify",
        "read every byte; exit code 64 when one is not as it was written",
    )
    one.add_argument("path", metavar="PATH", help=where)
    _add_json(one)
    one = command(
        actions, "diff", "checkpoint_diff", "say which rows and dense parameters differ, and how far"
    )
    one.add_argument("a", metavar="A", help=where)
    one.add_argument("b", metavar="B", help="another")
    _add_json(one)
    one = command(actions, "export", "checkpoint_export", "write a file a table and server, for other tools")
    one.add_argument("path", metavar="PATH", help=where)
    one.add_argument("out", metavar="OUT", help="folder for the files")
    one.add_argument(
        "--parquet", action="store_true", required=True, help="as Parquet, the one format there is"
    )
    one.add_argument("--state", action="store_true", help="with the optimizers' numbers")
    one.add_argument(
        "--columns", action="store_true", help="a column a float (v_0, v_1, ...) in place of lists"
    )
    one.add_argument("--overwrite", action="store_true", help="replace files that exist")
    _add_json(one)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")


def checkpoint_ls(options: argparse.Namespace) -> int:
    """Run ``pslib checkpoint ls``."""
    from pslib.checkpoint import list_checkpoints

    found = list_checkpoints(options.folder)
    if options.json:
        _print_json({"checkpoints": [_info_plain(one) for one in found]})
    elif found:
        _print_table([HEADINGS, *(_info_cells(one) for one in found)])
        for one in found:
            if one.state == "damaged":
                print(f"damaged: {one.problem}")
    else:
        print(f"no checkpoints in {options.folder}")
    return 0


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


def checkpoint_verify(options: argparse.Namespace) -> int:
    """Run ``pslib checkpoint verify``."""
    from pslib.checkpoint import newest
    from pslib.checkpoint.folders import chain_of
    from pslib.checkpoint.verification import verify_checkpoint
    from pslib.errors import EXIT_DONE, CheckpointError
    from pslib.storage import shown

    path = newest(options.path)
    total = sum(entry.bytes for link in chain_of(path) for entry in link.manifest.files)
    with _bar("verify", total, "B") as progress:
        report = verify_checkpoint(path, progress)
    if options.json:
        _print_json(
            {
                "path": shown(path),
                "ok": report.ok,
                "files": report.files,
                "bytes": report.bytes,
                "tables": report.rows,
                "problems": list(report.problems),
            }
        )
    else:
        for problem in report.problems:
            print(problem)
        if report.ok:
            rows = ", ".join(f"{name} {counted(count, 'row')}" for name, count in report.rows.items())
            print(f"{shown(path)}: whole; {counted(report.files, 'file')}, {_size(report.bytes)}; {rows}")
    return EXIT_DONE if report.ok else CheckpointError.exit_code


def checkpoint_diff(options: argparse.Namespace) -> int:
    """Run ``pslib checkpoint diff``."""
    from pslib.checkpoint import newest, read_manifest
    from pslib.checkpoint.diff import diff_checkpoints

    a, b = newest(options.a), newest(options.b)
    rows = sum(
        entry.rows
        for path in (a, b)
        for entry in read_manifest(path).files
        if entry.table and entry.kind == "rows"
    )
    with _bar("compare", rows, " rows") as progress:
        found = diff_checkpoints(a, b, progress)
    if options.json:
        _print_json(_diff_plain(found))
    else:
        for line in _diff_lines(found):
            print(line)
    return 0


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
    """Convert differences for JSON: values that are not finite numbers become null."""
    plain = {"max_difference": values.max_difference, "mean_difference": values.mean_difference}
    finite = {name: value if math.isfinite(value) else None for name, value in plain.items()}
    return {"changed": values.changed, **finite}


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


def checkpoint_export(options: argparse.Namespace) -> int:
    """Run ``pslib checkpoint export --parquet``."""
    from pslib.checkpoint import newest, read_manifest
    from pslib.checkpoint.export import ExportOptions, export_parquet
    from pslib.storage import shown

    path = newest(options.path)
    files = read_manifest(path).files
    rows = sum(entry.rows for entry in files if entry.table and entry.kind == "rows")
    how = ExportOptions(options.state, options.columns, options.overwrite)
    with _bar("export", rows, " rows") as progress:
        written = [shown(one) for one in export_parquet(path, options.out, how, progress)]
    if options.json:
        _print_json({"path": shown(path), "rows": rows, "files": written})
    else:
        print(f"{counted(rows, 'row')} in {counted(len(written), 'file')}")
        for one in written:
            print(one)
    return 0


# --- text


def _print_json(plain: dict[str, Any]) -> None:
    print(json.dumps(plain, indent=1, allow_nan=False))


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


@contextmanager
def _bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Make a progress bar on a terminal; elsewhere None."""
    from tqdm import tqdm

    bar = tqdm(
        total=total, desc=what, unit=unit, unit_scale=True, leave=False, disable=not sys.stderr.isatty()
    )
    with bar:
        yield bar.update
