"""Settings of a server of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslib.config import ROW_TYPE_NAMES
from pslib.settings import Setting, Settings

WaitSeconds = Annotated[
    float,
    Setting("Time to wait at the start for a first checkpoint; 0: none.", ge=0, le=604_800, unit="s"),
]


@dataclass(frozen=True, slots=True)
class ServeSettings(Settings):
    """Limits and batching of `pslib serve`.

    Raises
    ------
    ConfigurationError
        If a value is out of range; lists all problems at once.
    """

    AT: ClassVar[str] = "serve: "

    threads: Annotated[int, Setting("Threads that score each version.", ge=1, le=256)] = 2
    batch_rows_max: Annotated[
        int, Setting("Rows of waiting requests that are scored together.", ge=1, le=1 << 20, unit="rows")
    ] = 1024
    waiting_rows_max: Annotated[
        int,
        Setting(
            "Rows that may wait; beyond, requests get 503 and Retry-After.", ge=1, le=1 << 24, unit="rows"
        ),
    ] = 16384
    deadline_s: Annotated[
        float, Setting("A request that has waited longer gets 503 unscored.", gt=0, le=3600, unit="s")
    ] = 1.0
    rows_max: Annotated[int, Setting("Rows of one request.", ge=1, le=1 << 20, unit="rows")] = 8192
    body_bytes_max: Annotated[int, Setting("Bytes of one request.", ge=1024, le=1 << 30, unit="bytes")] = (
        16 << 20
    )
    keep_versions: Annotated[
        int, Setting("Versions of a model that stay loaded, to roll back to.", ge=1, le=64)
    ] = 2
    refresh_s: Annotated[
        float,
        Setting("Interval at which a newer checkpoint is looked for; 0: never.", ge=0, le=86400, unit="s"),
    ] = 10.0
    wait_s: WaitSeconds = 0.0
    follow_s: Annotated[
        float,
        Setting(
            "Interval at which a model that follows a training asks for changes.", gt=0, le=3600, unit="s"
        ),
    ] = 0.5
    follow_rows_as: Annotated[
        str,
        Setting(
            "Type of rows that a model that follows gets; float32: the bits of the servers.",
            choices=ROW_TYPE_NAMES,
        ),
    ] = "float32"
    max_age_s: Annotated[
        float,
        Setting(
            "Age of a model that follows above which the server is not ready; 0: none.",
            ge=0,
            le=1e6,
            unit="s",
        ),
    ] = 0.0
    drain_s: Annotated[
        float,
        Setting("Time for requests under way to end after SIGTERM.", ge=0, le=3600, unit="s"),
    ] = 10.0
