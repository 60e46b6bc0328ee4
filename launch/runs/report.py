"""Files of runs for ``pslib report``, and the difference of their AUC on the same examples."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np

from launch.job.paths import from_here
from launch.job.yaml12 import read_yaml
from launch.supervisor.discovery import from_checkpoint
from launch.supervisor.launcher_process import gone_launcher
from launch.supervisor.resume import earlier_metrics
from pslib.errors import CheckpointError, ConfigurationError, PslibError
from pslib.metrics.paired import Floats, paired_difference
from pslib.monitor.report import Comparison, ReportedRun
from pslib.monitor.run_folder import METRICS, MONITOR, NOTE, ended_run, read_record, runs_in
from pslib.recorder.environment import flat_settings
from pslib.recorder.history import history_of
from pslib.storage import check_local
from pslib.text import counted
from pslib.trainer.settings import TrainingSettings
from rec_models.by_name import MODELS

if TYPE_CHECKING:
    from launch.job.job import Job

_OF_TRAINING = {one.name for one in fields(TrainingSettings)}
_MODEL_NAMES = {kind.__name__: name for name, kind in MODELS.items()}


def read_runs(folders: Sequence[str]) -> list[ReportedRun]:
    """Read the files of runs; each has the name of its folder, or its path where names are the same.

    Raises
    ------
    ConfigurationError
        When a folder holds no run: a line for each one.
    """
    if problems := [line for folder in folders if (line := _problem(folder))]:
        raise ConfigurationError(*problems)
    names = Counter(Path(folder).resolve().name for folder in folders)
    return [
        read_run(Path(one), one if names[Path(one).resolve().name] > 1 else Path(one).resolve().name)
        for one in folders
    ]


def _problem(folder: str) -> str:
    """Return why a folder holds no run; empty if it holds one."""
    if (Path(folder) / METRICS).is_file():
        return ""
    what = (
        "a folder without it"
        if Path(folder).is_dir()
        else "a file"
        if Path(folder).exists()
        else "nothing there"
    )
    return f"{folder}: expected the folder of a run, with {METRICS}, got {what}{runs_in(folder)}"


def read_run(folder: Path, name: str) -> ReportedRun:
    """Read the files of a run, whatever its state: what is missing or cut is left out."""
    summary = read_record(folder / "summary.json")
    ended = ended_run(folder)
    launches = [history_of(one) for one in (*earlier_metrics(folder), folder / METRICS)]
    state = read_record(folder / MONITOR).get("state")
    of_script = not (folder / "job.yaml").exists()
    return ReportedRun(
        name=name,
        folder=str(folder.resolve()),
        state=_state(folder, summary if ended else {}),
        records=[record for launch in launches for record in launch.records],
        summary=summary if ended else {},
        settings=_settings_in(folder, summary),
        monitor=state if isinstance(state, dict) else {},
        of_script=of_script,
    )


def _state(folder: Path, summary: dict[str, Any]) -> str:
    """Describe how far a run is, by the phase of its summary or, without one, by its launcher."""
    if summary:
        return str(summary.get("phase") or "ended")
    if (folder / "logs" / NOTE).exists():
        return "ended without a summary: its launcher is gone" if gone_launcher(folder) else "running"
    return "running, or killed: there is no summary yet"


def _settings_in(folder: Path, summary: dict[str, Any]) -> dict[str, str]:
    """Return the settings of the job file, or those of a script that its summary has."""
    plain: Any = summary.get("settings")
    if isinstance(plain, dict):
        plain = dict(_as_in_job(name, value) for name, value in plain.items())
    with suppress(OSError, ValueError, ConfigurationError):
        plain = read_yaml((folder / "job.yaml").read_text(encoding="utf-8"), "job.yaml")
    return flat_settings(plain) if isinstance(plain, dict) else {}


def _as_in_job(name: str, value: Any) -> tuple[str, Any]:
    """Return name and value in a job file of a setting of a script's trainer."""
    first, _, rest = name.partition(".")
    if name == "model":
        return "model.name", _MODEL_NAMES.get(value, value)
    if first == "dense_optimizer":
        return f"optimizers.dense.{rest or 'name'}", value
    return (f"training.{name}" if first in _OF_TRAINING else name), value


# --- comparison


def compared(
    runs: Sequence[ReportedRun], predictions: Sequence[str], evaluate: bool
) -> tuple[list[Comparison], list[str]]:
    """Compare each run with the first one on the same examples.

    Parameters
    ----------
    runs : sequence of ReportedRun
    predictions : sequence of str
        Predictions of each run, as `pslib eval --predictions` writes them; empty: the checkpoints are
        evaluated on the test data of the jobs.
    evaluate : bool
        False: nothing is evaluated.

    Returns
    -------
    comparisons : list of Comparison
    notes : list of str
        Why one is missing, and how to get it.

    Raises
    ------
    ConfigurationError
        When given predictions can't be read, or are of other examples.
    """
    if len(runs) < 2:
        return [], []
    if predictions:
        read = [_predictions_in(place) for place in predictions]
        return [_comparison(one.name, read[0], own) for one, own in zip(runs[1:], read[1:], strict=True)], []
    if not evaluate:
        return [], ["Checkpoints were not evaluated (--no-eval)."]
    with tempfile.TemporaryDirectory(prefix="pslib-report-") as folder:
        try:
            jobs = [_job_of(one) for one in runs]
            _check_same_test(runs, jobs)
            read = [
                _evaluated(one, job, str(Path(folder) / str(number)))
                for number, (one, job) in enumerate(zip(runs, jobs, strict=True))
            ]
            return [
                _comparison(one.name, read[0], own) for one, own in zip(runs[1:], read[1:], strict=True)
            ], []
        except PslibError as error:
            return [], [f"There is no difference with an interval: {error}", _recipe(runs)]


def check_predictions(runs: Sequence[str], predictions: Sequence[str]) -> None:
    """Refuse predictions that are not one for each run.

    Raises
    ------
    ConfigurationError
        If there are others.
    """
    if predictions and len(runs) < 2:
        raise ConfigurationError("--predictions: expected two runs or more, to compare them, got one")
    if predictions and len(predictions) != len(runs):
        raise ConfigurationError(
            f"--predictions: expected one for each of {counted(len(runs), 'run')}, in their order, got "
            f"{len(predictions)}"
        )
    for place in predictions:
        check_local("--predictions", place)


def _recipe(runs: Sequence[ReportedRun]) -> str:
    """Say how the predictions of the runs are made and given."""
    given = " ".join(f"--predictions {quote(f'scores-{number}')}" for number in range(len(runs)))
    return (
        "Predictions of the same examples by each run give it: pslib eval RUN FILE --predictions scores-0, "
        f"or trainer.evaluate(data, predictions='scores-0') in a script; then {given} here."
    )


def _predictions_in(place: str) -> tuple[Floats, Floats]:
    """Read labels and predictions of a file or of a folder's files in their order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(place)
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    expected = (
        f"{place}: expected Parquet files with label and prediction, as pslib eval --predictions writes them"
    )
    if not files:
        raise ConfigurationError(f"{expected}, got a folder without any")
    try:
        table = pa.concat_tables([pq.read_table(one, columns=["label", "prediction"]) for one in files])
        labels, predicted = (table[name].to_numpy().astype(np.float32) for name in ("label", "prediction"))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ConfigurationError(f"{expected}: {str(error).partition(chr(10))[0]}") from error
    return labels, predicted


def _comparison(name: str, first: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> Comparison:
    labels, scores = first
    if labels.shape != other[0].shape or not np.array_equal(labels, other[0]):
        raise ConfigurationError(
            f"{name}: expected predictions of the same {labels.size:,} examples as the first run's, in their "
            f"order, got {other[0].size:,} with other labels; predict the same data with both"
        )
    if not labels.size:
        raise ConfigurationError(f"{name}: expected predictions, got none")
    auc, logloss = paired_difference(labels, [(scores, other[1])])
    return Comparison(name, auc, logloss, int(labels.size))


def _job_of(run: ReportedRun) -> Job:
    from launch.job.job import read_job

    file = Path(run.folder) / "job.yaml"
    if not file.exists():
        raise ConfigurationError(f"{run.name} is the run of a script, whose test data is not recorded")
    return read_job(file).model_copy(update={"out": run.folder})


def _check_same_test(runs: Sequence[ReportedRun], jobs: Sequence[Job]) -> None:
    tested = [_tested_on(job) for job in jobs]
    for run, job, what in zip(runs, jobs, tested, strict=True):
        if what is None:
            raise ConfigurationError(f"{run.name} has no test data (data.test or data.test_share)")
        if what != tested[0]:
            raise ConfigurationError(f"{run.name} was tested on other data than {runs[0].name}")
        if job.data.schema.label is None:
            raise ConfigurationError(f"{run.name} ranks items and predicts no clicks")


def _tested_on(job: Job) -> tuple[object, ...] | None:
    """Return what decides the test examples of a job; None if it has none."""
    data = job.data
    if data.test:
        return tuple(data.test)
    return (*data.train, data.test_share, data.test_by) if data.test_share else None


def _evaluated(run: ReportedRun, job: Job, folder: str) -> tuple[Floats, Floats]:
    """Evaluate the newest checkpoint of a run on its test data; return labels and predictions."""
    from launch.worker.train_job import evaluate_checkpoint

    try:
        load = from_checkpoint(job).load
    except CheckpointError as error:
        where = from_here(Path(run.folder))
        raise CheckpointError(f"{where} has no complete checkpoint of its own") from error
    assert load is not None
    evaluate_checkpoint(job.model_copy(update={"load": None}), load.path, None, folder)
    return _predictions_in(folder)
