"""What all servers have answered to a control call, as one value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pslib.protocol.messages import Message, Result
from pslib.protocol.server_session import merge_results

__all__ = ["files_of", "rows_of", "stats_of"]


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
