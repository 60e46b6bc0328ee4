"""Mapping between the codes of a `Failure` and exceptions."""

from __future__ import annotations

from pslib.errors import (
    AccessError,
    CheckpointError,
    CheckpointFullError,
    ConfigurationError,
    LogFullError,
    LogStillFullError,
    MemoryLimitError,
    PslibError,
    RemoteProtocolError,
    SupersededError,
    UnavailableError,
    UnknownTableError,
    WorkDoneError,
)
from pslib.wire.applied_pushes import FencedError
from pslib.wire.fields import Message
from pslib.wire.messages import Failure

COUNTS_AS_LOST = "the coordinator counts this process as lost"
"""Prefix of the reason when others have this process's rank, or its work."""
CHARS_MAX = 1000
"""Longest error text, so that it fits a message, whatever it quotes."""

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (FencedError, "fenced"),
    (AccessError, "forbidden"),
    (UnknownTableError, "unknown-table"),
    (CheckpointFullError, "checkpoint-full"),
    (CheckpointError, "checkpoint"),
    (LogFullError, "log-full"),
    (MemoryLimitError, "memory-limit"),
    (PslibError, "configuration"),
)
"""Codes by exception class; the first match counts, and no match is an internal error."""
_ERRORS: dict[str, type[PslibError]] = {
    "configuration": ConfigurationError,
    "unknown-table": UnknownTableError,
    "forbidden": AccessError,
    "fenced": SupersededError,
    "checkpoint": CheckpointError,
    "checkpoint-full": CheckpointFullError,
    "log-full": LogFullError,
    "log-still-full": LogStillFullError,
    "memory-limit": MemoryLimitError,
    "protocol": RemoteProtocolError,
    "work-done": WorkDoneError,
}


def failure_of(error: Exception) -> Failure:
    """Return the refusal for an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Failure(code, str(error))
    return Failure("internal", f"{type(error).__name__}: {error}")


def error_of(failure: Failure, peer: str) -> PslibError:
    """Return the exception for a refusal from ``peer``; a thread of this process is not named."""
    text = failure.text if peer.startswith("memory:") else f"{peer}: {failure.text}"
    return _ERRORS.get(failure.code, UnavailableError)(text)


def fitting(answer: Message) -> Message:
    """Return a reply that can be sent: the text of a refusal is cut where it is too long."""
    return Failure(answer.code, answer.text[:CHARS_MAX]) if isinstance(answer, Failure) else answer
