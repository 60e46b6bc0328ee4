"""First job file of described data: it trains as it is, and has the settings that one would turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from launch.job.job import Job
from launch.job.model import build_model
from launch.job.paths import near
from launch.job.sections import (
    ClusterSection,
    TrainingSection,
    schema_yaml,
)
from launch.job.settings_reference import rows_of
from launch.job.yaml12 import flow_text
from pslib.data.inspect.describe import Description
from pslib.data.inspect.small_data import enough_steps
from pslib.table.optimizers import Optimizer
from pslib.trainer.settings import OptimizerSettings
from rec_models import Model

CLICKS, SESSIONS = "deepfm", "gru4rec"
"""Models of a first job: of clicks, and of sessions."""
OPTIONS = {
    "dim": "numbers of a row: more hold more, and need more data",
    "hidden": "units of the hidden layers",
}
"""Options of models that a first job names."""
COMMENT_AT, LINE_MAX = 40, 110
"""Column of comments, and longest line; a longer comment stands above its setting."""


def first_job(found: Description, files: Sequence[str], out: Path) -> str:
    """Return the text of a job file that trains described data.

    Parameters
    ----------
    found : Description
    files : sequence of str
        The described data.
    out : Path
        Where the text will be written: paths in it are relative to its folder.
    """
    name = CLICKS if found.schema.labels else SESSIONS
    model = build_model(name, found.schema, {}, {}, TrainingSection().seed)
    rows, of_clicks = found.split.train_rows, bool(found.schema.labels)
    batch_rows, epochs = enough_steps(rows, TrainingSection().batch_rows, of_clicks=of_clicks)
    lines = [
        *_lines("training", {"batch_rows": batch_rows, "epochs": epochs}),
        *_lines("cluster", {one: getattr(ClusterSection(), one) for one in ("servers", "trainers")}),
        f"out: {flow_text(f'runs/{out.stem}')}",
    ]
    train = f"data:\n  train: {flow_text([near(one, out.parent) for one in files])}\n"
    return f"{train}{data_yaml(found)}{_model_yaml(name, model)}{_text(lines)}"


def data_yaml(found: Description) -> str:
    """Return the lines of a job file below ``train`` of its section ``data``."""
    split = found.split
    if not split.test_share:
        return f"{_commented('  # test: PATH', _help('data.test'))}\n{schema_yaml(found.schema)}"
    held = {"test_share": split.test_share} | ({"test_by": split.test_by} if split.test_by else {})
    return _text(list(_lines("data", held))[1:]) + schema_yaml(found.schema)


def _model_yaml(name: str, model: Model) -> str:
    own = {one.name for one in fields(model)}
    lines = ["model:", f"  name: {name}"]
    lines += [
        _commented(f"  {option}: {flow_text(_plain(getattr(model, option)))}", comment)
        for option, comment in OPTIONS.items()
        if option in own
    ]
    optimizers: dict[str, object] = {
        "rows": _short(model.table().parts[-1].optimizer),
        "dense": _short(OptimizerSettings().dense),
    }
    return _text([*lines, *_lines("optimizers", optimizers)])


def _short(optimizer: Optimizer) -> dict[str, object]:
    """Return an optimizer with its rate, and what is not its default."""
    changed = {one.name: getattr(optimizer, one.name) for one in fields(optimizer)}
    defaults = {one.name: one.default for one in fields(optimizer) if one.name != "learning_rate"}
    changed = {name: value for name, value in changed.items() if defaults.get(name) != value}
    return {"name": type(optimizer).__name__, **changed}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _lines(section: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield a section with its settings, each with its help as a comment."""
    yield f"{section}:"
    for name, value in values.items():
        yield _commented(f"  {name}: {flow_text(value)}", _help(f"{section}.{name}"))


def _help(path: str) -> str:
    """Return the first sentence of a setting's help, as a comment."""
    text = next(row.help for row in rows_of(Job) if row.path == path)
    return text.removesuffix(".").split(". ")[0]


def _commented(line: str, comment: str) -> str:
    beside = f"{line.ljust(COMMENT_AT)}  # {comment}"
    return beside if len(beside) <= LINE_MAX else f"  # {comment}\n{line}"


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
