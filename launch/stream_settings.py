"""The section ``data.stream`` of a job file: a folder whose files are trained on as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from launch.training_settings import Section, TrainingSection
from pslib.errors import ConfigurationError

if TYPE_CHECKING:
    from pslib.data.arrivals import StreamSettings

__all__ = ["Stream", "StreamSection", "stream_problems"]


class StreamSection(Section):
    """How the folder is watched; see `pslib.data.arrivals.StreamSettings`."""

    window_files: int = Field(default=1, ge=1, le=100_000)
    stop: str = Field(default="_STOP", min_length=1)
    marker: Annotated[str, Field(min_length=1)] | None = None
    idle_s: float | None = Field(default=None, gt=0)
    poll_s: float = Field(default=1.0, ge=0.01, le=3600)

    def settings(self) -> StreamSettings:
        """The same for a trainer."""
        from pslib.data.arrivals import StreamSettings

        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return StreamSettings(**given)


def _switched_on(value: object) -> object:
    return {} if value is True else value


Stream = Annotated[StreamSection, BeforeValidator(_switched_on)]


def stream_problems(
    stream: StreamSection | None,
    train: Sequence[str],
    has_valid: bool,
    has_label: bool,
    training: TrainingSection,
) -> list[str]:
    """What does not go together with a stream, one line each.

    Parameters
    ----------
    stream : StreamSection or None
    train : sequence of str
        ``data.train``.
    has_valid, has_label : bool
        Whether the file names ``data.valid``, and a label in ``data.schema``.
    training : TrainingSection
    """
    if stream is None:
        return []
    problems = []
    if not has_label:
        problems.append(
            "data.stream: expected a label in data.schema: each window is predicted before it is learnt"
        )
    if has_valid:
        problems.append(
            "data.valid: expected none with data.stream, each of whose windows is predicted first"
        )
    if len(train) != 1:
        problems.append(f"data.stream: expected one folder in data.train, got {len(train)} paths")
    if training.epochs != 1:
        problems.append(f"training.epochs: expected 1 with data.stream, got {training.epochs}")
    if training.stopping is not None:
        problems.append("training.stopping: expected none with data.stream, which has no epochs")
    try:
        stream.settings()
    except ConfigurationError as error:
        problems += [f"data.{line}" for line in error.problems]
    return problems
