"""pslib as its users have it: a wheel, in an empty environment, with a HOME of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.support.processes.command import ROOT

WHEEL_VARIABLE = "PSLIB_TEST_WHEEL"
"""Environment variable that names a wheel to test, in place of one that is built of this checkout."""
BUILD_LIMIT_S, COMMAND_LIMIT_S = 1500, 300


def run(*arguments: str | Path, folder: Path, limit_s: float = COMMAND_LIMIT_S, **more: str) -> str:
    """The output of a program that must succeed, without this checkout on its path."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PSLIB"))
    }
    command = [str(argument) for argument in arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def tracked_files() -> list[str]:
    """Files of the repository: those that git lists, or of an unpacked sdist all but what is ignored."""
    try:
        listed = run("git", "ls-files", "--cached", "-z", folder=ROOT).split("\0")
    except (AssertionError, FileNotFoundError):
        listed = files_not_ignored(ROOT)
    return [name for name in listed if name and (ROOT / name).is_file()]


def files_not_ignored(root: Path) -> list[str]:
    """Files below a folder that its ``.gitignore`` does not name, and none of git's own or an sdist's."""
    ignored = [line for line in (root / ".gitignore").read_text(encoding="utf-8").split() if line]
    folders = ["/.git/", *(line for line in ignored if line.endswith("/"))]
    names = ["PKG-INFO", "setup.cfg", *(line.replace("**/", "") for line in ignored)]
    found = []
    for place, inside, files in os.walk(root):
        below = Path(place).relative_to(root)
        ways = {one: (f"{one}/", f"/{(below / one).as_posix()}/") for one in inside}  # anywhere, at the root
        inside[:] = [one for one in inside if not any(fnmatch(way, f) for way in ways[one] for f in folders)]
        paths = [(below / file).as_posix() for file in files]
        found += [path for path in paths if not any(fnmatch(path, name) for name in names)]
    return sorted(found)


def copy_of_sources(folder: Path) -> Path:
    """A copy of the tracked files alone, so that nothing that was built by chance is taken along."""
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def wheel_of_this_checkout(folder: Path) -> Path:
    """A wheel of the tracked files; some minutes, or a part of one where ccache has the kernels.

    It is built by what `make build` has installed: to ccache, headers in a folder of a new name are new.
    """
    if given := os.environ.get(WHEEL_VARIABLE):
        return Path(given)
    compiler = {"CC": "ccache gcc", "CCACHE_NOHASHDIR": "1"} if shutil.which("ccache") else {}
    sources = copy_of_sources(folder / "sources")
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ".")
    run(sys.executable, *build, folder=sources, limit_s=BUILD_LIMIT_S, **compiler)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and a folder to work in that is HOME too."""

    bin: Path
    home: Path

    def run(self, program: str, *arguments: str | Path, limit_s: float = COMMAND_LIMIT_S) -> str:
        """The output of a program of the environment, called in HOME."""
        path = f"{self.bin}:/usr/bin:/bin"
        return run(
            self.bin / program, *arguments, folder=self.home, limit_s=limit_s, HOME=str(self.home), PATH=path
        )


@contextmanager
def installed(wheel: Path, folder: Path, *more: str) -> Iterator[Installed]:
    """An empty environment with the wheel and more packages; needs a package index, or pip's cache."""
    environment, home = folder / "environment", folder / "home"
    home.mkdir()
    run(sys.executable, "-m", "venv", environment, folder=folder)
    python = environment / "bin" / "python"
    constraints = ("-c", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", "-q", *constraints, wheel, *more, folder=home, limit_s=BUILD_LIMIT_S)
    yield Installed(environment / "bin", home)
    shutil.rmtree(environment)
