"""Packages of pslib whose names others use too: the command and its workers find their own.

``PYTHONPATH`` and the folder of a script come before site-packages, and ROS 2 has a package ``launch``. So
the command begins here, and a worker is ``python -P -m pslib.process.own_packages MODULE``: both look for
these packages beside ``pslib`` before they look at the path. A user's script in a process of its own keeps
the path of Python.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from pslib.process.excepthook import OWN, ROOT, name_taken


class _OwnPackages(MetaPathFinder):
    """Finder of `OWN` in `ROOT`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        return PathFinder.find_spec(fullname, [str(ROOT)], target) if fullname in OWN else None


def find_own() -> None:
    """Find the packages of pslib before any others of their names, in this process."""
    sys.meta_path.insert(0, _OwnPackages())


def taken_names(folder: Path) -> list[str]:
    """Return a line for each file or package in a folder that has the name of a package of pslib."""
    found = [one for name in OWN for one in (folder / f"{name}.py", folder / name / "__init__.py")]
    return [name_taken(str(one)) for one in found if folder.resolve() != ROOT and one.is_file()]


def main() -> int:
    """Run the command ``pslib``."""
    find_own()
    code: int = import_module("launch.cli.main").main()
    return code


if __name__ == "__main__":
    find_own()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
