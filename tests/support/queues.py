"""Two queues for two workers: tests that start processes, one after the other, beside all others.

Most tests keep one core busy, so two workers take little more than half of the time. Those that start
processes keep several busy, and wait for them: two of them at once would wait for each other. They take more
than half of the time, so some come last, in a queue for the worker that is done with the other tests: those
of places (pods, Ray, hosts over ssh), which wait most, and of the launcher's own parts.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["queue_of", "starts_processes"]

TESTS = Path(__file__).resolve().parents[1]
PROCESSES, LAST = "processes", "last"
"""Names of their queues; each other file has one of its own name."""
_LAST = tuple(f"launch/{name}/" for name in ("places", "supervisor", "worker", "cli"))
"""Folders of `LAST`: 1,020 s of 3,300 s, beside 1,160 s of tests that start none (2026-11-29, two cores)."""
_WORDS = r"\b(subprocess|multiprocessing)\b", r"os\.fork", r"^(from|import) launch", r"\bstart: Callable"
_STARTS = re.compile("|".join(_WORDS), re.M)
_HELPERS = re.compile(r"from tests\.(?!simulation)([\w.]+) import")  # the simulator starts none


@cache
def starts_processes(path: Path) -> bool:
    """Return True if a file of tests, or a helper that it imports, says that it starts processes."""
    texts: dict[Path, str] = {}
    to_read = [path]
    while to_read:  # helpers import each other
        here = to_read.pop()
        if here not in texts and here.is_file():
            texts[here] = here.read_text()
            to_read += [TESTS / f"{name.replace('.', '/')}.py" for name in _HELPERS.findall(texts[here])]
    return any(_STARTS.search(text) for text in texts.values())


def queue_of(path: Path) -> tuple[int, str]:
    """Return the order of a test file's queue among all, and its name."""
    name = str(path.relative_to(TESTS))
    if not starts_processes(path):
        return 1, name
    return (2, LAST) if name.startswith(_LAST) else (0, PROCESSES)
