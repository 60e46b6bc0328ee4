"""Texts for people: numbers of things, values quoted at a bounded length, and tables; values of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite
from typing import Any

LINE_CHARS = 1000
"""Longest line of an error or a report; it keeps its beginning, which says what, and its end, with advice."""
QUOTED_CHARS = 120
"""Longest value or name that a line quotes."""
LISTED = 3
"""Most names that a line lists, of files say, of which there may be thousands."""


def cut(text: str, chars: int = LINE_CHARS) -> str:
    """Text of at most so many characters: the middle of a longer one is left out."""
    if len(text) <= chars:
        return text
    gap = f"... ({len(text):,} characters) ..."
    tail = (chars - len(gap)) // 3
    return f"{text[: chars - len(gap) - tail]}{gap}{text[-tail:]}"


def short(value: float | None) -> str:
    """Format with four decimals; a dash if undefined."""
    return f"{value:.4f}" if value is not None and isfinite(value) else "-"


def printable(text: str) -> str:
    """Text with escapes in place of the characters that a terminal obeys or can't show."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def as_line(text: str) -> str:
    """Text as one line of output: printable, and cut at `LINE_CHARS`."""
    return cut(printable(text))


def quoted(value: object) -> str:
    """A value as Python writes it, cut at `QUOTED_CHARS`."""
    return as_cell(repr(value))


def as_cell(name: str) -> str:
    """A name in a list or table: printable, and cut at `QUOTED_CHARS`."""
    return cut(printable(name), QUOTED_CHARS)


def listed(names: Iterable[str]) -> str:
    """``a, b, c and 4 others``: the first `LISTED` names, each cut at `QUOTED_CHARS`."""
    every = list(names)
    others = len(every) - LISTED
    first = ", ".join(map(as_cell, every[:LISTED]))
    return f"{first} and {counted(others, 'other')}" if others > 0 else first


def one_line(error: BaseException) -> str:
    """First line of an error message, without characters that a terminal can't show."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``2 rows``, ``1,000 rows``; ``plural`` is for nouns that take no ``s``."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def epoch_text(finished: int, planned: int) -> str:
    """``epoch 2/5``: the one that is under way when one is finished, or the last; people count from 1."""
    return f"epoch {min(finished + 1, planned)}/{planned}"


def behind_text(result: Mapping[str, Any]) -> str:
    """`` after 3 files`` of a stream, which has no epochs, else `` after epoch 2``; empty without either."""
    if "files" in result:
        return f" after {counted(int(result['files']), 'file')}"
    return f" after epoch {result['epoch']}" if "epoch" in result else ""


def json_value(value: Any) -> Any:
    """Convert to what JSON can hold: nan and infinity become null, NumPy's numbers numbers, others texts."""
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    return json_value(value.tolist()) if hasattr(value, "tolist") else str(value)


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a table of names and values as HTML, for a notebook."""
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(rows[name]))}</td></tr>" for name in rows)
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def html_rows(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a row of column names as HTML, for a notebook."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"
