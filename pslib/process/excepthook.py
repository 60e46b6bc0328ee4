"""What a script shows that ends with one of our errors: its line, not where in our code it was raised."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from pslib.config import DEBUG_VARIABLE
from pslib.errors import PslibError

__all__ = ["told", "uncaught_in_a_line"]


def told(error: BaseException) -> bool:
    """Whether an error says in its own line all that its reader needs: the fault is not ours."""
    ours = isinstance(error, PslibError) and error.exit_code == PslibError.exit_code
    return isinstance(error, PslibError) and not ours and os.environ.get(DEBUG_VARIABLE) != "1"


def uncaught_in_a_line() -> None:
    """From now on an error of ours that nobody catches is a line, and its exit code that of `pslib.errors`.

    Errors of others keep their tracebacks. So do all of them in a notebook or a debugger, which have hooks of
    their own, and at Python's prompt.
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
