"""Paths of a job file: relative to the file, with ``~`` and ``${VARIABLE}``; other file systems by URI."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pslib.storage import is_uri, local_problem

__all__ = ["expand", "from_here", "near", "path_problems"]

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PATHS = (
    *("data.train", "data.valid", "data.test", "data.items"),
    *("checkpoint.path", "load.path", "cluster.log", "out"),
)
_LOCAL = ("out", "cluster.log")
NAME_BYTES = 255
"""Longest name of a file or folder on Linux file systems."""


def expand(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy of the settings with absolute paths; other values than texts stay unchanged."""
    expanded = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    expanded.setdefault("out", "run")
    for _, values, key in _paths_in(expanded):
        given = values[key]
        many = isinstance(given, list)
        values[key] = [_absolute(path, folder) for path in given] if many else _absolute(given, folder)
    return expanded


def _absolute(path: Any, folder: Path) -> Any:
    if not isinstance(path, str) or not path or is_uri(path):
        return path
    text = os.path.expanduser(os.path.expandvars(path))
    return text if is_uri(text) else os.path.normpath(folder / text)


def near(path: str, folder: Path) -> str:
    """Return a path for a job file in ``folder``: relative if both are below one folder."""
    if is_uri(path):
        return path
    whole, home = Path(path).resolve(), folder.resolve()
    apart = os.path.commonpath([whole, home]) == whole.anchor
    return str(whole) if apart else os.path.relpath(whole, home)


def from_here(path: Path) -> str:
    """Return a path to type in the current folder: relative if it is below."""
    whole, home = path.resolve(), Path.cwd()
    return str(whole.relative_to(home) if whole.is_relative_to(home) else path)


def path_problems(raw: dict[str, Any]) -> list[str]:
    """Return problems of paths, one line each.

    Checked are unset variables, invalid names, and URIs for folders that must be local.
    """
    unset = [
        f"{where}: the environment variable {name} is not set"
        for where, path in _texts(raw)
        for name in (match[1] or match[2] for match in _VARIABLE.finditer(path))
        if name not in os.environ
    ]
    local = [(where, path) for where, path in _texts(raw) if where in _LOCAL]
    far = [local_problem(where, os.path.expandvars(path)) for where, path in local]
    names = [_name_problem(where, os.path.expandvars(path)) for where, path in _texts(raw)]
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
    for name in _PATHS:
        section, _, key = name.rpartition(".")
        values = raw.get(section) if section else raw
        if isinstance(values, dict) and key in values:
            yield name, values, key
