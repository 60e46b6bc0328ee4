"""The section ``table`` of a job file: storage and policies; problems carry their path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from launch.problems import unknown_key, unknown_value
from pslib.errors import ConfigurationError
from pslib.table.policies import Policy, policy_from_dict
from pslib.table.tables import POLICY_KINDS, TableSpec, policies_from_dict

__all__ = ["fit_problems", "maintenance_problems", "policies_of", "table_problems"]

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
