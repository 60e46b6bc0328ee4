"""Settings and environment of a run: for ``summary.json``, reports and trackers."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from numbers import Number
from os import PathLike
from typing import Any

from pslib.process.machine import cores, memory_bytes
from pslib.process.platform import processor_text, system_text
from pslib.storage import shown
from pslib.text import as_cell

PACKAGES = ("sparse-pslib", "numpy", "pyarrow", "pyzmq")
"""Distributions whose versions are recorded: what computes, reads and sends."""
SECRET = "webhook.url"
"""End of the name of a setting that is never shown: its reader could post messages of the run."""


def environment() -> dict[str, Any]:
    """Return versions and machine of this process, under a launcher of the launcher's."""
    model = re.search(r"^model name\s*:\s*(.+)$", processor_text(), re.MULTILINE)
    return {
        **{name: found for name in PACKAGES if (found := _version(name))},
        "python": sys.version.split()[0],
        "system": system_text(),
        "processor": model.group(1) if model else "",
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "host": socket.gethostname(),
    }


def _version(name: str) -> str | None:
    """Return the version of an installed distribution; None for code that runs from its sources."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def flat_settings(value: Any, at: str = "") -> dict[str, str]:
    """Return settings as texts by dotted names, of a mapping or dataclass with others in it.

    They are for people and trackers: the keys in a URI and `SECRET` are left out.

    Examples
    --------
    >>> flat_settings({"model": {"name": "deepfm", "hidden": [64, 32]}, "load": None})
    {'model.name': 'deepfm', 'model.hidden': '64, 32', 'load': 'none'}
    """
    found: dict[str, str] = {}
    inner: Mapping[str, Any] | None = value if isinstance(value, Mapping) else None
    if is_dataclass(value) and not isinstance(value, type):
        inner = {one.name: getattr(value, one.name) for one in fields(value) if one.name[:1] != "_"}
        found = {at: type(value).__name__} if at else {}
    elif isinstance(value, list | tuple) and any(
        isinstance(one, Mapping) or is_dataclass(one) for one in value
    ):
        inner = {str(number): one for number, one in enumerate(value)}
    if inner:
        for name, one in inner.items():
            found |= flat_settings(one, f"{at}.{name}" if at else str(name))
        return found
    secret = at.endswith(SECRET) and value is not None
    return found or {at: "(not shown)" if secret else as_cell(shown(_setting_text(value)))}


def _setting_text(value: Any) -> str:
    """Return a single value, or a list of them, as text."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, list | tuple | Mapping):
        return ", ".join(_setting_text(one) for one in value) or "none"
    return str(value) if isinstance(value, str | Number | PathLike) else type(value).__name__
