"""Forged checkpoints: mutants whose checksums are right, and what ``verify`` and ``load`` make of them.

``python -m tests.checkpoint.forged FOLDER FIRST COUNT`` tries mutants in a process of its own, which a fault
of a kernel or of Arrow would end, and prints a line for each that is not refused as it should be.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pslib.checkpoint import load_shard, newest, read_manifest
from pslib.checkpoint.folders import list_checkpoints
from pslib.checkpoint.manifest import BLOCK_BYTES
from pslib.checkpoint.verification import verify_checkpoint
from pslib.data.column_types import kinds_of
from pslib.errors import PslibError
from pslib.shard.shard import Shard
from pslib.wire.messages import Setup

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VERSIONS = ("checkpoint_v1", "checkpoint_v2", "checkpoint_v3", "checkpoint_v4")
PARTITION_BITS, DENSE_BLOCKS = 4, 2
NUMBERS = (0, 1, -1, 2, 63, -64, 1 << 20, 1 << 30, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 62) + 1)
VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", "../x", "..", "a/b", 0, -1, 7, 1.5, 1 << 31, 1 << 64, -(1 << 70)),
    *([], [0], ["x"], [None], {}, {"x": 1}, {"name": "x"}, float("nan"), "\n", "0" * 500),
)


def with_checksum(plain: dict[str, Any]) -> bytes:
    """A manifest's bytes with the checksum that belongs to them."""
    text = (json.dumps({**plain, "manifest_crc32": "0" * 8}, indent=1, sort_keys=True) + "\n").encode()
    crc = b' "manifest_crc32": "%08x"' % zlib.crc32(text)
    return re.sub(rb'^ "manifest_crc32": "0{8}"', crc, text, count=1, flags=re.MULTILINE)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) below a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def change_entry(plain: dict[str, Any], choice: random.Random) -> None:
    container, key = choice.choice(list(_places(plain)))
    what = choice.randrange(4)
    if what == 0:
        del container[key]
    elif what == 1 and isinstance(container, list):
        container.append(container[key])
    elif what == 2 and isinstance(container[key], int):
        container[key] += choice.choice((-1, 1, 1 << 32))
    else:
        container[key] = choice.choice(VALUES)


def change_bytes(data: bytearray, choice: random.Random) -> None:
    for _ in range(choice.choice((1, 1, 2, 4))):
        what, place = choice.randrange(5), choice.randrange(max(1, len(data) - 8))
        if what == 0:
            data[place] ^= 1 << choice.randrange(8)
        elif what == 1 and choice.randrange(8) == 0:
            del data[place:]
        elif what == 2:
            data[place : place + 8] = choice.randbytes(len(data[place : place + 8]))
        else:
            kind, width = choice.choice((("<i", 4), ("<q", 8)))
            place -= place % width
            number = choice.choice((*NUMBERS, choice.randrange(200), len(data)))
            number = max(min(number, (1 << (8 * width - 1)) - 1), -(1 << (8 * width - 1)))
            data[place : place + width] = struct.pack(kind, number)


def copy_of(version: str, folder: Path) -> Path:
    """Copy a golden checkpoint; return the place of it, or of the last of a chain."""
    shutil.copytree(GOLDEN / version, folder)
    return Path(newest(str(folder)))


def _resum(entry: dict[str, Any], data: bytes) -> None:
    """Set size and checksums of a file's entry."""
    entry |= {"bytes": len(data), "crc32": zlib.crc32(data)}
    if "blocks" in entry:
        pieces = (data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))
        entry["blocks"] = [zlib.crc32(piece) for piece in pieces]


def rewritten(path: Path, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Change the record batches of a checkpoint's files, under sums that are right."""
    plain = json.loads((path / "manifest.json").read_text())
    for entry in plain["files"]:
        with pa.ipc.open_file(path / entry["name"]) as reader:
            batches = [change(reader.get_batch(number)) for number in range(reader.num_record_batches)]
            with pa.ipc.new_file(path / entry["name"], reader.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
        _resum(entry, (path / entry["name"]).read_bytes())
    (path / "manifest.json").write_bytes(with_checksum(plain))


def changed_bytes(path: Path, names: str, change: Callable[[bytearray], object]) -> None:
    """Change the bytes of those files of a checkpoint that fit a pattern, under sums that are right."""
    plain = json.loads((path / "manifest.json").read_text())
    for entry in plain["files"]:
        if fnmatch(entry["name"], names):
            data = bytearray((path / entry["name"]).read_bytes())
            change(data)
            (path / entry["name"]).write_bytes(data)
            _resum(entry, bytes(data))
    (path / "manifest.json").write_bytes(with_checksum(plain))


def mutant(folder: Path, seed: int) -> Path:
    """Make one forged checkpoint in a folder that does not exist; return the checkpoint to load."""
    choice = random.Random(seed)
    path = copy_of(choice.choice(VERSIONS), folder)
    link = choice.choice(sorted(folder.rglob("manifest.json")))
    plain = json.loads(link.read_text())
    if choice.randrange(3) == 0:
        change_entry(plain, choice)
    else:
        entry = choice.choice(plain["files"])
        file = link.with_name(entry["name"])
        data = bytearray(file.read_bytes())
        change_bytes(data, choice)
        file.write_bytes(data)
        _resum(entry, bytes(data))
    link.write_bytes(with_checksum(plain))
    return path


def shard_for(name: str) -> Shard:
    """A shard with the tables of a golden checkpoint."""
    manifest = read_manifest(newest(str(GOLDEN / name)))
    shard = Shard(PARTITION_BITS, DENSE_BLOCKS)
    shard.own(np.arange((1 << PARTITION_BITS) + DENSE_BLOCKS))
    length = manifest.dense["length"]
    optimizer = manifest.dense.get("optimizer", {})
    shard.setup(Setup({"tables": manifest.tables}, length, optimizer, np.zeros(length, np.float32)))
    return shard


def _problem(call: Any) -> str | None:
    """None, or the line with which a call refuses; an error of another kind is a fault."""
    try:
        found = call()
    except PslibError as error:
        return str(error)
    return "; ".join(found.problems) or None if hasattr(found, "problems") else None


def fault_of(folder: Path, seed: int) -> str | None:
    """Return the fault in the treatment of a mutant, or None."""
    path = str(mutant(folder, seed))
    shard = shard_for(random.Random(seed).choice(VERSIONS))
    try:
        refused = _problem(lambda: verify_checkpoint(path))
        _problem(lambda: kinds_of(read_manifest(path).about, path))
        _problem(lambda: [one.rows for one in list_checkpoints(str(folder))])
        loaded = _problem(lambda: load_shard(shard, path))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if refused and not loaded:
        return f"verify refuses it, and load takes it: {refused}"
    for line in (refused, loaded):
        if line and len(line.strip().splitlines()) > 1:
            return f"more than a line: {line}"
    return None


def main(folder: Path, first: int, count: int) -> int:
    """Try mutants and print a line for each fault; return the number of them."""
    faults = 0
    for seed in range(first, first + count):
        print(f"mutant {seed}", file=sys.stderr, flush=True)  # the last one, where the process ends here
        if fault := fault_of(folder / "mutant", seed):
            faults += 1
            print(f"{seed}: {fault[:300]}", flush=True)
        shutil.rmtree(folder / "mutant")
    return faults


if __name__ == "__main__":
    sys.exit(min(99, main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
