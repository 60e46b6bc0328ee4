"""Sections of the job file; where Python has a class of the same settings, the section is that class.

A section of this file is a thing that exists in a job file only: a choice of data, of a model by its name, or
settings of several owners side by side.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from launch.job.yaml12 import flow_text
from pslib.config import ClusterSettings, DrainSeconds, Restarts, Timing
from pslib.data.file_watch import StreamSettings
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from pslib.serving.settings import ServeSettings, WaitSeconds
from pslib.settings import NOT_EMPTY, Setting, Settings
from pslib.trainer.evaluation.early_stopping import EarlyStopping
from pslib.trainer.settings import (
    EVERY_S,
    EveryBatches,
    EverySeconds,
    Increments,
    KeepLast,
    TrainingSettings,
)

REPLICAS_MAX = 4096
RESTARTS = 3
"""Default number of restarts of one process: a process that has died four times will die again."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Name = Annotated[str, Field(min_length=1)]
Paths = Annotated[
    list[Name], BeforeValidator(_as_list, json_schema_input_type=Name | list[Name]), Field(min_length=1)
]


class Section(BaseModel):
    """Base of the job file and of ``model``, whose keys depend on the model."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _of_stream(value: object) -> object:
    """Replace ``true`` by the default stream, and drop an empty ``idle_s``: the stream never ends."""
    if value is True:
        return {}
    return (
        {k: v for k, v in value.items() if (k, v) != ("idle_s", None)} if isinstance(value, dict) else value
    )


@dataclass(frozen=True, kw_only=True)
class DataSection(Settings):
    """Paths of the examples, and their schema: a script gives them to its calls, one by one."""

    AT = ""

    train: Annotated[
        Paths,
        Setting(
            "Files of Parquet, CSV or JSON lines, folders or patterns to train on; of a stream its folder.",
            texts="not empty",
        ),
    ]
    valid: Annotated[Paths | None, Setting("Evaluated after each epoch.")] = None
    test: Annotated[Paths | None, Setting("Evaluated when the training is done.")] = None
    test_share: Annotated[
        float,
        Setting("Share of train that is held out, and evaluated like test; 0: none.", ge=0, le=0.99),
    ] = 0.0
    test_by: Annotated[
        str | None,
        Setting(
            "Column of times, whose last rows are held out by test_share; none: rows drawn by a hash of "
            "their number in their file.",
            pattern=NOT_EMPTY,
        ),
    ] = None
    items: Annotated[Paths | None, Setting("Items to rank; none: those of train.")] = None
    stream: Annotated[
        StreamSettings | None,
        BeforeValidator(_of_stream, json_schema_input_type=bool | StreamSettings | None),
    ] = None
    schema: Schema

    def _problems(self) -> Iterator[str]:
        if self.test_share and self.test is not None:
            yield "test_share: expected 0 with test, which is evaluated in its place; remove one of them"


class ModelSection(Section):
    """A model by name; every other key is an option of that model, checked by the model."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    name: Annotated[str, Setting("Name of a model; all other keys are its options.", pattern=NOT_EMPTY)]


@dataclass(frozen=True, kw_only=True)
class TrainingSection(TrainingSettings):
    """Settings of training: `TrainingSettings`, and arguments of `pslib.Trainer.fit`."""

    epochs: Annotated[
        int,
        Setting(
            "Passes over the data that this run adds; data.valid shows whether more of them help.",
            ge=1,
            le=1_000_000,
            unit="epochs",
        ),
    ] = 1
    stopping: Annotated[
        EarlyStopping | None, Setting("Early stopping by the results on data.valid; none: no stopping.")
    ] = None


RANGED = {"cluster": ("servers", "trainers"), "serve": ("replicas",)}
"""Numbers of processes, by section, that may be a range."""


def of_ranges(section: object) -> object:
    """Replace ``servers: {min: 2, max: 8}`` by ``servers`` and ``servers_max``; the same for all of `RANGED`.

    Raises
    ------
    ValueError
        When a range has other keys.
    """
    if not isinstance(section, dict):
        return section
    plain = dict(section)
    for name in (name for names in RANGED.values() for name in names):
        given = plain.get(name)
        if not isinstance(given, dict):
            continue
        if given.keys() != {"min", "max"}:
            raise ValueError(f"{name}: expected a number or {{min: 2, max: 8}}, got {given}")
        plain |= {name: given["min"], f"{name}_max": given["max"]}
    return plain


@dataclass(frozen=True, kw_only=True)
class ClusterSection(ClusterSettings):
    """Settings of the cluster, and of the launcher of its processes."""

    restarts: Restarts = RESTARTS
    drain_s: DrainSeconds = Timing().drain_s
    log: Annotated[
        str | None,
        Setting("Folder of the update logs; none: beside the run's other files.", pattern=NOT_EMPTY),
    ] = None
    log_format: Annotated[
        str,
        Setting(
            "Lines of processes and launcher: text for people, or JSON for a store of logs.",
            choices=("json", "text"),
        ),
    ] = "text"

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.log and self.durability == "memory":
            yield "log: expected durability log or disk with it; with memory nothing is logged"


@dataclass(frozen=True, kw_only=True)
class CheckpointSection(Settings):
    """Place and times of checkpoints, which a script gives to `Trainer.save` and `CheckpointSettings`."""

    AT = ""

    path: Annotated[
        str | None,
        Setting(
            "Folder or URI; with keep_last of numbered checkpoints, also those of a training that goes on. "
            "Without, these are in ``out`` (``checkpoint-unfinished``), or beside the URI. None: "
            "``checkpoint`` in ``out``.",
            pattern=NOT_EMPTY,
        ),
    ] = None
    keep_last: KeepLast = 0
    every_s: EverySeconds = EVERY_S
    every_batches: EveryBatches = 0
    incremental: Increments = 0

    def _problems(self) -> Iterator[str]:
        if self.incremental and not (self.every_s or self.every_batches):
            yield "incremental: expected every_s or every_batches with it"


@dataclass(frozen=True, kw_only=True)
class ServeSection(ServeSettings):
    """Scorers of the run's checkpoints: pods of ``pslib serve``, which ``pslib k8s render`` writes."""

    AT = ""

    replicas: Annotated[int, Setting("Pods on Kubernetes.", ge=1, le=REPLICAS_MAX, unit="pods")] = 2
    replicas_max: Annotated[
        int,
        Setting(
            "Pods where they have much to do, by their CPU time; 0: always ``replicas``. replicas: {min: 2, "
            "max: 8} is replicas and this.",
            ge=0,
            le=REPLICAS_MAX,
            unit="pods",
        ),
    ] = 0
    wait_s: WaitSeconds = 3600.0

    def _problems(self) -> Iterator[str]:
        if 0 < self.replicas_max < self.replicas:
            yield f"replicas_max: expected 0, or replicas ({self.replicas}) or more, got {self.replicas_max}"


@dataclass(frozen=True, kw_only=True)
class MetricsSection(Settings):
    """Metrics of each process for Prometheus, at ``/metrics``."""

    AT = ""

    port: Annotated[
        int,
        Setting(
            "Port of the coordinator, and with ``pslib role`` of each process; 0: any free one. Other "
            "processes of a launcher take free ones; ``metrics_targets.json`` has all addresses.",
            ge=0,
            le=65535,
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class PageSection(Settings):
    """Page of the run in the browser, served on loopback by the launcher; ``pslib ui`` shows any run."""

    AT = ""

    port: Annotated[int, Setting("Port on the launcher's machine; 0: any free one.", ge=0, le=65_535)] = 0


LINE_CHARS = 100
NO_BREAK = "\x00"
"""Stands for a space at which a line must not be broken."""


def schema_section(schema: Schema) -> dict[str, Any]:
    """Return the section ``data.schema`` as plain values; defaults are left out."""
    plain = {
        "label": schema.label,
        "more_labels": list(schema.more_labels),
        "weight": schema.weight,
        "dense": [_short(field) for field in schema.dense],
        "sparse": [_short(field) for field in schema.sparse],
        "ragged": [_short(field) for field in schema.ragged],
    }
    return {name: value for name, value in plain.items() if value not in (None, [])}


def schema_yaml(schema: Schema) -> str:
    """Return the lines below ``data:``."""
    lines = ["  schema:"]
    for name, value in schema_section(schema).items():
        if name not in ("dense", "sparse", "ragged"):
            lines.append(f"    {name}: {flow_text(value)}")
            continue
        items = ", ".join(flow_text(item).replace(" ", NO_BREAK) for item in value)
        lines += textwrap.wrap(
            f"{name}: [{items}]",
            LINE_CHARS,
            initial_indent="    ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines).replace(NO_BREAK, " ") + "\n"


def _short(field: DenseField | SparseField | RaggedField) -> object:
    """Return the bare name if nothing else differs from the default."""
    values = {one.name: (getattr(field, one.name), one.default) for one in fields(field)[1:]}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {"name": field.name, **changed} if changed else field.name
