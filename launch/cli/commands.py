"""Commands of ``pslib``: one function each, from parsed arguments to exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from math import isnan
from pathlib import Path

__all__ = [
    "calibrate",
    "config_page",
    "config_schema",
    "config_show",
    "convert",
    "data_check",
    "data_generate",
    "demo",
    "describe",
    "doctor",
    "evaluate",
    "forget",
    "keys",
    "launch",
    "plan",
    "recommend",
    "scale",
    "server",
    "train",
    "vectors",
    "verify",
    "version",
]


def _changes(options: argparse.Namespace) -> dict[str, object]:
    """Convert options to settings of the job file."""
    from launch.job.paths import literal

    changes: dict[str, object] = {}
    for name in ("servers", "trainers"):
        if getattr(options, name, None) is not None:
            changes[f"cluster.{name}"] = getattr(options, name)
    if getattr(options, "out", None) is not None:
        # Given on the command line, hence relative to the current folder.
        changes["out"] = literal(str(Path(options.out).resolve()))
    return changes


def train(options: argparse.Namespace) -> int:
    """Run ``pslib train``."""
    from launch.job.job import read_job
    from launch.places.options import hosts_of
    from launch.runs.train import run_job
    from pslib.storage import check_local

    check_local("out", options.out)
    hosts, changes = hosts_of(options), _changes(options)
    if hosts:
        changes |= {f"cluster.{role}s": hosts.count(role) for role in ("server", "trainer")}
    return run_job(
        read_job(options.config, options.overrides, changes),
        overwrite=options.overwrite,
        progress=not options.quiet,
        port=options.port,
        keys=options.keys,
        resume=options.resume,
        hosts=hosts,
        tensorboard=options.tensorboard,
    )


def evaluate(options: argparse.Namespace) -> int:
    """Run ``pslib eval``."""
    from launch.job.job import read_job
    from launch.worker.train_job import evaluate_checkpoint
    from pslib.metrics.ranking import RankResult

    job = read_job(options.config, options.overrides, _changes(options))
    result = evaluate_checkpoint(job, options.checkpoint, options.data, options.predictions, options.label)
    if isinstance(result, RankResult):
        print(f"examples    {result.examples:,}")
        for k in result.recall:
            print(
                f"at {k:<8} Recall {result.recall[k]:.6f}, MRR {result.mrr[k]:.6f}, NDCG {result.ndcg[k]:.6f}"
            )
        return 0
    if options.predictions and isnan(result.logloss):  # no label
        print(f"examples    {result.examples:,}, without a label: no figures")
        return 0
    print(f"examples    {result.examples:,} ({result.positives:,} positive)")
    one_sided = result.positives in (0, result.examples)
    why = f"- (every label is {int(result.positives > 0)}: no pair to put in order)"
    print(f"AUC         {why if one_sided else f'{result.auc:.6f}'}")
    print(f"log loss    {result.logloss:.6f}")
    print(f"calibration {f'{result.calibration:.4f}' if result.positives else '-'}")
    return 0


def recommend(options: argparse.Namespace) -> int:
    """Run ``pslib recommend``."""
    from launch.job.job import read_job
    from launch.worker.train_job import recommend_items

    job = read_job(options.config, options.overrides, _changes(options))
    recommend_items(job, options.checkpoint, options.data, options.out, options.k, options.approximate)
    print(options.out)
    return 0


def vectors(options: argparse.Namespace) -> int:
    """Run ``pslib vectors``."""
    from launch.job.job import read_job
    from launch.worker.train_job import write_vectors

    job = read_job(options.config, options.overrides, _changes(options))
    write_vectors(job, options.checkpoint, options.data, options.out, options.side)
    print(options.out)
    return 0


def launch(options: argparse.Namespace) -> int:
    """Run ``pslib launch``."""
    from launch.runs.script import run_script

    return run_script(options)


def demo(options: argparse.Namespace) -> int:
    """Run ``pslib demo``."""
    from launch.runs.demo import run_demo
    from pslib.storage import check_local

    check_local("out", options.out)
    return run_demo(Path(options.out), progress=not options.quiet)


def keys(options: argparse.Namespace) -> int:
    """Run ``pslib keys``."""
    from launch.places.keys import run_keys

    return run_keys(options)


def doctor(options: argparse.Namespace) -> int:
    """Run ``pslib doctor``."""
    from launch.cli.doctor import run_doctor

    return run_doctor(options)


def verify(options: argparse.Namespace) -> int:
    """Run ``pslib verify``."""
    from launch.runs.verify import run_verify

    return run_verify(options)


def forget(options: argparse.Namespace) -> int:
    """Run ``pslib forget``."""
    from launch.cli.forget import run_forget

    return run_forget(options)


def scale(options: argparse.Namespace) -> int:
    """Run ``pslib scale``."""
    from launch.cli.scale import run_scale

    return run_scale(options)


def server(options: argparse.Namespace) -> int:
    """Run ``pslib server``."""
    from launch.cli.scale import run_server_by_hand

    return run_server_by_hand(options)


def plan(options: argparse.Namespace) -> int:
    """Run ``pslib plan``."""
    from launch.cli.plan import run_plan

    return run_plan(options)


def calibrate(options: argparse.Namespace) -> int:
    """Run ``pslib bench calibrate``."""
    from launch.calibration.calibrate import run_calibrate

    return run_calibrate(options)


def convert(options: argparse.Namespace) -> int:
    """Run ``pslib convert``."""
    from launch.job.schema_text import schema_yaml
    from pslib.data.convert import convert as converters

    settings = {"overwrite": options.overwrite, "rejects_max_share": options.rejects_max_share}
    if options.format in ("csv", "jsonl"):
        settings |= {"label": options.label, "dense": options.dense, "sparse": options.sparse}
    if options.format == "csv":
        settings["integers"] = options.integers or ()
        settings["delimiter"] = {"tab": "\t", "\\t": "\t"}.get(options.delimiter, options.delimiter)
    report = getattr(converters, f"convert_{options.format}")(options.source, options.out, **settings)
    for line in report.lines():
        print(line)
    print("for the job file:")
    print(schema_yaml(report.schema), end="")
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Run ``pslib data check``."""
    from launch.job.id_types import kinds_of_job
    from launch.job.job import read_job
    from pslib.data.inspect.check import check
    from pslib.errors import EXIT_DONE, DataError

    if options.config:
        job = read_job(options.config, options.overrides)
        report = check(options.files, job.schema_of_data, key_kinds=kinds_of_job(job))
    else:
        report = check(options.files)
    if not report.files:
        raise DataError(*report.problems)
    for line in report.lines():
        print(line)
    return EXIT_DONE if report.ok else DataError.exit_code


def describe(options: argparse.Namespace) -> int:
    """Run ``pslib describe``."""
    from launch.job.paths import near
    from launch.job.schema_text import schema_yaml
    from launch.job.yaml12 import flow_text
    from pslib.data.atomic_files import atomic_output, refuse_existing
    from pslib.data.inspect.describe import describe as described
    from pslib.errors import ConfigurationError
    from pslib.storage import unwritable

    if options.out is not None:  # refuse an unusable output file before all data is read
        refuse_existing(Path(options.out), overwrite=options.overwrite)
        if why := unwritable(Path(options.out).parent):
            in_the_way = next((one for one in Path(options.out).parents if os.path.isfile(one)), None)
            why = f"{in_the_way} is a file, not a folder" if in_the_way else why
            raise ConfigurationError(f"--out: {options.out} can't be written: {why}; give another")
    found = described(options.files, options.label)
    for line in found.report.lines():
        print(line)
    print("proposed:")
    width = max(len(choice.name) for choice in found.choices)
    for choice in found.choices:
        print(f"  {choice.name.ljust(width)}  {choice.role or 'left out':8}  {choice.reason}")
    if leaks := found.leaks():
        print(f"warning: {leaks}")
    if cut_off := found.cut_off():
        print(f"note: {cut_off}")
    text = schema_yaml(found.schema)
    if options.out is None:
        print("for the job file:")
        print(text, end="")
        return 0
    out = Path(options.out)
    files = [near(one, out.parent) for one in options.files]
    model = "deepfm" if found.schema.labels else "gru4rec"
    with atomic_output(out) as draft:
        runs = f"runs/{out.stem}"
        data = f"data:\n  train: {flow_text(files)}\n  # test: PATH   is evaluated after the training\n"
        draft.write_text(f"{data}{text}model: {{name: {model}}}\nout: {runs}\n", encoding="utf-8")
    print(f"a job file is in {options.out}: pslib train {options.out}")
    return 0


def data_generate(options: argparse.Namespace) -> int:
    """Run ``pslib data generate``."""
    from launch.job.schema_text import schema_yaml
    from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema

    config = GeneratorConfig(train_rows=options.rows, test_rows=options.test_rows, seed=options.seed)
    for line in generate(options.out, config, overwrite=options.overwrite).lines():
        print(line)
    print("for the job file:")
    print(schema_yaml(generated_schema(config)), end="")
    return 0


def config_schema(options: argparse.Namespace) -> int:
    """``pslib config schema``."""
    from launch.job.settings_reference import job_schema

    print(json.dumps(job_schema(), indent=2, allow_nan=False))
    return 0


def config_page(options: argparse.Namespace) -> int:
    """``pslib config page``."""
    from launch.job.settings_reference import settings_page

    print(settings_page(), end="")
    return 0


def config_show(options: argparse.Namespace) -> int:
    """``pslib config show``."""
    from launch.job.settings_reference import settings_text

    print(settings_text(options.setting), end="")
    return 0


def version(options: argparse.Namespace) -> int:
    """Run ``pslib version``."""
    from pslib import __version__

    print(f"pslib {__version__}, Python {sys.version.split()[0]}")
    return 0
