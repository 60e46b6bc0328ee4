"""Stand-in for a container image: folders of this machine, seen read-only, and an environment."""

from __future__ import annotations

import site
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/opt")
"""Folders of the system, or links to them; those that are absent are left out."""


@dataclass(frozen=True, slots=True)
class Image:
    """Folders and environment that a container has.

    Attributes
    ----------
    folders : tuple of Path
        Beside the system's, at the same paths.
    environment : mapping of str to str
    """

    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_this_interpreter(repository: Path) -> Image:
        """Return the image of the Python that runs this, with a checkout that it has installed."""
        binaries = f"{sys.prefix}/bin:/usr/bin:/bin"
        folders = {Path(sys.prefix), Path(sys.base_prefix), *map(Path, site.getsitepackages()), repository}
        outer = {
            one for one in folders if not any(one != other and one.is_relative_to(other) for other in folders)
        }
        return Image(
            tuple(sorted(one for one in outer if not one.is_relative_to("/usr"))),
            {"PATH": binaries, "PYTHONUNBUFFERED": "1"},
        )
