"""``pslib forget``: erase rows of some keys from a running cluster and from checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.cli.command import FILE, FOLDER, argument, command, json_option, key_option, option, show
from pslib.errors import EXIT_DONE, CheckpointError, ConfigurationError
from pslib.text import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pslib.checkpoint import CheckpointInfo
    from pslib.schema import Schema


EXIT_LEFT = 1
ROUNDS = 3
"""Rounds of rewriting: a save in progress may add a checkpoint with the old rows."""


@command("forget", "pslib forget user=42 --table embedding --cluster runs/clicks --checkpoints runs/clicks")
@argument("keys", "[KEY]...", "FIELD=VALUE of the data, or a key itself (123 or 0x7b)", nargs=-1)
@option("--from", "FILE", "more of them, one a line", FILE, to="file")
@option("--table", "T", "the table; a model has one, embedding", required=True)
@option("--cluster", "WHERE", "a running cluster: its run's folder, or tcp://host:port", FOLDER)
@option("--cluster-id", "ID", "of the cluster at an address")
@key_option("an admin's or a trainer's key of it")
@option("--checkpoints", "DIR", "a checkpoint, or a folder of some", FOLDER, multiple=True)
@option("--config", "CONFIG", "a job file, for its schema (FIELD=VALUE)", FILE)
@json_option
def forget_command(
    keys: tuple[str, ...],
    file: str | None,
    table: str,
    cluster: str | None,
    cluster_id: str | None,
    key_file: str | None,
    checkpoints: tuple[str, ...],
    config: str | None,
    as_json: bool,
) -> int:
    """Take rows of some keys out of servers and checkpoints.

    Exit code 1: a place still may have the keys.
    """
    if not (cluster or checkpoints):
        raise ConfigurationError("forget where? give --cluster WHERE, --checkpoints DIR, or both")
    texts = [*keys, *_lines_of(file)]
    with_fields = any("=" in text for text in texts)
    found = keys_of_texts(texts, _schema(config, checkpoints, cluster) if with_fields else None)
    report: dict[str, Any] = {
        "keys": int(found.size),
        "servers": 0,
        "logs": 0,
        "checkpoints": [],
        "problems": [],
    }
    _check_table(table, checkpoints)
    if cluster:
        _erase_live(cluster, cluster_id, key_file, table, found, report)
    for folder in checkpoints:
        _forget_below(folder, table, found, report)
    show(report, _lines(report, cluster, checkpoints), as_json)
    return EXIT_LEFT if report["problems"] else EXIT_DONE


def _lines_of(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: expected a text file with a key a line: {error}") from error
    return [line.strip() for line in lines if line.strip()]


def _schema(config: str | None, checkpoints: Sequence[str], cluster: str | None) -> Schema:
    """Return the schema of the job file, else of the first checkpoint that has one, else of the named run."""
    from launch.job.job import read_job
    from pslib.checkpoint import list_checkpoints
    from pslib.schema import Schema

    if config:
        return read_job(config).data.schema
    for folder in checkpoints:
        for one in list_checkpoints(folder):
            if one.manifest is not None and "schema" in one.manifest.about:
                return Schema.from_dict(one.manifest.about["schema"])
    if cluster and (job := Path(cluster) / "job.yaml").is_file():
        return read_job(job).data.schema
    raise ConfigurationError(
        "FIELD=VALUE needs a schema: give --config CONFIG, the folder of a run of a job file as --cluster, "
        "or --checkpoints with a schema"
    )


def keys_of_texts(texts: Iterable[str], schema: Schema | None) -> NDArray[np.uint64]:
    """Return the ascending keys of ``FIELD=VALUE`` texts and of plain numbers.

    Numeric values are hashed as number and as text, since data may hold either.

    Raises
    ------
    ConfigurationError
        With all invalid texts, one line each.
    """
    import numpy as np

    problems: list[str] = []
    found: set[int] = set()
    for text in texts:
        field, equals, value = text.partition("=")
        made = _keys_of_value(field, value, schema) if equals else _key_itself(text)
        if isinstance(made, str):
            problems.append(made)
        else:
            found |= made
    if problems or not found:
        raise ConfigurationError(*(problems or ["forget what? give FIELD=VALUE, keys, or --from FILE"]))
    return np.array(sorted(found), np.uint64)


def _key_itself(text: str) -> set[int] | str:
    try:
        key = int(text, 0)
    except ValueError:
        key = -1
    return {key} if 0 <= key < 1 << 64 else f"{text}: expected FIELD=VALUE, or a key in 0..2^64-1"


def _keys_of_value(name: str, value: str, schema: Schema | None) -> set[int] | str:
    import pyarrow as pa

    from pslib.data.columns import keys_of
    from pslib.schema import RaggedField, SparseField

    known: list[SparseField | RaggedField] = [] if schema is None else [*schema.sparse, *schema.ragged]
    fields = {one.name: one for one in known}
    field = fields.get(name)
    if field is None:
        return f"{name}={value}: no such key column; there are {', '.join(fields) or 'none'}"
    if isinstance(field, SparseField) and (field.take or field.buckets or len(field.columns) > 1):
        return f"{name}={value}: {name} is made of other values, a row of it is no one's own; give keys"
    values = [pa.array([value])]
    whole = re.fullmatch(r"(-?\d+)(\.0*)?", value, re.ASCII)  # a column of doubles shows 7 as 7.0
    if whole and -(1 << 63) <= (number := int(whole[1])) < 1 << 64:
        values.append(pa.array([number], pa.uint64() if number >= 1 << 63 else pa.int64()))
    return {int(keys_of(one, field.salt)[0]) for one in values}


def _erase_live(
    cluster: str,
    cluster_id: str | None,
    key_file: str | None,
    table: str,
    keys: NDArray[np.uint64],
    report: dict[str, Any],
) -> None:
    """Erase rows of a running cluster, and from its logs."""
    from launch.supervisor.discovery import find_cluster
    from pslib.client.erase_all import erase_everywhere, trim_logs
    from pslib.clock import SystemClock
    from pslib.cluster import watch

    watcher, clock = watch(*find_cluster(cluster, cluster_id), key_file), SystemClock()
    try:
        about = watcher.status(details=True)

        def servers() -> list[dict[str, Any]]:
            members = watcher.status(details=True)["members"]
            return [one for one in members if one["role"] == "server" and one["state"] == "live"]

        def addresses() -> list[str]:
            return [one["address"] for one in servers()]

        bits = int(about["partition_bits"])
        report["servers"] = erase_everywhere(watcher.ask, addresses, table, keys, bits, clock)
        if about["durability"] != "memory":
            left = trim_logs(watcher.ask, servers, clock)
            report["logs"] = len(servers()) - len(left)
            report["problems"] += [f"the log of the server at {one} may still hold them" for one in left]
    finally:
        watcher.close()


def _check_table(table: str, checkpoints: Sequence[str]) -> None:
    """Refuse places without the table before anything is erased, so that no place is skipped in silence."""
    from pslib.checkpoint import list_checkpoints
    from pslib.suggestions import unknown_value

    tables: set[str] = set()
    for folder in checkpoints:
        found = list_checkpoints(folder)
        if not found:
            raise ConfigurationError(f"--checkpoints: expected checkpoints in {folder} or below it, got none")
        tables.update(str(plain["name"]) for one in found if one.manifest for plain in one.manifest.tables)
    if tables and table not in tables:
        raise ConfigurationError(unknown_value("--table", table, sorted(tables)))


def _forget_below(folder: str, table: str, keys: NDArray[np.uint64], report: dict[str, Any]) -> None:
    """Rewrite all checkpoints in and below a folder, until none holds the keys."""
    from pslib.checkpoint import forget_rows
    from pslib.storage import shown

    for _round in range(ROUNDS):
        holding = [one for one in _read_with(folder) if _may_hold(one.path, table, keys, report)]
        complete = [one for one in holding if one.state == "complete"]
        for one in complete:
            gone = forget_rows(one.path, table, keys)
            report["checkpoints"].append({"path": shown(gone.path), "rows": gone.rows, "files": gone.files})
        if not complete:
            break
    for one in holding:
        state = "was written meanwhile" if one.state == "complete" else f"is {one.state}"
        report["problems"].append(
            f"{shown(one.path)} {state} and holds them: remove it, or forget again when it is complete"
        )


def _read_with(folder: str) -> list[CheckpointInfo]:
    """Return the checkpoints in and below a folder, with the bases of increments, which loads read too.

    Bases come first: their keys are erased before an increment loses the record that the keys left.
    """
    from pslib.checkpoint import chain_of, list_checkpoints

    found = {one.path: one for one in list_checkpoints(folder)}
    for one in list(found.values()):
        for link in chain_of(one.path) if one.state == "complete" else ():
            if link.path not in found:
                found |= {before.path: before for before in list_checkpoints(link.path)}
    return [found[path] for path in sorted(found)]


def _may_hold(path: str, table: str, keys: NDArray[np.uint64], report: dict[str, Any]) -> bool:
    from pslib.checkpoint import held_rows

    try:
        return held_rows(path, table, keys) > 0
    except CheckpointError as error:
        if str(error) not in report["problems"]:
            report["problems"].append(str(error))
        return False


def _lines(report: dict[str, Any], cluster: str | None, checkpoints: Sequence[str]) -> list[str]:
    lines = []
    if cluster:
        logs = (
            f"; {counted(report['logs'], 'log holds', 'logs hold')} nothing from before"
            if report["logs"]
            else ""
        )
        erased = counted(report["keys"], "key is erased", "keys are erased")
        lines.append(f"{erased} on {counted(report['servers'], 'server')}{logs}")
    lines += [
        f"{one['path']}: {counted(one['rows'], 'row')} taken out, "
        f"{counted(one['files'], 'file')} written anew"
        for one in report["checkpoints"]
    ]
    if checkpoints and not report["problems"]:
        lines.append("no file of these checkpoints holds them any more")
    return lines + [f"problem: {one}" for one in report["problems"]]
