"""Lines of a worker for its launcher, their prefixes, and lines of its log file."""

from __future__ import annotations

import logging

from pslib.clock import utc_stamp

MESSAGE_PREFIX = "pslib-"
"""Prefix of a worker's messages to its launcher: ``pslib-word rest of the line``."""

MESSAGE = "message"
"""Such a line's place of a level in a log file."""

LOG_PREFIX = "pslib-log "
"""Prefix of lines that a launcher copies to the worker's log only."""

PEOPLE_PREFIX = "pslib: "
"""Prefix of lines that a launcher shows to the user."""


def log_line(line: str, process: str) -> str:
    """Return a line of a process as its log file has it: time, level, process, text.

    The level is info or, of a line that the user sees too, warning; output of scripts and libraries, and
    messages to the launcher, have none.
    """
    level = "output"
    if line.startswith(LOG_PREFIX):
        level, line = "info", line.removeprefix(LOG_PREFIX)
    elif line.startswith(MESSAGE_PREFIX):
        level = MESSAGE
    elif line.startswith(PEOPLE_PREFIX):
        level = "warning"
    return f"{utc_stamp()} {level:<7} {process} {line}"


class _Level(int):
    """A recognisable level: a script that sets its own level on the pslib logger handles these records."""


_INFO = _Level(logging.INFO)


def write_log_lines() -> None:
    """Write records of logger "pslib" below a warning to standard error, as `LOG_PREFIX` lines.

    For processes of a launcher. The rest of logging is unchanged: warnings go where they went before, and a
    script that configures logging receives the same records of pslib as without this call.
    """
    log = logging.getLogger("pslib")
    if log.level is not _INFO:
        log.setLevel(_INFO)
        log.addFilter(_LogLines())


class _LogLines(logging.Filter):
    """Filter that writes a record, and passes it on only if other handlers would have received it."""

    def __init__(self) -> None:
        super().__init__()
        self._stderr = logging.StreamHandler()
        self._stderr.setFormatter(_LineFormatter())

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if record.levelno >= logging.WARNING:
            return True
        self._stderr.handle(record)
        log, root = logging.getLogger(record.name), logging.getLogger()
        return record.levelno >= (root.level if log.level is _INFO else log.level)


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).removeprefix("pslib: ").splitlines()
        return "\n".join(f"{LOG_PREFIX}{line}" for line in lines)
