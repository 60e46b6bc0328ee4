"""Runs in MLflow: settings as parameters, figures as metrics over examples, the run's files as artifacts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pslib.clock import utc_now_s
from pslib.errors import ConfigurationError
from pslib.monitor.outbox import Outbox
from pslib.recorder.callback import Callback
from pslib.recorder.event_files import curves
from pslib.settings import NOT_EMPTY, Setting, Settings

LAST_S = 60.0
"""Seconds that the end of a run may wait for the last figures and files."""
RUN_TAG = "pslib.run_id"
"""Tag by which a resumed run finds its earlier part."""
ARTIFACTS = ("summary.json", "run.png", "metrics.jsonl")
"""Files of a run; ``job.yaml`` may hold secrets, and its settings are parameters."""
PARAMETERS_AT_ONCE = 100
"""Most parameters of one request, MLflow's limit."""
NAME_CHARS, VALUE_CHARS = 250, 6000
"""Longest name, and longest value of a parameter, MLflow's limits."""
_STATUS = {"done": "FINISHED", "failed": "FAILED"}


@dataclass(frozen=True, kw_only=True)
class MLflowSettings(Settings):
    """Server and experiment that track a run."""

    uri: Annotated[
        str | None,
        Setting("Tracking server or store; none: that of MLFLOW_TRACKING_URI.", pattern=NOT_EMPTY),
    ] = None
    experiment: Annotated[
        str, Setting("Experiment of the run; it is made if there is none.", pattern=NOT_EMPTY)
    ] = "pslib"


def check_mlflow() -> None:
    """Check that MLflow is there, before a run begins; its import takes seconds, in a thread of the run.

    Raises
    ------
    ConfigurationError
        If it is not installed.
    """
    if find_spec("mlflow") is None:
        raise ConfigurationError("mlflow: it is not installed; `pip install mlflow-skinny` brings it")


class MLflow(Callback):
    """Callback that tracks a run in MLflow, from a thread of its own.

    Metrics have the names of TensorBoard's curves, such as ``train/loss`` and ``test/auc``, and examples as
    steps. A resumed run with logs goes on in its MLflow run.

    Parameters
    ----------
    settings : MLflowSettings

    Raises
    ------
    ConfigurationError
        If MLflow is not installed.
    """

    def __init__(self, settings: MLflowSettings) -> None:
        check_mlflow()
        self._settings = settings
        self._folder: str | None = None
        self._client: Any = None
        self._run = ""
        self._outbox: Outbox | None = None

    def on_run_begin(self, trainer: Any, info: Mapping[str, Any]) -> None:
        """Begin a run in MLflow, or find the one that this run goes on with."""
        self._folder, self._run = info["folder"], ""
        self._outbox = Outbox("mlflow", lambda act: act(), LAST_S)
        self._outbox.put(partial(self._begin, dict(info)))

    def on_progress(self, trainer: Any, record: Mapping[str, Any]) -> None:
        """Log the figures of a record."""
        if self._outbox:
            self._outbox.put(partial(self._log, dict(record), int(utc_now_s() * 1000)))

    def on_run_end(self, trainer: Any, summary: Mapping[str, Any]) -> None:
        """Log the run's files, and end the run in MLflow."""
        if self._outbox:
            self._outbox.put(partial(self._end, _STATUS.get(str(summary["phase"]), "KILLED")))
            self._outbox.close()

    # --- in the outbox's thread

    def _begin(self, info: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(tracking_uri=self._settings.uri)
        found = client.get_experiment_by_name(self._settings.experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._settings.experiment)
        runs = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{info['run_id']}'", max_results=1)
        if runs:
            run = runs[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            tags = {RUN_TAG: str(info["run_id"]), "pslib.folder": str(info["folder"])}
            run = client.create_run(experiment, tags=tags, run_name=info["name"]).info.run_id
            self._client, self._run = client, run  # which has its figures even if a parameter is refused
            known = ((_name(name), value[:VALUE_CHARS]) for name, value in info["settings"].items())
            parameters = (Param(name, value) for name, value in known)
            while part := list(islice(parameters, PARAMETERS_AT_ONCE)):
                client.log_batch(run, params=part)
        self._client, self._run = client, run

    def _log(self, record: Mapping[str, Any], at_ms: int) -> None:
        from mlflow.entities import Metric

        self._check_begun()
        step = int(record["examples"])
        metrics = [Metric(_name(name), value, at_ms, step) for name, value in curves(record)]
        self._client.log_batch(self._run, metrics=metrics)

    def _end(self, status: str) -> None:
        self._check_begun()
        for file in self._files():
            self._client.log_artifact(self._run, str(file))
        self._client.set_terminated(self._run, status)

    def _files(self) -> Iterable[Path]:
        if self._folder is None:
            return ()
        return [file for name in ARTIFACTS if (file := Path(self._folder) / name).is_file()]

    def _check_begun(self) -> None:
        if not self._run:
            raise ConnectionError("the run could not be begun in MLflow")


def _name(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-./ ]", "_", name.replace("@", "_at_"))[:NAME_CHARS]
