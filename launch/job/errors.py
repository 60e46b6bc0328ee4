"""Lines on wrong settings, with path and suggestion: unknown keys and values, and pydantic's errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pslib.settings import Settings, SettingsError, settings_of
from pslib.suggestions import ELSEWHERE, nearest, shown, unknown_key, unknown_value
from pslib.table.optimizers import OPTIMIZERS
from rec_models.by_name import EVERY, options_of


def dotted(*steps: object) -> str:
    """Return a setting's path as users write it, ``data.schema.sparse.0.name``, without ``*`` ("all")."""
    return ".".join(str(step) for step in steps if step != "*")


def _whole(value: object) -> str:
    """Return a hint to write 1e3 or 1000.0 as an integer, since YAML and pslib read it as a float."""
    return f"; write {int(value)}" if isinstance(value, float) and value.is_integer() else ""


def of_optimizers(word: str) -> str:
    """Return the path of an optimizer setting, ``lr`` for example, in a job file; empty for other words."""
    wanted = ELSEWHERE.get(word, word)
    having = [name for name, kind in OPTIMIZERS.items() if wanted in {field.name for field in fields(kind)}]
    if not having:
        return ""
    name = "Adagrad" if "Adagrad" in having else having[0]
    return f"optimizers.rows={{name: {name}, {wanted}: ...}}"


def meant_setting(model: type[BaseModel], path: str) -> str:
    """Return the settings that are meant by an unknown path, quoted; empty if none is like it."""
    section, _, word = path.rpartition(".")
    sections = section_keys(model)
    if section not in sections:
        section = nearest(section, sections) or ""
    near = nearest(word, _keys_at(model, section.split("."))) if section else None
    if found := f"{section}.{near}" if near else _elsewhere(model, word):
        return repr(found)
    if of_optimizers(word):
        return f"'optimizers.rows' and 'optimizers.dense', for {ELSEWHERE.get(word, word)} of an optimizer"
    return ""


def unknown_setting(path: str, known: Iterable[str], elsewhere: str | None = None) -> str:
    """Return one line on an unknown key; it may be one of another section, or a setting of optimizers."""
    names, word = list(known), path.rsplit(".", 1)[-1]
    near = nearest(word, names)
    is_named = elsewhere is not None and elsewhere.rsplit(".", 1)[-1] == ELSEWHERE.get(word, word)
    # A section that is only spelt alike gives way to a key of this one.
    if elsewhere is not None and word not in names and elsewhere != near and (is_named or near is None):
        return f"{path}: unknown key, did you mean {elsewhere!r}?"
    if ELSEWHERE.get(word) not in names and (setting := of_optimizers(word)):
        setting = setting.replace("=", ": ", 1)
        return f"{path}: unknown key, did you mean {setting}, and optimizers.dense alike?"
    return unknown_key(path, names)


_EXPECTED: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "int_type": lambda _: "expected a whole number",
    "int_from_float": lambda _: "expected a whole number",
    "float_type": lambda _: "expected a number",
    "string_type": lambda _: "expected a text",
    "bool_type": lambda _: "expected true or false",
    "list_type": lambda _: "expected a list",
    "tuple_type": lambda _: "expected a list",
    "dict_type": lambda _: "expected a mapping (key: value lines)",
    "model_type": lambda _: "expected a mapping (key: value lines)",
    "model_attributes_type": lambda _: "expected a mapping (key: value lines)",
    "dataclass_type": lambda _: "expected a mapping (key: value lines)",
    "finite_number": lambda _: "expected a finite number",
    "string_too_short": lambda _: "expected a text that is not empty",
    "too_short": lambda _: "expected a list that is not empty",
    "greater_than_equal": lambda context: f"expected >= {context['ge']}",
    "greater_than": lambda context: f"expected > {context['gt']}",
    "less_than_equal": lambda context: f"expected <= {context['le']}",
    "less_than": lambda context: f"expected < {context['lt']}",
}


def _fields_of(kind: Any) -> dict[str, Any]:
    """Return the type of each key of a section, in the documented order."""
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return {name: hint for name, (hint, _) in settings_of(kind).items()}


def _keys_at(model: type[BaseModel], steps: Iterable[object]) -> list[str]:
    """Return the keys of the section at ``steps`` below ``model``."""
    kind: Any = model
    for step in steps:
        if step in (known := _fields_of(kind)):
            kind = section_in(known[str(step)]) or kind
    return list(_fields_of(kind))


def _elsewhere(model: type[BaseModel], word: str) -> str | None:
    """Return the path of the section, or of the setting of another section, that has a word as its name."""
    meant, sections = ELSEWHERE.get(word, word), _fields_of(model)
    if meant in sections:
        return meant
    found = [f"{name}.{meant}" for name, keys in section_keys(model).items() if meant in keys]
    if any(meant in options_of(kind) for kind in EVERY.values()):
        found.append(f"model.{meant}")
    return found[0] if len(found) == 1 else nearest(word, sections)


def section_keys(model: type[BaseModel]) -> dict[str, list[str]]:
    """Return the keys of each section of ``model``."""
    return {key: _keys_at(model, [key]) for key, hint in _fields_of(model).items() if section_in(hint)}


def section_in(annotation: Any) -> Any:
    """Return the section inside ``list[Section]``, ``Section | None`` and the like; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Settings):
        return annotation
    if get_origin(annotation) is dict:
        return None
    found = (section_in(inner) for inner in get_args(annotation))
    return next(filter(None, found), None)


def _one_line(model: type[BaseModel], error: Mapping[str, Any]) -> str:
    steps, kind, context = error["loc"], error["type"], error.get("ctx", {})
    path = dotted(*steps) or "the file"
    if kind in ("missing", "missing_argument"):
        return f"{path}: is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown_setting(path, _keys_at(model, steps[:-1]), _elsewhere(model, str(steps[-1])))
    if kind == "literal_error":
        return unknown_value(path, error["input"], [word.strip("'") for word in _words(context["expected"])])
    if kind in _EXPECTED:
        hint = _whole(error["input"]) if kind.startswith("int_") else ""
        return f"{path}: {_EXPECTED[kind](context)}, got {shown(error['input'])}{hint}"
    if kind == "value_error":
        return f"{path}: {context['error']}"
    return f"{path}: {error['msg']}, got {shown(error['input'])}"


def _words(expected: str) -> list[str]:
    return expected.replace(" or ", ", ").split(", ")


def problem_lines(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return one line for each value that ``model`` rejects, in the order of its fields."""
    lines = []
    for item in error.errors(include_url=False):
        wrong = item.get("ctx", {}).get("error")
        together = wrong.problems if isinstance(wrong, SettingsError) else None
        path = dotted(*item["loc"])
        lines += [_one_line(model, item)] if together is None else [f"{path}{line}" for line in together]
    return lines


_SCHEMA = {"label": "label", "sparse": ["any"]}
_STAND_INS: Mapping[str, Any] = {
    "data": {"train": ["any"], "schema": _SCHEMA},
    "data.train": ["any"],
    "data.schema": _SCHEMA,
    "model": {"name": "lr"},
    "model.name": "lr",
}
"""Values in place of required ones that are wrong or missing, so that all other settings can be checked."""


def leave_out(raw: dict[str, Any], problems: Iterable[str]) -> dict[str, str]:
    """Remove the values that problems are about from a job file; required ones get a stand-in.

    Parameters
    ----------
    raw : dict
        The job file; it is changed.
    problems : iterable of str
        Lines that begin with the path of a setting.

    Returns
    -------
    dict of str to str
        Path of each changed value to the line about it; empty if nothing was changed.
    """
    changed = {}
    for path, line in {_existing(raw, line.partition(": ")[0]): line for line in problems}.items():
        *sections, last = path.split(".")
        place = raw
        for section in sections:
            place = place.get(section, {})
        if place.get(last) != _STAND_INS.get(path):
            place.pop(last, None)
            place |= {last: deepcopy(_STAND_INS[path])} if path in _STAND_INS else {}
            changed[path] = line
    return changed


def _existing(raw: Any, path: str) -> str:
    """Return the part of a path that a job file has; the whole path if a stand-in exists for it."""
    if path in _STAND_INS:
        return path
    found = []
    for step in path.split("."):
        if not isinstance(raw, dict) or step not in raw:
            break
        found.append(step)
        raw = raw[step]
    return ".".join(found)


_OF_SCHEMA = ("model", "optimizers", "ranking", "table")
"""Sections whose problems may be those of the model, which depend on its options and on the schema."""


def concerns(line: str, left_out: Mapping[str, str]) -> bool:
    """Return whether a problem may come from the absence of settings, as `leave_out` returns them."""
    path, words = line.partition(": ")[0], set(re.findall(r"\w+", line))
    if path == "optimizers.dense":  # of a wrong kind, whatever its numbers are
        return False
    for other, about in left_out.items():
        meant = re.findall(r"\w+", about.partition("did you mean ")[2])
        if words & {other.rpartition(".")[2], *meant}:
            return True
        if f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}."):
            return True
        if other.startswith(("data.schema", "model")) and path.startswith(_OF_SCHEMA):
            return True
    return False
