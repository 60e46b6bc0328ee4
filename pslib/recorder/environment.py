"""Environment of a run: versions of packages, and the machine, for ``summary.json`` and a report."""

from __future__ import annotations

import re
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pslib.process.machine import cores, memory_bytes
from pslib.process.platform import processor_text, system_text

PACKAGES = ("sparse-pslib", "numpy", "pyarrow", "pyzmq")
"""Distributions whose versions are recorded: what computes, reads and sends."""


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
