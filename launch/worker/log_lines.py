"""Lines of a worker for its launcher, and the lines of log files, as text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from pslib.clock import utc_stamp

MESSAGE_PREFIX = "pslib-"
"""Prefix of a worker's messages to its launcher: ``pslib-word rest of the line``."""

LOG_PREFIX = "pslib-log "
"""Prefix of a record of a worker: ``pslib-log JSON``, with the fields of an `Entry`."""

PEOPLE_PREFIX = "pslib: "
"""Prefix of a line for the user."""

MESSAGE, OUTPUT = "message", "output"
"""Such lines' place of a level in text: messages to the launcher, and output of scripts and libraries."""

LOG, USER, SCREEN, LAUNCHER = "log", "user", "screen", "launcher"
"""Destinations of an entry beside the log: nobody, the user, the screen of a script, the launcher."""

_UNLEVELLED = {"output": OUTPUT, "pslib.message": MESSAGE}
"""Loggers whose lines have no level in text."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Process that a line comes from.

    Attributes
    ----------
    role : str
        "coordinator", "server", "trainer" or "launcher".
    rank : int or None
        Rank of a server or trainer.
    run : str or None
        Cluster id; None: not known yet.
    """

    role: str
    rank: int | None = None
    run: str | None = None

    @property
    def process(self) -> str:
        """Name in a text line: ``server-1``."""
        return self.role if self.rank is None else f"{self.role}-{self.rank}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Record of a log.

    Attributes
    ----------
    message : str
        One or more lines.
    level : str
        "info", "warning" or "error"; of output "info" or, of an exception, "error".
    logger : str
        Name of the logger; "output" for what scripts and libraries print.
    exception : str or None
        Traceback.
    to : str
        `LOG`, `USER`, `SCREEN` or `LAUNCHER`.
    """

    message: str
    level: str = "info"
    logger: str = "output"
    exception: str | None = None
    to: str = SCREEN

    @property
    def lines(self) -> list[str]:
        """The traceback, which ends with the message of its exception, and the message."""
        trace, own = _split(self.exception), self.message.split("\n")
        return trace if trace[-len(own) :] == own else trace + own

    @property
    def printed(self) -> list[str]:
        """The lines as a process prints them without a launcher; empty if for the log only."""
        if self.to == LOG:
            return []
        if self.to != USER:
            return self.lines
        return _split(self.exception) + [f"{PEOPLE_PREFIX}{line}" for line in self.message.split("\n")]


def _split(text: str | None) -> list[str]:
    """Return the lines of a traceback; a line feed alone ends one, as in a file."""
    return text.rstrip("\n").split("\n") if text else []


def sent_line(entry: Entry) -> str:
    """Return the line by which a worker sends an entry to its launcher."""
    return f"{LOG_PREFIX}{json.dumps(asdict(entry))}"


def read_lines(line: str) -> list[Entry]:
    """Return the entries of a line that a process has printed: two for a record behind a bar's output."""
    output, mark, record = line.partition(f"{LOG_PREFIX}{{")
    if mark and output and (entry := _sent(f"{{{record}")):
        return [Entry(output.rstrip("\r")), entry]
    return [_entry_of(line)]


def _entry_of(line: str) -> Entry:
    if line.startswith(LOG_PREFIX):
        return _sent(line.removeprefix(LOG_PREFIX)) or Entry(line)
    if line.startswith(MESSAGE_PREFIX):
        return Entry(line, "debug", "pslib.message", to=LAUNCHER)
    if line.startswith(PEOPLE_PREFIX):
        return Entry(line.removeprefix(PEOPLE_PREFIX), "warning", "pslib", to=USER)
    return Entry(line)


def _sent(text: str) -> Entry | None:
    """Return the entry that a worker has sent; None for anything else, since a script may print it."""
    try:
        entry = Entry(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = [entry.message, entry.level, entry.logger, entry.exception or "", entry.to]
    return entry if all(isinstance(one, str) for one in texts) else None


def log_text(entry: Entry, origin: Origin, as_json: bool) -> str:
    """Return an entry as a log has it: one line of JSON, or lines of text, with their ends."""
    time_, entry = utc_stamp(), _printable(entry)
    if not as_json:
        return "".join(f"{line}\n" for line in _text_lines(time_, entry, origin.process))
    plain = {
        "time": time_,
        "level": entry.level,
        "logger": entry.logger,
        "role": origin.role,
        "rank": origin.rank,
        "run": origin.run,
        "message": entry.message,
        "exception": entry.exception,
    }
    return f"{json.dumps(plain)}\n"  # ASCII: no terminal, locale or reader of lines can break it


def shown_lines(line: str) -> Iterator[str]:
    """Yield the lines of text of a line of a log file in either format."""
    plain = _plain(line)
    if plain is None:
        yield line
        return
    entry = Entry(plain["message"], plain["level"], plain["logger"], plain["exception"])
    yield from _text_lines(plain["time"], entry, Origin(plain["role"], plain["rank"]).process)


def _plain(line: str) -> dict[str, Any] | None:
    """Return the fields of a line in JSON; None for a line of text."""
    if not line.startswith("{"):
        return None
    try:
        plain = json.loads(line)
        texts = [plain[name] for name in ("time", "level", "logger", "role", "message")]
        whole = {"rank": None, "exception": None, **plain}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return whole if all(isinstance(text, str) for text in texts) else None


def _text_lines(time_: str, entry: Entry, process: str) -> Iterator[str]:
    """Yield lines of time, level, process and text."""
    level = _UNLEVELLED.get(entry.logger, entry.level)
    for line in entry.lines:
        yield f"{time_} {level:<7} {process} {line}"


def _printable(entry: Entry) -> Entry:
    """Return an entry whose texts are valid Unicode: a name of a file may have bytes that are not."""
    message, trace = (
        text.encode("utf-8", "backslashreplace").decode() for text in (entry.message, entry.exception or "")
    )
    return replace(entry, message=message, exception=trace or None)
