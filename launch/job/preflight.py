"""Checks before any process starts, so that bad input costs nothing and changes nothing."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from launch.job.job import Job, saved_place
from launch.job.model import ranks_items
from pslib.errors import CheckpointError, ConfigurationError, DataError, PslibError
from pslib.process.machine import memory_bytes, physical_bytes
from pslib.process.platform import PORTS_CAN_BE_HELD
from pslib.storage import check_local, is_uri, real_place, unwritable
from pslib.suggestions import nearest_path
from rec_models import SESSION_MODELS

if TYPE_CHECKING:
    from pslib.data.column_types import KeyKinds
    from pslib.data.dataset import ParquetData
    from pslib.schema import Schema
    from pslib.table.optimizers import Optimizer
    from rec_models import Model


RUN_FILES = (
    *("job.yaml", "metrics.jsonl", "metrics-[0-9]*.jsonl", "summary.json", "run.png", "logs", "log"),
    *("tensorboard", "checkpoint", "checkpoint-unfinished", "best"),
)
"""Patterns of the files of a run in its folder, which ``--overwrite`` removes; other files are the user's.

All are removed, since ``--resume`` of the new run would start from an old checkpoint.
"""


def check_data(job: Job) -> int | None:
    """Check all data of a job: files, columns, types, and the labels of the first rows of each file.

    Returns
    -------
    int or None
        Rows to train on, without those that are held out; None for a stream.

    Raises
    ------
    DataError
        With all problems, one line each.
    """
    problems: dict[str, None] = {}
    data: ParquetData | None = None
    key_kinds = kinds_of_load(job)
    schema = job.data.schema
    asked = schema_asked(job) if job.data.valid or job.data.test or job.data.test_share else schema
    if job.data.stream:
        from pslib.data.file_watch import FileWatch

        FileWatch(job.data.train[0], job.data.stream)  # checks that the folder exists
    train = None if job.data.stream else job.data.train  # its files are checked on arrival
    found = (
        (train, schema),
        (train if job.data.test_share else None, asked),
        (job.data.valid, asked),
        (job.data.test, asked),
        (job.data.items, _schema_of_items(job)),
    )
    for paths, columns in found:
        if paths:
            opened, lines = _opened(columns, paths, key_kinds)
            problems |= dict.fromkeys(lines)
            data = data or opened  # that of train
    if problems:
        raise DataError(*problems)
    if data is None or train is None:
        return None
    return job.parts[0].of(data).rows if job.parts else data.rows


def schema_asked(job: Job) -> Schema:
    """Return the schema of data to evaluate.

    Raises
    ------
    ConfigurationError
        When no setting names the column of the target item.
    """
    if not ranks_items(job.model.name):
        return job.data.schema
    from pslib.trainer.retrieval.towers import sides_of

    sides, how = sides_of(job.build_model()), job.ranked
    return sides.example_schema(how.history, [sides.goal(how.target)])


def schema_for(job: Job, paths: Sequence[str]) -> Schema:
    """Return the schema by which a job reads these files, by the setting that names one of them.

    Files that no setting names are read as training data, unless they lack its columns and have those that a
    ranking asks for.
    """

    def names_one(setting: Iterable[str] | None) -> bool:
        return not {real_place(path) for path in paths}.isdisjoint(map(real_place, setting or ()))

    if not ranks_items(job.model.name) or names_one(job.data.train):
        return job.data.schema
    if names_one([*(job.data.valid or ()), *(job.data.test or ())]):
        return schema_asked(job)
    if names_one(job.data.items):
        return _schema_of_items(job)
    names = _names_in(paths)
    schemas = (job.data.schema, schema_asked(job), _schema_of_items(job))
    return next((schema for schema in schemas if names.issuperset(schema.columns)), job.data.schema)


def _names_in(paths: Sequence[str]) -> set[str]:
    """Return the columns of the first of some files; empty if it can't be read, which the check reports."""
    from pslib.data.data_files import data_files
    from pslib.data.dataset import open_parquet
    from pslib.data.parquet_files import UNREADABLE

    try:
        with open_parquet(data_files(paths[0]).files[0]) as opened:
            return set(opened.schema_arrow.names)
    except (*UNREADABLE, IndexError):
        return set()


def _schema_of_items(job: Job) -> Schema:
    """Return the schema of ranked items; items of session models are read from sessions."""
    if not ranks_items(job.model.name) or job.model.name in SESSION_MODELS:
        return job.data.schema
    from pslib.trainer.retrieval.towers import sides_of

    return sides_of(job.build_model()).item_schema


def _opened(
    schema: Schema, paths: list[str], key_kinds: KeyKinds
) -> tuple[ParquetData | None, Sequence[str]]:
    """Open data, and return its problems."""
    from pslib.data.data_files import data_files
    from pslib.data.dataset import ParquetData

    try:
        data = ParquetData(data_files(paths), schema, key_kinds=key_kinds)  # trainers tell what is left out
    except DataError as error:
        return None, error.problems
    return data, _label_problems(data)


def _label_problems(data: ParquetData) -> list[str]:
    """Return the first label other than 0 or 1 of each file's first row group; training checks the rest.

    Of one row all columns are read: what no reader can decode (encrypted, say) is alike in all files.
    """
    import pyarrow as pa

    from pslib.data.dataset import open_parquet
    from pslib.data.parquet_files import SCAN_ROWS, about_each, group_batches
    from pslib.data.value_checks import LABEL, first_problem
    from pslib.data.window import unreadable

    names, columns = list(data.schema.labels), list(data.schema.columns)
    one = next(group for group in data.row_groups if group.rows)
    try:
        with open_parquet(one.file) as opened:
            next(group_batches(opened, one.row_group, columns, 1))
    except (OSError, pa.ArrowException) as error:
        return [unreadable(one, columns, error)]

    def first(file: str) -> list[str | None]:
        try:
            with open_parquet(file) as opened:
                table = pa.Table.from_batches(group_batches(opened, 0, names, SCAN_ROWS))
        except (OSError, pa.ArrowException) as error:
            return [unreadable(groups[file], names, error)]
        batch = data.casts.batch(*table.combine_chunks().to_batches())
        return [first_problem(batch.column(name), LABEL, file, 0, 0, name) for name in names]

    found = data.row_groups if names else ()
    groups = {group.file: group for group in found if group.rows and not group.row_group}
    return [problem for some in about_each(list(groups), first) for problem in some if problem]


def check_load(job: Job) -> None:
    """Check that the initial checkpoint exists, will not be overwritten, and is of this model.

    Raises
    ------
    CheckpointError
        When it does not exist, or `check_content` refuses it.
    ConfigurationError
        When it is in the run's own folder.
    """
    if job.load is None:
        return
    path = job.load.path
    if not is_uri(path) and Path(path).resolve().is_relative_to(Path(job.out).resolve()):
        raise ConfigurationError(
            f"load.path: {path} lies in {job.out}, where this run puts its own files: give another out"
        )
    if not is_uri(path) and not Path(path).is_dir():
        raise CheckpointError(
            f"load.path: no such folder: {path}; expected a checkpoint, or a folder of them"
        )
    check_content(job)


def check_content(job: Job) -> None:
    """Check that the initial checkpoint of the training is of this model.

    Raises
    ------
    CheckpointError
        When its manifest can't be read, or it holds other tables or parameters, or those of another model.
    """
    from pslib.checkpoint import LoadOptions, check_fits, check_model, newest, read_manifest
    from pslib.table.tables import DenseSpec
    from pslib.trainer.checkpoints.save_load import description_of
    from pslib.trainer.pipeline.dense import DenseLayout

    if job.load is None:
        return
    path, tables = job.load.path, job.load.tables
    place, model = newest(path), job.build_model()
    table = job.table_of(model)
    layout, manifest = DenseLayout(model.dense_shapes()), read_manifest(place)
    dense = DenseSpec(layout.length, job.optimizers.dense)
    options = LoadOptions(job.load.state, tables)
    check_fits(manifest, place, {table.name: table}, dense, options)
    if options.all and not job.load.other_model:
        check_model(manifest, place, description_of(model, table, layout))


def check_save(job: Job) -> None:
    """Check before the training that a checkpoint can be written to the path in the job file.

    Folders made for the trial are removed.

    Raises
    ------
    ConfigurationError
        When the folder or a file in it can't be created.
    """
    if not job.checkpoint.path or is_uri(job.checkpoint.path):
        return
    _check_folder("checkpoint.path", job.checkpoint.path)


def check_log(name: str, folder: str | None, resume: bool) -> None:
    """Check that logs can be written to a folder of this machine, like `check_save`.

    Parameters
    ----------
    name : str
        Name of the setting, for the message.
    folder : str or None
        None: the folder of the run, which `prepare_out` checks.
    resume : bool
        True if an earlier run resumes from its logs there.

    Raises
    ------
    ConfigurationError
        When the folder or a file in it can't be created, or it holds logs of another run.
    """
    if not folder:
        return
    _check_folder(name, folder)
    if not resume and (left := _logs_in(Path(folder))):
        raise ConfigurationError(
            f"{name}: {folder} holds the logs of an earlier run ({left}): give another folder, remove "
            "them, or go on with that run by --resume"
        )


def _logs_in(folder: Path) -> str | None:
    """Return a process with logs in a folder; a process that has only started has none."""
    from pslib.update_log.files import LOCK, NUMBER

    for one in (folder / "coordinator", *sorted(folder.glob("server-*"))):
        if one.is_dir() and {file.name for file in one.iterdir()} - {LOCK, NUMBER}:
            return one.name
    return None


def _check_folder(name: str, folder: str) -> None:
    if why := unwritable(Path(folder)):
        raise ConfigurationError(
            f"{name}: {folder} can't be written to: {why}; give another, or leave it out"
        )


def check_seen(job: Job, not_seeing: Callable[[str], list[str]]) -> None:
    """Check that all hosts of a run see the folders into which its processes write.

    Servers write their parts of a checkpoint on their hosts, and a checkpoint must be in one folder.

    Parameters
    ----------
    job : Job
    not_seeing : callable
        Returns names of the hosts on which a path does not exist.

    Raises
    ------
    ConfigurationError
        When a host does not see a file written by this machine.
    """
    for name, folder in (("out", job.out), ("checkpoint.path", job.checkpoint.path)):
        if not folder or is_uri(folder):
            continue
        there = next(one for one in (Path(folder), *Path(folder).parents) if one.is_dir())
        try:
            with tempfile.NamedTemporaryFile(dir=there, prefix=".pslib-seen-") as seen:
                blind = not_seeing(seen.name)
        except OSError as error:
            raise ConfigurationError(f"{name}: {there} can't be written to: {error.strerror}") from error
        if blind:
            raise ConfigurationError(
                f"{name}: {folder} is not the same folder on {', '.join(blind)}: all hosts must share it "
                "(NFS or the like)"
            )


def hold_port(port: int = 0) -> int:
    """Reserve a loopback port for this process's cluster until the process ends; 0 is any.

    A restarted coordinator must have its old address. Meanwhile the kernel would give the port to any process
    that asks for a free one. A bound socket prevents this; it does not listen and has SO_REUSEADDR, so that
    the coordinator can listen. Where it could not, the port is chosen and left free.

    Raises
    ------
    ConfigurationError
        When another process listens there.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"--port: can't listen at 127.0.0.1:{port}: {error.strerror}; choose another, or none"
            ) from error
        port = held.getsockname()[1]
        if PORTS_CAN_BE_HELD:
            held.detach()  # open until this process ends
    return port


_held: dict[str, int] = {}
"""Folders of this process's runs, open and locked until the process ends in any way."""


def hold_out(folder: Path, resume: bool) -> None:
    """Lock a run's folder until this process ends; some file systems have no such locks.

    Raises
    ------
    ConfigurationError
        When a run in it is still running.
    """
    name = str(folder.resolve())
    if name in _held:
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise ConfigurationError(
            f"--resume: the run in {folder} goes on: wait for it, or end it first; pslib doctor "
            f"{quote(str(folder))} tells how it goes"
            if resume
            else f"out: a run goes on in {folder}: end it, or give another --out"
        ) from None
    except OSError:
        os.close(opened)
    else:
        _held[name] = opened


def let_out_go(folder: Path, made: Sequence[Path]) -> None:
    """Remove the folders ``made`` for a run that has left nothing there, and its lock with them."""
    for one in made:
        with suppress(OSError):  # something is in it
            one.rmdir()
    if not folder.exists() and (opened := _held.pop(str(folder.resolve()), None)) is not None:
        os.close(opened)


def is_held(folder: Path) -> bool:
    """Return whether a run of another process goes on in a folder."""
    if str(folder.resolve()) in _held:
        return False
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: another look must not seem a run
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system
        return False
    finally:
        os.close(opened)
    return False


def prepare_out(out: str | Path, overwrite: bool, resume: bool = False) -> Path:
    """Create the folder of a run.

    Parameters
    ----------
    out : path
    overwrite : bool
        True to remove the files of an earlier run (`RUN_FILES`); other files always stay.
    resume : bool
        True if the earlier run resumes: all its files stay.

    Raises
    ------
    ConfigurationError
        When the folder can't be created or written to, or holds an earlier or a running run.
    """
    check_local("out", out)
    folder = Path(out)
    if resume and not folder.exists():  # a mistyped path is not created
        near = nearest_path(str(out))
        mended = f"did you mean {near}?" if near else "give --out with that of the run"
        raise ConfigurationError(f"--resume: {folder}: no such folder; {mended}")
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # records quote data and settings
    except (OSError, ValueError) as error:  # the latter for a zero byte
        why = "it is a file" if os.path.isfile(folder) else getattr(error, "strerror", None) or error
        raise ConfigurationError(f"out: {folder} can't be made: {why}; give another --out") from error
    if why := unwritable(folder):
        raise ConfigurationError(f"out: {folder} can't be written to: {why}; give another --out")
    hold_out(folder, resume)
    if resume:
        return folder
    earlier = [path for name in RUN_FILES for path in sorted(folder.glob(name))]
    if earlier and not overwrite:
        raise ConfigurationError(
            f"out: {folder} holds an earlier run ({earlier[0].name}): give another --out, or --overwrite"
        )
    try:
        for path in earlier:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (folder / "logs").mkdir(0o700)
    except OSError as error:
        raise ConfigurationError(f"out: {error.filename} can't be replaced: {error.strerror}") from error
    return folder


def kinds_in(checkpoint: str) -> KeyKinds:
    """Return the types recorded in a checkpoint; empty if absent or unreadable, which its load reports."""
    from pslib.checkpoint import newest, read_manifest
    from pslib.data.column_types import kinds_of

    with suppress(PslibError):
        place = newest(checkpoint)
        return kinds_of(read_manifest(place).about, place)
    return {}


def kinds_of_load(job: Job) -> KeyKinds:
    """Return the types of the initial rows of a training; empty if these may be of another model."""
    return {} if job.load is None or job.load.other_model else kinds_in(job.load.path)


def kinds_of_job(job: Job) -> KeyKinds:
    """Return the types of a job's training data or, if it is missing, of the job file's checkpoints."""
    return _kinds_of_data(job) or kinds_in(saved_place(job)) or kinds_of_load(job)


def check_like_training(job: Job, checkpoint: str, paths: Sequence[str], schema: Schema) -> None:
    """Compare data with the job's training data, if a checkpoint of an earlier pslib records no types.

    Raises
    ------
    DataError
        When keys of these files are made of strings and those of the training of integers, or vice versa.
    """
    from pslib.data.data_files import data_files
    from pslib.data.dataset import ParquetData

    kinds = {} if kinds_in(checkpoint) else _kinds_of_data(job)
    if kinds:
        ParquetData(data_files(paths), _keys_of(schema), key_kinds=kinds)


def _kinds_of_data(job: Job) -> KeyKinds:
    from pslib.data.data_files import data_files
    from pslib.data.dataset import ParquetData

    kinds: KeyKinds = {}
    schema = job.data.schema
    if schema.sparse or schema.ragged:  # a model of dense columns alone has no keys
        with suppress(DataError):  # it may be on another machine, or deleted
            ParquetData(data_files(job.data.train), _keys_of(schema), key_kinds=kinds)
    return kinds


def _keys_of(schema: Schema) -> Schema:
    from pslib.schema import Schema

    return Schema(label=None, sparse=schema.sparse, ragged=schema.ragged)


def check_memory(
    model: Model, optimizer: Optimizer, trainers: int, servers: int, room_bytes: int | None = None
) -> None:
    """Check that the dense parameters of a run on this machine alone fit into its memory.

    The estimate is a lower bound: parameters and their gradient in each trainer, and on all servers together
    parameters and optimizer state. Rows and activations come on top.

    Parameters
    ----------
    model : Model
    optimizer : Optimizer
        Optimizer of the dense parameters.
    trainers, servers : int
    room_bytes : int, optional
        Available memory; default: that of this machine or its container.

    Raises
    ------
    ConfigurationError
        When they do not fit.
    """
    from pslib.trainer.pipeline.dense import DenseLayout

    layout = DenseLayout(model.dense_shapes())
    room = memory_bytes() if room_bytes is None else room_bytes
    floats = 2 * trainers * layout.length
    floats += layout.length + optimizer.state_floats(layout.length)
    if 4 * floats > room:
        here = "the limit of this container is" if room < physical_bytes() else "this machine has"
        raise ConfigurationError(
            f"model: {layout.length:,} dense parameters take {4 * floats / 1e9:,.1f} GB in "
            f"{trainers} trainer(s) and {servers} server(s), and {here} "
            f"{room / 1e9:,.1f} GB; {layout.advice()}, or cluster.trainers"
        )
