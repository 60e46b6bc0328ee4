"""What all servers have answered to a control call, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pslib.client.pending import Pending
from pslib.errors import PreemptedError, PslibError, SupersededError
from pslib.protocol.messages import Message, Result
from pslib.protocol.server_session import merge_results

__all__ = ["all_of", "files_of", "rows_of", "stats_of"]


def all_of(pending: Sequence[Pending[Message]], outcome: str) -> list[Message]:
    """Answers of all servers, waited for also behind a failure; the first one is raised.

    ``outcome`` is added to it where there are several servers: what is true then of all of them, with the
    number of those that have done it and of all for its ``{}``. Whose work others have by now can't say it.
    """
    answers, errors = list[Message](), list[PslibError]()
    for one in pending:
        try:
            answers.append(one.wait())
        except PreemptedError:  # of a signal, and of no server: who waits is to leave
            raise
        except PslibError as error:
            errors.append(error)
    if superseded := [error for error in errors if isinstance(error, SupersededError)]:
        raise superseded[0]
    if errors:
        told = f"; {outcome.format(len(answers), len(pending))}" if len(pending) > 1 else ""
        raise type(errors[0])(f"{errors[0]}{told}") from errors[0]
    return answers


def _values(answers: Iterable[Message]) -> list[dict[str, Any]]:
    return [dict(answer.values) for answer in answers if isinstance(answer, Result)]


def stats_of(answers: Iterable[Message]) -> dict[str, Any]:
    """Counters summed over servers, and of each table the memory that a row takes."""
    merged = merge_results(_values(answers))
    for table in merged.get("tables", {}).values():
        table["bytes_a_row"] = table["resident_bytes"] / table["rows"] if table["rows"] else 0.0
    return merged


def files_of(answers: Iterable[Message]) -> list[dict[str, Any]]:
    """Manifest entries of the files that servers have written."""
    return [entry for values in _values(answers) for entry in values["files"]]


def rows_of(answers: Iterable[Message]) -> int:
    """How many rows servers have loaded together."""
    return sum(int(values["rows"]) for values in _values(answers))
