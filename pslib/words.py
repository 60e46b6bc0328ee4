"""Numbers of things, as people say them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``2 rows``, ``1,000 rows``; ``plural`` is for nouns that take no ``s``."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
