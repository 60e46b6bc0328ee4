"""Optimizers in a job file: which there are, what they take, and what is wrong with what was given."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from launch.problems import dotted, unknown_key, unknown_value
from pslib.errors import ConfigurationError
from pslib.table.optimizers import OPTIMIZERS, Optimizer, dense_problem, optimizer_from_dict

__all__ = ["optimizer_problems", "row_optimizers"]

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
        return [f"{path}: {line}" for line in error.problems]
    return []
