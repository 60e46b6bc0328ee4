"""Paths of a job file: relative to the file, with ``~`` and ``${VARIABLE}``; other file systems by URI."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pslib.storage import is_uri, local_problem

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))")
PATHS = (
    *("data.train", "data.valid", "data.test", "data.items"),
    *("checkpoint.path", "load.path", "cluster.log", "out"),
)
"""Settings whose values are paths."""
_LOCAL = ("out", "cluster.log")
NAME_BYTES = 255
"""Longest name of a file or folder on Linux file systems."""


def expand(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy of the settings with absolute paths; other values than texts stay unchanged."""
    return _mapped({**raw, "out": raw.get("out", "run")}, lambda path: _absolute(path, folder))


def as_written(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of expanded settings to write into a job file, where ``$`` of a name is ``$$``."""
    return _mapped(settings, literal)


def _mapped(raw: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a copy of the settings whose paths are changed."""

    def changed(value: Any) -> Any:
        return change(value) if isinstance(value, str) and value else value

    mapped = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    for _, values, key in _paths_in(mapped):
        given = values[key]
        values[key] = list(map(changed, given)) if isinstance(given, list) else changed(given)
    return mapped


def _absolute(path: str, folder: Path) -> str:
    if is_uri(path):
        return path
    text = os.path.expanduser(_with_variables(path))
    return text if is_uri(text) else os.path.normpath(folder / text)


def _with_variables(path: str) -> str:
    """Replace ``$NAME`` and ``${NAME}`` of set variables, and ``$$`` by ``$``."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] else os.environ.get(found[2] or found[3], found[0])

    return _VARIABLE.sub(value, path)


def literal(path: str) -> str:
    """Return a path as it is written in a job file, where ``$`` begins a variable and ``$$`` is one."""
    return path if is_uri(path) else path.replace("$", "$$")


def near(path: str, folder: Path) -> str:
    """Return a path for a job file in ``folder``: relative if both are below one folder."""
    if is_uri(path):
        return path
    whole, home = Path(path).resolve(), folder.resolve()
    apart = os.path.commonpath([whole, home]) == whole.anchor
    return literal(str(whole) if apart else os.path.relpath(whole, home))


def from_here(path: Path) -> str:
    """Return a path to type in the current folder: relative if it is below, whole if that is gone, or /."""
    try:
        whole, home = path.resolve(), Path.cwd()
    except FileNotFoundError:
        return str(path)
    if home == Path("/") or not whole.is_relative_to(home):  # of a container: var/lib would read like a slip
        return str(path)
    return str(whole.relative_to(home))


def path_problems(raw: dict[str, Any]) -> list[str]:
    """Return problems of paths, one line each.

    Checked are unset variables, invalid names, and URIs for folders that must be local.
    """
    unset = [
        f"{where}: the environment variable {name} is not set"
        for where, path in _texts(raw)
        for name in (match[2] or match[3] for match in _VARIABLE.finditer(path))
        if name and name not in os.environ
    ]
    local = [(where, path) for where, path in _texts(raw) if where in _LOCAL]
    far = [local_problem(where, _with_variables(path)) for where, path in local]
    names = [_name_problem(where, _with_variables(path)) for where, path in _texts(raw)]
    return unset + [problem for problem in (*names, *far) if problem]


def _name_problem(where: str, path: str) -> str | None:
    if "\0" in path:
        return f"{where}: expected a path, got one with a zero byte: {path!r}"
    if is_uri(path) or where.startswith("data."):  # a pattern may be longer than its matches
        return None
    longest = max(path.split("/"), key=_size)
    size = _size(longest)
    if size <= NAME_BYTES:
        return None
    got = f"one of {size}: {longest[:20]}..."
    return f"{where}: expected names of up to {NAME_BYTES} bytes, got {got}; shorten it"


def _size(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _texts(raw: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each path that is a text, with the name of its setting."""
    for name, values, key in _paths_in(raw):
        paths = values[key] if isinstance(values[key], list) else [values[key]]
        yield from ((name, path) for path in paths if isinstance(path, str))


def _paths_in(raw: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield each setting of a path that is given: its name, the section that holds it, and its key there."""
    for name in PATHS:
        section, _, key = name.rpartition(".")
        values = raw.get(section) if section else raw
        if isinstance(values, dict) and key in values:
            yield name, values, key
