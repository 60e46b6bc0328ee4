"""Lines of a worker that are less than a warning: for the file that its launcher keeps, and for no screen."""

from __future__ import annotations

import logging

__all__ = ["LOG_PREFIX", "write_log_lines"]

LOG_PREFIX = "pslib-log "
"""A launcher copies such lines to the worker's log, and neither shows nor remembers them."""


class _Level(int):
    """A level that is known again: a script may set its own on our logger, and then wants these records."""


_INFO = _Level(logging.INFO)


def write_log_lines() -> None:
    """From now on logger "pslib" writes what is less than a warning to standard error, as `LOG_PREFIX` lines.

    For processes of a launcher. Nothing else of logging changes: a warning goes where it went before, and a
    script that sets logging up for itself gets of us what it would get without this.
    """
    log = logging.getLogger("pslib")
    if log.level is not _INFO:
        log.setLevel(_INFO)
        log.addFilter(_LogLines())


class _LogLines(logging.Filter):
    """Writes a record and says whether the handlers of others would have got it anyway."""

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
