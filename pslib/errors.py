"""Every error that pslib raises on purpose, as one tree.

::

    PslibError                       exit code 70 (our own fault)
    ├── ConfigurationError           64  what the user asked for can't be done
    │   ├── AddressInUseError        64  another process listens there, perhaps for a moment
    │   ├── DataError                64  a file or a value in it is not what the schema says
    │   ├── UnknownTableError        64  a table that no trainer has set up
    │   └── AccessError              64  a key opens no connection, or may not ask this
    ├── ProtocolError                70  bytes that are not a legal message
    │   ├── LocalProtocolError           this side tried to send something illegal
    │   └── RemoteProtocolError          the other side did
    │       └── ForeignMessageError      it belongs to another cluster, or is of another version
    ├── UnavailableError             69  a process that is needed does not answer
    │   ├── WaitTimeoutError             no answer in time
    │   ├── ServerLostError              a server died, and rows with it
    │   ├── ServerLeftError              one that was asked to leave has not answered before
    │   ├── SupersededError              others have this process's work by now
    │   ├── WorkDoneError                a trainer came when all work was done
    │   ├── MemoryLimitError             a server has no room for new rows
    │   ├── LogFullError                 no space for the update log; nothing was changed
    │   │   └── LogStillFullError        none was made during the wait
    │   └── PreemptedError           75  asked to leave; state has been flushed
    ├── CheckpointError              64
    │   ├── CheckpointFullError      69  no space for the next one; the last one is whole
    │   ├── CheckpointCorruptError       bytes do not match the manifest
    │   └── CheckpointIncompatibleError  a checkpoint of another model
    └── LogError                     64  an update log or journal can't be read or written
        ├── LogCorruptError              bytes do not match their checksums
        └── LogForeignError              a log of another cluster, or of a newer format

Every message is one line: what was expected, what came, what to do next. Quoted text may be of any length
and hold any character: here, at the root, a line is cut at `pslib.text.LINE_CHARS` and made printable.
"""

from __future__ import annotations

from collections.abc import Sequence

from pslib.text import as_line, counted

EXIT_DONE = 0
EXIT_INTERRUPTED = 130
"""The shell's code for Ctrl-C."""
EXIT_NO_ROOM = 71
"""Code of `pslib role` for a lack of memory or disk space: its next start would find none either, at once."""
EXIT_SIGNALS = 126
"""A shell's exit codes from here on say that a signal, or a lost connection, has ended the command."""

PROBLEMS_MAX = 50
"""Most problems of one error; a thousand files with the same fault need not all be listed."""


class PslibError(Exception):
    """Base of all errors that pslib raises on purpose; ``exit_code`` is the command line's exit status."""

    exit_code = 70

    def __init__(self, *args: object) -> None:
        super().__init__(*(_lines(one) if isinstance(one, str) else one for one in args))


def _lines(text: str) -> str:
    return "\n".join(as_line(line) for line in text.split("\n"))


class ConfigurationError(PslibError):
    """The request can't be fulfilled as the user made it; nothing was changed.

    Parameters
    ----------
    *problems
        One line each; all that are known are given at once, and `PROBLEMS_MAX` of them are kept.
    """

    exit_code = 64

    def __init__(self, *problems: str) -> None:
        kept = [as_line(problem) for problem in problems[:PROBLEMS_MAX]]
        more = len(problems) - len(kept)
        kept += [f"... and {counted(more, 'more problem')}"] if more else []
        super().__init__("\n".join(kept))
        self.problems: Sequence[str] = tuple(kept)


class AddressInUseError(ConfigurationError):
    """Another process listens at the address; it may be free again in a moment."""


class DataError(ConfigurationError):
    """A data file, or a value in it, is not what the schema says; the message names file, row and column."""


class UnknownTableError(ConfigurationError):
    """A server has no table of that name: no trainer has set it up there."""


class AccessError(ConfigurationError):
    """A key opens no connection, or its role may not ask this; the message says which key would."""


class ProtocolError(PslibError):
    """Bytes or a message that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """This side tried to send what the protocol forbids: a fault of the caller."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what the protocol forbids: its connection is dropped, nothing else changes."""


class ForeignMessageError(RemoteProtocolError):
    """A message of another cluster or of another version of the protocol; the message says which."""


class UnavailableError(PslibError):
    """A process that is needed does not answer."""

    exit_code = 69


class WaitTimeoutError(UnavailableError):
    """A wait ended without an answer; the message names the waiting process, the other one, and the time."""


class ServerLostError(UnavailableError):
    """A server died; the message names it and says what was lost with it."""


class ServerLeftError(UnavailableError):
    """A server has left the cluster in order, without an answer; others have its rows, and can be asked."""


class SupersededError(UnavailableError):
    """This process was silent for too long: others have its place or its work."""


class WorkDoneError(UnavailableError):
    """A trainer came when the others had done all work of its cluster."""


class MemoryLimitError(UnavailableError):
    """A server is at its memory limit and took no new row of a push or load; the message says what to do.

    Rows on other servers or shard threads may have been applied. The push may be sent again under
    its name, when there is room, and still counts once.
    """


class LogFullError(UnavailableError):
    """There is no space for the next record of an update log; nothing was written, nothing has changed."""


class LogStillFullError(LogFullError):
    """No space was made for an update log during the wait; a successor would wait as well."""


class PreemptedError(UnavailableError):
    """The process was asked to leave and has flushed its work."""

    exit_code = 75


class CheckpointError(PslibError):
    """A checkpoint can't be written or read."""

    exit_code = 64


class CheckpointFullError(CheckpointError):
    """There is no space for a checkpoint; that of before is whole, and the training is as it was."""

    exit_code = 69


class CheckpointCorruptError(CheckpointError):
    """A file of a checkpoint is missing, cut or changed; the message names the file."""


class CheckpointIncompatibleError(CheckpointError):
    """A sound checkpoint that belongs to other tables or to a newer format."""


class LogError(PslibError):
    """An update log or a journal can't be read or written."""

    exit_code = 64


class LogCorruptError(LogError):
    """A log is damaged in its middle; the message names file and offset, and nothing was cut."""


class LogForeignError(LogError):
    """A sound log that belongs to another cluster, or to a newer format."""
