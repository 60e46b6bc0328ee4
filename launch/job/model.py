"""Sections ``model``, ``optimizers`` and ``table`` of a job file: their problems, and the model."""

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

_EXAMPLES: Mapping[str, str] = {
    "admission": "{name: ByCount, count: 3}",
    "eviction": "{name: ByAge, age: 500000}",
    "score": "{nonclick: 0.1, click: 1.0, decay: 0.98}",
    "compact": "{wide_from: v, shows: 10}",
}


def policies_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `TableSpec` for the section.

    Raises
    ------
    ConfigurationError
        When `table_problems` would have found something.
    """
    return policies_from_dict({key: value for key, value in section.items() if value is not None})


def table_problems(section: object) -> list[str]:
    """Return the problems of the policies by themselves, one line each."""
    if not isinstance(section, dict):
        return []  # its type is reported by pydantic
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
    """Return a problem if rules of eviction would never act."""
    if not section["eviction"] or maintain_every_batches:
        return []
    return ["training.maintain_every_batches: expected > 0, as table.eviction acts only then, got 0 (never)"]


def _named(
    path: str, plain: object, kinds: Mapping[str, type], example: str
) -> tuple[type | None, list[str]]:
    """Return the class that a mapping names (None: no such class), and problems of name and keys."""
    if not isinstance(plain, dict):
        return None, [f"{path}: expected a mapping, for example {example}, got {plain!r}"]
    name = plain.get("name", next(iter(kinds)) if len(kinds) == 1 else None)
    if name is None:
        return None, [f"{path}.name: is missing; one of {', '.join(kinds)}"]
    if not isinstance(name, str) or name not in kinds:
        return None, [unknown_value(f"{path}.name", name, kinds)]
    known = [field.name for field in fields(kinds[name])]
    return kinds[name], [unknown_key(f"{path}.{key}", known) for key in plain if key not in (*known, "name")]


def _policy_problems(path: str, plain: Any, kinds: tuple[type[Policy], ...]) -> list[str]:
    by_name = {kind.__name__: kind for kind in kinds}
    kind, problems = _named(path, plain, by_name, _EXAMPLES[path.split(".")[1]])
    if kind is None or problems:
        return problems
    try:
        policy_from_dict(plain, kinds)
    except ConfigurationError as error:
        return [f"{path}.{line.removeprefix(f'{kind.__name__}.')}" for line in error.problems]
    return []


def fit_problems(table: TableSpec, section: Mapping[str, Any]) -> list[str]:
    """Return the problems of policies for the table of this model, each right by itself."""
    try:
        replace(table, **policies_of(section))
    except ConfigurationError as error:
        return [f"table.{line.removeprefix(f'table {table.name}: ')}" for line in error.problems]
    return []


ALL_PARTS = "*"
"""Name of all parts of a row without an optimizer of their own."""


def row_optimizers(rows: dict[str, Any] | None) -> dict[str, Optimizer]:
    """Return the optimizer of each part; a single one is for all parts, under ``"*"``.

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
    """Return the problems of the section ``optimizers``, one line each."""
    if not isinstance(section, dict):
        return []  # its type is reported by pydantic
    problems = []
    if isinstance(section.get("rows"), dict):
        for part, plain in _by_part(section["rows"]).items():
            problems += _optimizer_problems(dotted("optimizers", "rows", part), plain)
    if isinstance(section.get("dense"), dict):
        found = _optimizer_problems("optimizers.dense", section["dense"])
        problems += found + _dense_problems(section["dense"], readable=not found)
    return problems


def _dense_problems(plain: dict[str, Any], readable: bool) -> list[str]:
    name = plain.get("name")
    if not isinstance(name, str) or name not in OPTIMIZERS:
        return []
    problem = dense_problem(optimizer_from_dict(plain) if readable else OPTIMIZERS[name]())
    return [f"optimizers.dense: {problem}"] if problem else []


def _optimizer_problems(path: str, plain: Any) -> list[str]:
    kind, problems = _named(path, plain, OPTIMIZERS, "{name: Adagrad, learning_rate: 0.05}")
    if kind is None:
        return problems
    for field in fields(kind):
        if field.name in plain and not _is_like(plain[field.name], field.default):
            expected = "true or false" if isinstance(field.default, bool) else "a number"
            problems.append(f"{path}.{field.name}: expected {expected}, got {plain[field.name]!r}")
    return problems or _range_problems(path, plain)


def _is_like(value: object, default: object) -> bool:
    """Return whether a value is of the kind of the default: a number, or true or false."""
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
    options = (field.name for field in fields(_EVERY[name]) if field.name.endswith(_SUFFIX))
    return {option.removesuffix(_SUFFIX): option for option in options}


def _with_rows(name: str, options: Mapping[str, object], rows: Mapping[str, Optimizer]) -> dict[str, object]:
    """Return the options of the model, with the optimizers of ``optimizers.rows`` among them."""
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
    return build(name, schema, {"seed": seed} | _with_rows(name, options, rows))


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
