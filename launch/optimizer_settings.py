"""Optimizers in a job file: which there are, what they take, and what is wrong with what was given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from launch.problems import dotted, unknown_key, unknown_value
from pslib.errors import ConfigurationError
from pslib.optimizers import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad, optimizer_from_dict

__all__ = ["optimizer_problems", "row_optimizers"]

_KINDS: dict[str, type[Optimizer]] = {kind.__name__: kind for kind in (SGD, Adagrad, RowwiseAdagrad, Adam)}

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
        problems += _one("optimizers.dense", section["dense"])
        name = section["dense"].get("name")
        if isinstance(name, str) and name in _KINDS and not _KINDS[name].elementwise:
            problems.append(f"optimizers.dense: {name} is for rows only; use SGD, Adagrad or Adam")
    return problems


def _one(path: str, plain: object) -> list[str]:
    if not isinstance(plain, dict):
        return [f"{path}: expected a mapping with a name, for example {{name: Adagrad, learning_rate: 0.05}}"]
    name = plain.get("name")
    if name is None:
        return [f"{path}.name: is missing; one of {', '.join(_KINDS)}"]
    if not isinstance(name, str) or name not in _KINDS:
        return [unknown_value(f"{path}.name", name, _KINDS)]
    known = [field.name for field in fields(_KINDS[name])]
    numbers = {key: value for key, value in plain.items() if key != "name"}
    problems = [unknown_key(f"{path}.{key}", known) for key in numbers if key not in known]
    problems += [
        f"{path}.{key}: expected a number, got {value!r}"
        for key, value in numbers.items()
        if key in known and (isinstance(value, bool) or not isinstance(value, int | float))
    ]
    return problems or _range_problems(path, plain)


def _range_problems(path: str, plain: dict[str, object]) -> list[str]:
    try:
        optimizer_from_dict(plain)
    except ConfigurationError as error:
        return [f"{path}: {line}" for line in error.problems]
    return []
