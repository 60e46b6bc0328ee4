"""Excepthook: print a pslib error as one line, and the line of the script that it came from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from traceback import extract_tb, print_exception
from types import TracebackType

from pslib.config import DEBUG_VARIABLE
from pslib.errors import ConfigurationError, PslibError

OWN = ("cython_ext", "launch", "rec_models")
"""Packages of pslib beside ``pslib``, with names that others use too."""
ROOT = Path(__file__).resolve().parents[2]
"""Folder of pslib and of the packages beside it."""
PACKAGES = tuple(str(ROOT / name) + os.sep for name in (*OWN, "pslib"))
"""Beginnings of the paths of their files."""


def told(error: BaseException) -> bool:
    """Return True if the error's message suffices: the fault is not in pslib."""
    ours = isinstance(error, PslibError) and error.exit_code == PslibError.exit_code
    return isinstance(error, PslibError) and not ours and os.environ.get(DEBUG_VARIABLE) != "1"


def import_error(error: ImportError) -> Exception:
    """Return the error of an import of pslib: one line, where a file of the user's stands for a package."""
    name = (error.name or "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if name not in OWN or file is None or Path(file).is_relative_to(ROOT):
        return error
    return ConfigurationError(name_taken(file))


def name_taken(file: str) -> str:
    """Return the line about a user's file with the name of a package of pslib."""
    return (
        f"{file}: expected another name, as pslib has a package of that name and a process imports one of "
        "the two; rename it"
    )


def uncaught_in_a_line() -> None:
    """Install an excepthook that prints an uncaught pslib error as one line, and where the script caused it.

    The process then exits with the code that `pslib.errors` gives the error.

    Of a Ctrl-C in a call of pslib, the traceback ends where the script makes that call. Other errors keep
    theirs. Nothing changes in a notebook or a debugger, which have their own hooks, nor at Python's prompt.
    """
    if sys.excepthook is sys.__excepthook__ and not (sys.flags.interactive or hasattr(sys, "ps1")):
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ImportError):
        error = import_error(error)
    if isinstance(error, KeyboardInterrupt) and (frames := _frames_before_pslib(trace)):
        print_exception(kind, error, trace, limit=frames, chain=False)
        return
    if not told(error):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("".join(f"pslib: {line}\n" for line in str(error).splitlines()))
    sys.stderr.write(_users_line(trace))
    assert isinstance(error, PslibError)
    sys.exit(error.exit_code)


def _frames_before_pslib(trace: TracebackType | None) -> int:
    """Return the number of frames up to the first of pslib; 0 if there is none, or all are wanted."""
    ours = [one.filename.startswith(PACKAGES) for one in extract_tb(trace)]
    return 0 if os.environ.get(DEBUG_VARIABLE) == "1" or not any(ours) else ours.index(True)


def _users_line(trace: TracebackType | None) -> str:
    """Return the line of the user's own code that an error came from; empty where there is none in a file."""
    frames = [one for one in extract_tb(trace) if one.line and not one.filename.startswith(PACKAGES)]
    return f"  {frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}\n" if frames else ""
