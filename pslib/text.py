"""Numbers of things, as people say them, and tables of a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


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


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a table of names and values as HTML, for a notebook."""
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(rows[name]))}</td></tr>" for name in rows)
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"
