"""Forged logs: records of the golden log, changed under checksums that are right.

``python -m tests.update_log.forged FIRST COUNT`` tries mutants and prints a line for each fault.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgpack

from pslib.errors import PslibError
from pslib.update_log import DiskFiles, RollingLog
from pslib.update_log.records import padding
from pslib.update_log.shard_log import IMAGES, recover
from tests.checkpoint.forged import change_bytes, change_entry
from tests.update_log.test_golden import GOLDEN
from tests.update_log.test_replay import ABOUT, Run


class Bodies:
    """A log of these record bodies, as `recover` reads it."""

    kinds = frozenset({IMAGES})

    def __init__(self, bodies: list[tuple[Any, bytes]]) -> None:
        self._bodies = bodies

    def heads(self) -> Iterator[tuple[Any, Callable[[int, int], bytes]]]:
        for head, body in self._bodies:
            yield head, lambda start, size, body=body: body[start : start + size]

    def records(self) -> Iterator[Any]:
        for head, body in self._bodies:
            yield SimpleNamespace(number=head.number, body=body)


def golden_bodies() -> list[tuple[Any, bytes]]:
    log = RollingLog(DiskFiles(GOLDEN), ABOUT)
    heads = {head.number: head for head, _read in log.heads()}
    return [(heads[record.number], bytes(record.body)) for record in log.records()]


def forged(body: bytes, choice: random.Random) -> bytes:
    """Change bytes anywhere in a body, or an entry of its header."""
    data = bytearray(body)
    size = int.from_bytes(data[:8], "little")
    if choice.randrange(3) == 0:
        change_bytes(data, choice)
        return bytes(data)
    described = msgpack.unpackb(body[8 : 8 + size], strict_map_key=False)
    change_entry(described, choice)
    try:
        header = msgpack.packb(described)
    except (OverflowError, ValueError, TypeError):  # a value that msgpack has not
        return b""
    rest = body[8 + size + padding(size) :]
    return len(header).to_bytes(8, "little") + header + bytes(padding(len(header))) + rest


def fault_of(bodies: list[tuple[Any, bytes]], seed: int) -> str | None:
    """Return the fault in the treatment of a mutant, or None."""
    choice = random.Random(seed)
    changed = list(bodies)
    place = choice.randrange(len(changed))
    changed[place] = (changed[place][0], forged(changed[place][1], choice))
    shard: Any = Run.blank()
    try:
        recover(Bodies(changed), shard, lambda *_: None)  # type: ignore[arg-type]
    except PslibError as error:
        return f"more than a line: {error}" if len(str(error).splitlines()) > 1 else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for store in shard.stores.values():
        store.check_consistency()
    return None


def main(first: int, count: int) -> int:
    """Try mutants and print a line for each fault; return the number of them."""
    bodies, faults = golden_bodies(), 0
    for seed in range(first, first + count):
        print(f"mutant {seed}", file=sys.stderr, flush=True)  # the last one, where the process ends here
        if fault := fault_of(bodies, seed):
            faults += 1
            print(f"{seed}: {fault[:300]}", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(min(99, main(*map(int, sys.argv[1:]))))
