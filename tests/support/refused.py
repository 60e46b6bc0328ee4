"""Expected end of a call with a wrong argument: a pslib error, with a line for each problem."""

from __future__ import annotations

from collections.abc import Callable

from pslib.errors import ConfigurationError, PslibError

__all__ = ["error_of", "refused"]


def error_of(call: Callable[[], object]) -> PslibError | None:
    """Return the pslib error that a call raises; any other gets through and fails the test."""
    try:
        call()
    except PslibError as error:
        return error
    return None


def refused(call: Callable[[], object], argument: str) -> list[str]:
    """The lines of the error, each of which must be one and one of which must name the argument; or none."""
    error = error_of(call)
    if error is None:
        return []
    lines = list(error.problems) if isinstance(error, ConfigurationError) else [str(error)]
    assert error.exit_code == 64
    assert lines
    assert all(len(line.splitlines()) == 1 and len(line) < 300 for line in lines), lines
    assert any(argument in line for line in lines), (argument, lines)
    return lines
