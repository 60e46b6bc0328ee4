"""Records of pslib's loggers as lines for the launcher; logging of a script is as without them."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from contextlib import suppress
from typing import IO

from launch.worker.log_lines import LOG, PEOPLE_PREFIX, SCREEN, USER, Entry, sent_line

_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}
"""Names of levels; all above are errors."""


class _Level(int):
    """A recognisable level: a script that sets its own level on the pslib logger handles these records."""


_INFO = _Level(logging.INFO)


def send_records() -> None:
    """Send records of pslib's loggers to the launcher, from `logging.INFO` on.

    For processes of a launcher, and of `pslib role`. The rest of logging is unchanged: a script that
    configures logging receives the same records of pslib as without this call.
    """
    log = logging.getLogger("pslib")
    if not any(isinstance(handler, _Sender) for handler in log.handlers):
        log.setLevel(_INFO)
        log.addHandler(_Sender(sys.stderr))
        log.propagate = False  # the handler passes records on
        threading.excepthook = _send_end_of_thread


def stop_records() -> None:
    """Undo `send_records`."""
    log = logging.getLogger("pslib")
    for handler in log.handlers:
        if isinstance(handler, _Sender):
            log.removeHandler(handler)
            log.propagate = True
            threading.excepthook = threading.__excepthook__
            if log.level is _INFO:
                log.setLevel(logging.NOTSET)


def send(entry: Entry, stream: IO[str] | None = None) -> None:
    """Send an entry to the launcher; nothing happens when that has gone."""
    with suppress(OSError, ValueError):
        stream = stream or sys.stderr
        stream.write(f"{sent_line(entry)}\n")  # as one, which keeps lines of threads apart
        stream.flush()


def send_error(message: str, logger: str, trace: bool, to: str = USER, level: str = "error") -> None:
    """Send an error, with the traceback of the exception that is handled if ``trace``."""
    send(Entry(message, level, logger, traceback.format_exc() if trace else None, to))


def send_crash() -> None:
    """Send the exception of a script that ends with it: a launcher shows the traceback as its output."""
    kind, error, _ = sys.exc_info()
    last = "".join(traceback.format_exception_only(kind, error)).rstrip("\n")
    send_error(last, "output", trace=True, to=SCREEN)


def _send_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Send the exception of a thread, as `threading.excepthook` prints it."""
    if ended.exc_type is not SystemExit:
        trace = "".join(traceback.format_exception(ended.exc_value or ended.exc_type()))
        name = ended.thread.name if ended.thread is not None else "?"
        send(Entry(f"Exception in thread {name}", "error", "output", trace, SCREEN))


class _Sender(logging.Handler):
    """Handler that sends records, and passes them on as if it were not there."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream  # a script may replace sys.stderr
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        log, root = logging.getLogger("pslib"), logging.getLogger()
        wanted = record.levelno >= (root.level if _own_level(record.name) is _INFO else logging.NOTSET)
        configured = bool(root.handlers) or any(one is not self for one in log.handlers)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            self.handleError(record)
            return
        said = wanted and not configured and record.levelno >= logging.WARNING
        send(self._entry(record, text, said and text.startswith(PEOPLE_PREFIX)), self._stream)
        if wanted and root.handlers:
            root.callHandlers(record)

    def _entry(self, record: logging.LogRecord, text: str, to_user: bool) -> Entry:
        """Return the record as an entry."""
        lines = [line.removeprefix(PEOPLE_PREFIX) for line in text.splitlines()]
        trace = self._formatter.formatException(record.exc_info) if record.exc_info else None
        level = _LEVELS.get(record.levelno, "error")
        return Entry("\n".join(lines), level, record.name, trace, USER if to_user else LOG)


def _own_level(name: str) -> int:
    """Return the level of the nearest logger that has one."""
    log: logging.Logger | None = logging.getLogger(name)
    while log is not None and log.level == logging.NOTSET:
        log = log.parent
    return logging.NOTSET if log is None else log.level
