"""Settings of the job file for people and editors, from the classes that check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from math import inf
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel

from launch.job.errors import section_in
from launch.job.job import Job
from pslib.errors import ConfigurationError
from pslib.settings import Setting, Settings, settings_of
from pslib.table.optimizer_base import Optimizer
from pslib.table.optimizers import OPTIMIZERS
from pslib.table.schedules import SCHEDULES, Schedule

__all__ = ["Row", "job_schema", "rows_of", "settings_at", "settings_page", "settings_text"]

INTRODUCTION = """# Settings of the job file

Written from the classes that check them by `pslib config page`; `pslib config schema` writes the same for
editors, `pslib config show training` for a terminal.
"""
_WORDS: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    list: "list",
    dict: "mapping",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What there is to say of one setting, in texts."""

    path: str
    kind: str
    default: str
    bounds: str
    unit: str
    help: str


def job_schema() -> dict[str, Any]:
    """JSON Schema of the job file, as editors with a YAML language server take it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()}
    for section in schema["$defs"].values():
        for setting in section.get("properties", {}).values():
            if setting.get("default") == inf:  # which JSON has no word for
                del setting["default"]
    return schema


def rows_of(section: Any, path: str = "") -> Iterator[Row]:
    """A row for each setting of a section and of those inside it, in the order of the classes."""
    for name, hint, default, setting in _settings(section):
        inner = section_in(hint)
        if inner is not None and _is_list(hint):
            yield from rows_of(inner, f"{path}{name}.N.")
        elif inner is not None:
            yield from rows_of(inner, f"{path}{name}.")
        else:
            yield Row(f"{path}{name}", _kind(hint), default, setting.bounds, setting.unit, setting.help)


def settings_page() -> str:
    """``docs/reference/settings.md``."""
    lines = [INTRODUCTION]
    by_section: dict[str, list[Row]] = {}
    for row in rows_of(Job):
        by_section.setdefault(row.path.partition(".")[0] if "." in row.path else "", []).append(row)
    for section, rows in by_section.items():
        lines += [f"## {f'`{section}`' if section else 'Beside the sections'}\n", *_table(rows)]
    shared = {(one.name, one.default) for one in fields(Optimizer)}
    lines += ["## Optimizers\n", "| name | its own settings |", "|---|---|"]
    for name, kind in OPTIMIZERS.items():
        own = (one for one in fields(kind) if (one.name, one.default) not in shared)
        lines.append(f"| `{name}` | {_with_defaults(own)} |")
    lines.append(
        f"\nEach also takes {_with_defaults(fields(Optimizer))}, where it has no default of its own.\n"
    )
    lines += ["## Schedules\n", *_table([*_of_schedules()])]
    return "\n".join(lines)


def _with_defaults(found: Iterable[Field[Any]]) -> str:
    return ", ".join(f"`{one.name}: {one.default}`" for one in found)


def _of_schedules() -> Iterator[Row]:
    """Of each schedule what it alone takes, then what all take."""
    shared = list(rows_of(Schedule, "NAME."))
    for name, kind in SCHEDULES.items():
        yield from list(rows_of(kind, f"{name}."))[len(shared) :]
    yield from shared


def settings_at(path: str) -> list[Row]:
    """Return the settings at a path or below it.

    Raises
    ------
    ConfigurationError
        When there are none.
    """
    found = [row for row in rows_of(Job) if not path or row.path == path or row.path.startswith(f"{path}.")]
    if not found:
        near = get_close_matches(path, [row.path for row in rows_of(Job)], n=1)
        raise ConfigurationError(f"{path}: no such setting{f', did you mean {near[0]!r}?' if near else ''}")
    return found


def settings_text(path: str) -> str:
    """Return two lines for each setting at a path or below it."""
    return "".join(
        f"{row.path}: {row.kind}{f', {row.bounds}' if row.bounds else ''}"
        f"{f' {row.unit}' if row.unit else ''}, default {row.default or 'none'}\n    {row.help}\n"
        for row in settings_at(path)
    )


def _settings(section: Any) -> Iterator[tuple[str, Any, str, Setting]]:
    """Name, type, default and Setting of each field."""
    if issubclass(section, Settings):
        defaults = {one.name: one.default for one in fields(section)}
        for name, (hint, setting) in settings_of(section).items():
            yield name, hint, _shown(defaults[name]), setting or Setting("")
        return
    for name, field in section.model_fields.items():
        limits = {type(one): one for one in field.metadata}
        bounds = {"ge": Ge, "gt": Gt, "le": Le}
        named = {key: getattr(limits[kind], key) for key, kind in bounds.items() if kind in limits}
        default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        texts = "not empty" if MinLen in limits else ""
        yield (
            field.alias or name,
            field.annotation,
            default,
            Setting(field.description or "", texts=texts, **named),
        )


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is list


def _kind(hint: Any) -> str:
    if hasattr(hint, "__metadata__"):
        return _kind(hint.__origin__)
    if isinstance(hint, str):
        return f"`{hint}`"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in get_args(hint) if one is not NoneType))
    if get_origin(hint) is Literal:
        return ", ".join(map(_kind, get_args(hint)))
    return _WORDS.get(get_origin(hint) or hint, "mapping")


def _shown(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, BaseModel | Settings | Schedule) or value is None or value == []:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(rows: list[Row]) -> list[str]:
    head = ["| setting | type | default | bounds | unit | what |", "|---|---|---|---|---|---|"]
    cells = ((f"`{r.path}`", r.kind, r.default, r.bounds, r.unit, r.help) for r in rows)
    return [*head, *("| " + " | ".join(one.replace("|", "\\|") for one in row) + " |" for row in cells), ""]
