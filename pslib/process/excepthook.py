"""Excepthook: print a pslib error as one line, without a traceback."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from pslib.config import DEBUG_VARIABLE
from pslib.errors import PslibError


def told(error: BaseException) -> bool:
    """Return True if the error's message suffices: the fault is not in pslib."""
    ours = isinstance(error, PslibError) and error.exit_code == PslibError.exit_code
    return isinstance(error, PslibError) and not ours and os.environ.get(DEBUG_VARIABLE) != "1"


def uncaught_in_a_line() -> None:
    """Install an excepthook that prints an uncaught pslib error as one line.

    The process then exits with the code that `pslib.errors` gives the error.

    Other errors keep their tracebacks. Nothing changes in a notebook or a debugger, which have their own
    hooks, nor at Python's prompt.
    """
    if sys.excepthook is sys.__excepthook__ and not (sys.flags.interactive or hasattr(sys, "ps1")):
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not told(error):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("".join(f"pslib: {line}\n" for line in str(error).splitlines()))
    assert isinstance(error, PslibError)
    sys.exit(error.exit_code)
