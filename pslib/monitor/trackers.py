"""Trackers of a job: the callbacks that its section ``trackers`` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from pslib.monitor.mlflow_runs import MLflow, MLflowSettings, check_mlflow
from pslib.monitor.webhook import Webhook, WebhookSettings
from pslib.recorder.callback import Callback
from pslib.recorder.event_files import TensorBoard, check_event_files
from pslib.settings import Setting, Settings


def _of_true(value: object) -> object:
    """Replace ``true`` by the defaults."""
    return {} if value is True else value


@dataclass(frozen=True, kw_only=True)
class TrackerSettings(Settings):
    """Trackers of a run, beside its own records: once for a run, from the process that writes these."""

    tensorboard: Annotated[bool, Setting("Event files for TensorBoard; the same as ``--tensorboard``.")] = (
        False
    )
    mlflow: Annotated[
        MLflowSettings | None, BeforeValidator(_of_true, json_schema_input_type=bool | MLflowSettings | None)
    ] = None
    webhook: WebhookSettings | None = None

    def check(self) -> None:
        """Check that the packages are there, before a run begins.

        Raises
        ------
        ConfigurationError
            If one is not installed.
        """
        if self.tensorboard:
            check_event_files()
        if self.mlflow:
            check_mlflow()

    @property
    def callbacks(self) -> list[Callback]:
        """Callbacks of these settings, for one run."""
        found: list[Callback] = [TensorBoard()] if self.tensorboard else []
        found += [MLflow(self.mlflow)] if self.mlflow else []
        return found + ([Webhook(self.webhook)] if self.webhook else [])
