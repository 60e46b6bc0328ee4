"""Section ``model`` of a job file: its problems, and the model with its optimizers and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from launch.job.errors import unknown_setting
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.suggestions import unknown_key, unknown_value
from pslib.table.optimizers import Optimizer
from pslib.table.tables import TablePolicies, TableSpec
from pslib.trainer.model import ALL_PARTS, optimizer_options, with_row_optimizers
from rec_models import MATCHING_MODELS, MODELS, SESSION_MODELS, TASK_MODELS, Model, build
from rec_models.din import DIN


def fit_problems(table: TableSpec, policies: TablePolicies) -> list[str]:
    """Return the problems of policies for the table of this model, each right by itself."""
    try:
        with_policies(table, policies)
    except ConfigurationError as error:
        return [f"table.{line.removeprefix(f'table {table.name}: ')}" for line in error.problems]
    return []


def with_policies(table: TableSpec, policies: TablePolicies) -> TableSpec:
    """Return the table with other policies."""
    return replace(table, **{one.name: getattr(policies, one.name) for one in fields(policies)})


NO_SEQUENCE = (
    "model.name: din has nothing to attend to: expected a ragged field with the vocabulary of a sparse one, "
    "as {name: viewed, vocabulary: item}; without any, name dnn"
)
"""Without a sequence the options for attention would change nothing."""

_EVERY: dict[str, type[Model]] = MODELS | TASK_MODELS | SESSION_MODELS | MATCHING_MODELS


def _any_schema(name: str) -> Schema:
    """Return a schema in place of a wrong one, so that options are checked all the same."""
    if name in SESSION_MODELS:
        return Schema(label=None, ragged=["any"])
    return Schema(label="label", more_labels=["another"] if name in TASK_MODELS else [], sparse=["any"])


def ranks_items(name: str) -> bool:
    """Return whether a model of this name ranks items, instead of predicting clicks."""
    return name not in MODELS and name not in TASK_MODELS


def parts_of(name: str) -> dict[str, str]:
    """Map parts of a row to the model's option with its optimizer; other parts share one of these."""
    return optimizer_options(_EVERY[name])


def build_model(
    name: str, schema: Schema, options: Mapping[str, object], rows: Mapping[str, Optimizer], seed: int
) -> Model:
    """Make the model of a job file.

    Parameters
    ----------
    name : str
        Name of any model of `rec_models`.
    schema : Schema
    options : mapping
        All keys beside ``model.name``.
    rows : mapping of part name, or ``"*"``, to Optimizer
        From ``optimizers.rows``; parts without one keep the model's own.
    seed : int
        ``training.seed``, for first values of rows where ``model.seed`` is not given.

    Raises
    ------
    ConfigurationError
        When `model_problems` would have found something.
    """
    return with_row_optimizers(build(name, schema, {"seed": seed} | dict(options)), rows)


def model_problems(
    section: Mapping[str, Any], schema: Schema | None, rows: Mapping[str, Optimizer]
) -> list[str]:
    """Return the problems of the section ``model``, one line each.

    Parameters
    ----------
    section : mapping
        The section as it stands in the file.
    schema : Schema or None
        None where the file's schema is wrong itself.
    rows : mapping of part name to Optimizer
        From ``optimizers.rows``.
    """
    name = section.get("name")
    if not isinstance(name, str):
        return []  # its type is reported by pydantic
    if name not in _EVERY:
        return [unknown_value("model.name", name, _EVERY)]
    known = [field.name for field in fields(_EVERY[name]) if field.name != "schema"]
    options = {key: value for key, value in section.items() if key != "name"}
    problems = [unknown_setting(f"model.{key}", known) for key in options if key not in known]
    parts = parts_of(name)
    problems += [
        unknown_key(f"optimizers.rows.{part}", parts) for part in rows if part not in (*parts, ALL_PARTS)
    ]
    problems += [
        f"model.{option}: the same is set by optimizers.rows; remove one of them"
        for part, option in parts.items()
        if option in options and (part in rows or ALL_PARTS in rows)
    ]
    known_options = {key: value for key, value in options.items() if key in known}
    return problems + _value_problems(name, schema, known_options)


def _value_problems(name: str, schema: Schema | None, options: Mapping[str, object]) -> list[str]:
    try:
        model = build(name, schema or _any_schema(name), options)
    except ConfigurationError as error:
        owners = (f"{name}: ", f"{_EVERY[name].__name__}: ")
        return [f"model.{_without(line, owners)}" for line in error.problems]
    return [NO_SEQUENCE] if schema and isinstance(model, DIN) and not model.sequences() else []


def _without(line: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        line = line.removeprefix(prefix)
    return line
