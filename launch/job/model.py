"""From the sections ``model`` and ``optimizers.rows`` of a job file to a model; problems carry their path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from launch.job.errors import dotted, unknown_key, unknown_value
from pslib.errors import ConfigurationError
from pslib.schema import Schema
from pslib.table.optimizers import OPTIMIZERS, Optimizer, dense_problem, optimizer_from_dict
from pslib.table.policies import Policy, policy_from_dict
from pslib.table.tables import POLICY_KINDS, TableSpec, policies_from_dict
from rec_models import MATCHING_MODELS, MODELS, SESSION_MODELS, TASK_MODELS, Model, build
from rec_models.din import DIN

__all__ = [
    "build_model",
    "fit_problems",
    "maintenance_problems",
    "model_problems",
    "optimizer_problems",
    "parts_of",
    "policies_of",
    "ranks_items",
    "row_optimizers",
    "table_problems",
]


_EXAMPLES: Mapping[str, str] = {
    "admission": "{name: ByCount, count: 3}",
    "eviction": "{name: ByAge, age: 500000}",
    "score": "{nonclick: 0.1, click: 1.0, decay: 0.98}",
    "compact": "{wide_from: v, shows: 10}",
}


def policies_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `TableSpec` that the section stands for.

    Raises
    ------
    ConfigurationError
        When `table_problems` would have found something.
    """
    return policies_from_dict({key: value for key, value in section.items() if value is not None})


def table_problems(section: object) -> list[str]:
    """All that is wrong with the policies of the section by themselves, one line each."""
    if not isinstance(section, dict):
        return []  # its type is somebody else's complaint
    problems = []
    for key, kinds in POLICY_KINDS.items():
        given = section.get(key)
        if key != "eviction":
            problems += [] if given is None else _policy_problems(f"table.{key}", given, kinds)
        elif isinstance(given, list):
            for place, rule in enumerate(given):
                problems += _policy_problems(f"table.{key}.{place}", rule, kinds)
        elif key in section:
            problems.append(f"table.{key}: expected a list, for example [{_EXAMPLES[key]}], got {given!r}")
    return problems


def maintenance_problems(section: Mapping[str, Any], maintain_every_batches: int) -> list[str]:
    """Rules of eviction that would never act."""
    if not section["eviction"] or maintain_every_batches:
        return []
    return ["training.maintain_every_batches: expected > 0, as table.eviction acts only then, got 0 (never)"]


def _policy_problems(path: str, plain: object, kinds: tuple[type[Policy], ...]) -> list[str]:
    if not isinstance(plain, dict):
        example = _EXAMPLES[path.split(".")[1]]
        return [f"{path}: expected a mapping, for example {example}, got {plain!r}"]
    by_name = {kind.__name__: kind for kind in kinds}
    name = plain.get("name", kinds[0].__name__ if len(kinds) == 1 else None)
    if name is None:
        return [f"{path}.name: is missing; one of {', '.join(by_name)}"]
    if not isinstance(name, str) or name not in by_name:
        return [unknown_value(f"{path}.name", name, by_name)]
    known = [field.name for field in fields(by_name[name])]
    if unknown := [key for key in plain if key not in (*known, "name")]:
        return [unknown_key(f"{path}.{key}", known) for key in unknown]
    try:
        policy_from_dict(plain, kinds)
    except ConfigurationError as error:
        return [f"{path}.{line.removeprefix(f'{name}.')}" for line in error.problems]
    return []


def fit_problems(table: TableSpec, section: Mapping[str, Any]) -> list[str]:
    """What is wrong with policies that are right by themselves, for the table of this model."""
    try:
        replace(table, **policies_of(section))
    except ConfigurationError as error:
        return [f"table.{line.removeprefix(f'table {table.name}: ')}" for line in error.problems]
    return []


ALL_PARTS = "*"
"""Stands for every part of a row that has no optimizer of its own."""


def row_optimizers(rows: dict[str, Any] | None) -> dict[str, Optimizer]:
    """Optimizer of each part; a single one is for all parts, under ``"*"``.

    Raises
    ------
    ConfigurationError
        When `optimizer_problems` would have found something.
    """
    return {part: optimizer_from_dict(plain) for part, plain in _by_part(rows).items()}


def _by_part(rows: dict[str, Any] | None) -> dict[str, Any]:
    if not rows:
        return {}
    return {ALL_PARTS: rows} if "name" in rows and not isinstance(rows["name"], dict) else rows


def optimizer_problems(section: object) -> list[str]:
    """All that is wrong with the section ``optimizers`` of a job file, one line each."""
    if not isinstance(section, dict):
        return []  # its type is somebody else's complaint
    problems = []
    if isinstance(section.get("rows"), dict):
        for part, plain in _by_part(section["rows"]).items():
            problems += _one(dotted("optimizers", "rows", part), plain)
    if isinstance(section.get("dense"), dict):
        found = _one("optimizers.dense", section["dense"])
        problems += found + _dense_problems(section["dense"], readable=not found)
    return problems


def _dense_problems(plain: dict[str, Any], readable: bool) -> list[str]:
    name = plain.get("name")
    if not isinstance(name, str) or name not in OPTIMIZERS:
        return []
    problem = dense_problem(optimizer_from_dict(plain) if readable else OPTIMIZERS[name]())
    return [f"optimizers.dense: {problem}"] if problem else []


def _one(path: str, plain: object) -> list[str]:
    if not isinstance(plain, dict):
        return [f"{path}: expected a mapping with a name, for example {{name: Adagrad, learning_rate: 0.05}}"]
    name = plain.get("name")
    if name is None:
        return [f"{path}.name: is missing; one of {', '.join(OPTIMIZERS)}"]
    if not isinstance(name, str) or name not in OPTIMIZERS:
        return [unknown_value(f"{path}.name", name, OPTIMIZERS)]
    known = {field.name: field.default for field in fields(OPTIMIZERS[name])}
    given = {key: value for key, value in plain.items() if key != "name"}
    problems = [unknown_key(f"{path}.{key}", known) for key in given if key not in known]
    for key, value in given.items():
        if key in known and not _is_like(value, known[key]):
            expected = "true or false" if isinstance(known[key], bool) else "a number"
            problems.append(f"{path}.{key}: expected {expected}, got {value!r}")
    return problems or _range_problems(path, plain)


def _is_like(value: object, default: object) -> bool:
    """Whether a value is a number where the default is one, and true or false where that is."""
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    return isinstance(value, int | float)


def _range_problems(path: str, plain: dict[str, object]) -> list[str]:
    try:
        optimizer_from_dict(plain)
    except ConfigurationError as error:
        return [f"{path}.{line.removeprefix(str(plain['name']) + '.')}" for line in error.problems]
    return []


_SUFFIX = "_optimizer"

NO_SEQUENCE = (
    "model.name: din has nothing to attend to: expected a ragged field with the vocabulary of a sparse one, "
    "as {name: viewed, vocabulary: item}; without any, name dnn"
)
"""Its options for attention would be taken and change nothing."""

_EVERY: dict[str, type[Model]] = MODELS | TASK_MODELS | SESSION_MODELS | MATCHING_MODELS


def _any_schema(name: str) -> Schema:
    """Stands in where the file's own schema is wrong, so that options are checked all the same."""
    if name in SESSION_MODELS:
        return Schema(label=None, ragged=["any"])
    return Schema(label="label", more_labels=["another"] if name in TASK_MODELS else [], sparse=["any"])


def ranks_items(name: str) -> bool:
    """Whether a model of this name ranks items, instead of predicting clicks."""
    return name not in MODELS and name not in TASK_MODELS


def parts_of(name: str) -> dict[str, str]:
    """Part of a row to the model's option that holds its optimizer; other parts share one of these."""
    options = (field.name for field in fields(_EVERY[name]) if field.name.endswith(_SUFFIX))
    return {option.removesuffix(_SUFFIX): option for option in options}


def _with_rows(name: str, options: Mapping[str, object], rows: Mapping[str, Optimizer]) -> dict[str, object]:
    """Options of the model with the optimizers of ``optimizers.rows`` put where the model wants them."""
    merged = dict(options)
    for part, option in parts_of(name).items():
        if (optimizer := rows.get(part, rows.get(ALL_PARTS))) is not None:
            merged[option] = optimizer
    return merged


def build_model(
    name: str, schema: Schema, options: Mapping[str, object], rows: Mapping[str, Optimizer], seed: int
) -> Model:
    """Make the model of a job file.

    Parameters
    ----------
    name : str
        Of any model of `rec_models`.
    schema : Schema
    options : mapping
        All that stands beside ``model.name``.
    rows : mapping of part name, or ``"*"``, to Optimizer
        From ``optimizers.rows``; parts without one keep the model's own.
    seed : int
        ``training.seed``, for first values of rows where ``model.seed`` is not given.

    Raises
    ------
    ConfigurationError
        When `model_problems` would have found something.
    """
    return build(name, schema, {"seed": seed} | _with_rows(name, options, rows))


def model_problems(
    section: Mapping[str, Any], schema: Schema | None, rows: Mapping[str, Optimizer]
) -> list[str]:
    """All that is wrong with the section ``model``, one line each.

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
        return []  # its type is somebody else's complaint
    if name not in _EVERY:
        return [unknown_value("model.name", name, _EVERY)]
    known = [field.name for field in fields(_EVERY[name]) if field.name != "schema"]
    options = {key: value for key, value in section.items() if key != "name"}
    problems = [unknown_key(f"model.{key}", known) for key in options if key not in known]
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
