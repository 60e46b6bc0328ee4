"""Environment of a run: versions of packages, and the machine, for ``summary.json`` and a report."""

from __future__ import annotations

import platform
import re
import socket
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pslib.process.machine import cores, memory_bytes
from pslib.process.platform import processor_text

PACKAGES = ("sparse-pslib", "numpy", "pyarrow", "pyzmq")
"""Distributions whose versions are recorded: what computes, reads and sends."""


def environment() -> dict[str, Any]:
    """Return versions and machine of this process, under a launcher of the launcher's."""
    model = re.search(r"^model name\s*:\s*(.+)$", processor_text(), re.MULTILINE)
    return {
        **{name: found for name in PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": model.group(1) if model else platform.processor(),
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
