"""Checkpoint schedule: when a running `fit` is saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pslib.checkpoint.folders import KEEP_LAST_MAX
from pslib.settings import Setting, Settings
from pslib.storage import place_of

__all__ = ["CheckpointSettings", "EveryBatches", "EverySeconds", "Increments", "KeepLast"]

EVERY_S_MAX = 1e9
"""Maximum interval: thirty years."""
EverySeconds = Annotated[
    float, Setting("From one to the next; 0: time does not count.", ge=0, le=EVERY_S_MAX, unit="seconds")
]
EveryBatches = Annotated[
    int,
    Setting("Of all trainers, from one to the next; 0: they do not count.", ge=0, le=1 << 40, unit="batches"),
]
Increments = Annotated[
    int,
    Setting(
        "How many increments follow a full checkpoint; 0: all are full. All of one chain is read to load it.",
        ge=0,
        le=1000,
        unit="checkpoints",
    ),
]
KeepLast = Annotated[
    int,
    Setting(
        "How many stay; what an increment that stays needs stays too. 0: one that is replaced.",
        ge=0,
        le=KEEP_LAST_MAX,
        unit="checkpoints",
    ),
]


@dataclass(frozen=True)
class CheckpointSettings(Settings):
    """Checkpoint settings of a running `fit`, in numbered folders (`pslib.trainer.checkpoints.online`)."""

    AT = "checkpoint."

    path: Annotated[
        str,
        Setting("Folder or URI of ``checkpoint-000001`` and so on, which all servers and trainers reach."),
    ]
    every_s: EverySeconds = 0.0
    every_batches: EveryBatches = 0
    keep_last: KeepLast = 3
    incremental: Increments = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", place_of(self.path))
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        if not (self.every_s or self.every_batches):
            yield "checkpoint: expected every_s or every_batches: when is it to be saved?"
        if self.keep_last == 0:
            yield "checkpoint.keep_last: expected at least 1 with every_s or every_batches, got 0"

    @property
    def details(self) -> dict[str, float | int]:
        """Return the details for the coordinator."""
        return {"every_s": float(self.every_s), "every_batches": self.every_batches}
