"""``pslib describe`` and ``pslib data``: look at data, or make some."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from launch.cli.command import (
    FILE,
    FOLDER,
    argument,
    command,
    flag,
    group,
    json_option,
    option,
    overrides_option,
    overwrite_option,
    progress_bar,
    show,
)
from pslib.errors import EXIT_DONE, ConfigurationError

if TYPE_CHECKING:
    from pslib.data.inspect.check import CheckReport


files_argument = argument("files", "FILE...", "files, folders or patterns", FILE, nargs=-1, required=True)


@command("describe", "pslib describe clicks/train --label clicked --out clicks.yaml")
@files_argument
@option("--label", "NAME", "column of 0 and 1 (default: label, click or the only)")
@option("--out", "CONFIG", "write a job file to train them")
@option(
    "--test-share",
    "SHARE",
    "of the rows, held out to evaluate: the last by a column of times; 0: none (default 0.1)",
    click.FloatRange(0, 0.99),
    default=0.1,
)
@flag("--overwrite", "replace CONFIG where it exists")
@json_option
def describe_command(
    files: tuple[str, ...],
    label: str | None,
    out: str | None,
    test_share: float,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Say what is in data files, and propose a schema."""
    from launch.job.first_job import data_yaml, first_job
    from launch.job.sections import TrainingSection
    from pslib.data.atomic_files import atomic_output
    from pslib.data.inspect.describe import describe
    from pslib.data.inspect.small_data import few_steps
    from pslib.text import as_cell, as_line

    if out is not None:
        _check_out(out, overwrite)
    with progress_bar("describe", None, " values") as progress:
        found = describe(list(files), label, test_share=test_share, progress=progress)
    if out is not None:
        with atomic_output(Path(out)) as draft:
            draft.write_text(first_job(found, files, Path(out)), encoding="utf-8")
    choices = [asdict(choice) for choice in found.choices]
    notes = {"warning": found.leaks(), "note": found.cut_off()}
    usual, of_clicks = TrainingSection(), bool(found.schema.labels)
    few = few_steps(found.split.train_rows, usual.batch_rows, usual.epochs, of_clicks=of_clicks)
    *lines, problems = found.report.lines()
    lines.append("proposed:")
    names = [as_cell(choice.name) for choice in found.choices]
    width = max(map(len, names))
    lines += [
        as_line(f"  {name.ljust(width)}  {one.role or 'left out':8}  {one.reason}")
        for name, one in zip(names, found.choices, strict=True)
    ]
    told = [*notes.items(), ("warning", found.near_leaks()), ("warning", found.float_ids())]
    told += [("test", found.held_out()), ("warning", None if out else few)]
    lines += [as_line(f"{kind}: {text}") for kind, text in told if text]
    if out is None:
        lines += ["for the job file:", data_yaml(found).rstrip("\n")]
    else:
        lines.append(f"a job file is in {out}: pslib train {out}")
    plain = {"choices": choices, **notes, "schema": found.schema.to_dict(), "job_file": out}
    plain |= {"few_steps": few, "split": asdict(found.split)}
    show(_plain(found.report) | plain, [*lines, problems], as_json)
    return EXIT_DONE


def _check_out(out: str, overwrite: bool) -> None:
    """Refuse an unusable output file before all data is read."""
    from pslib.data.atomic_files import refuse_existing
    from pslib.storage import unwritable

    refuse_existing(Path(out), overwrite=overwrite)
    if why := unwritable(Path(out).parent):
        in_the_way = next((one for one in Path(out).parents if os.path.isfile(one)), None)
        why = f"{in_the_way} is a file, not a folder" if in_the_way else why
        raise ConfigurationError(f"--out: {out} can't be written: {why}; give another")


def _plain(report: CheckReport) -> dict[str, Any]:
    return {"ok": report.ok, "rows": report.rows, "label_rate": report.label_rate, **asdict(report)}


@group("data", "pslib data check clicks.parquet --config clicks.yaml")
def data_command() -> None:
    """Look at data, or make some."""


@data_command.command("check", examples="pslib data check clicks.parquet --config clicks.yaml")
@files_argument
@option("--config", "CONFIG", "a job file, for its schema", FILE)
@overrides_option
@json_option
def check_command(
    files: tuple[str, ...], config: str | None, overrides: tuple[str, ...], as_json: bool
) -> int:
    """Say what is in data files, and the first bad value."""
    from launch.job.job import read_job
    from launch.job.preflight import kinds_of_job, schema_for
    from pslib.data.inspect.check import check
    from pslib.errors import DataError

    schema, key_kinds = None, None
    if config:
        job = read_job(config, overrides)
        schema, key_kinds = schema_for(job, list(files)), kinds_of_job(job)
    with progress_bar("check", None, " values") as progress:
        report = check(list(files), schema, key_kinds=key_kinds, progress=progress)
    if not report.files:
        raise DataError(*report.problems)
    show(_plain(report), report.lines(), as_json)
    return EXIT_DONE if report.ok else DataError.exit_code


@data_command.command("generate", examples="pslib data generate generated --rows 400000")
@argument("out", "DIR", "folder for train.parquet and test.parquet", FOLDER)
@option("--rows", "N", "to train on (default 400,000)", int, default=400_000)
@option("--test-rows", "N", "to test on (default 100,000)", int, default=100_000)
@option("--seed", "N", "the same seed, the same data (default 1)", int, default=1)
@overwrite_option
@json_option
def generate_command(out: str, rows: int, test_rows: int, seed: int, overwrite: bool, as_json: bool) -> int:
    """Make click data whose best possible AUC is known."""
    from launch.job.sections import schema_yaml
    from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema

    config = GeneratorConfig(train_rows=rows, test_rows=test_rows, seed=seed)
    made = generate(out, config, overwrite=overwrite)
    schema = generated_schema(config)
    lines = [*made.lines(), "for the job file:", schema_yaml(schema).rstrip("\n")]
    show(asdict(made) | {"schema": schema.to_dict()}, lines, as_json)
    return EXIT_DONE
