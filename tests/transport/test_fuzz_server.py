"""Live processes under fire: nothing dies, grows or changes, and a good client is served meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from pslib.errors import RemoteProtocolError
from pslib.transport import Keys
from pslib.transport.curve import encrypt_client
from pslib.transport.keys import make_keys, read_keys, write_keys
from pslib.wire.codec import Codec
from pslib.wire.fields import Message
from pslib.wire.messages import ALL_MESSAGES, Pull, Reserve, Stats, Status
from tests.support.messages import EXAMPLES, example, mutants
from tests.support.processes.command import Command

GROWTH_BYTES_MAX = 24 << 20
SERVED_S = 10.0
"""For a pull of 100 rows; on an idle machine the slowest took 0.02 s."""
WARM_UP = 500
WINDOW = 200
"""Messages on their way: below the sockets' own limits, so that none is dropped."""

SCRIPT = """\
import json, os, time
import numpy as np
import pslib
from pslib.table.initializers import Constant

KEYS = np.arange(100, dtype=np.uint64)

def push(client):
    client.push({"item": (KEYS, np.full((100, 2), -1.0, np.float32))}).wait()

def check(client, value):
    assert (client.pull({"item": KEYS}).wait().rows["item"] == value).all()

with pslib.connect() as cluster:
    client = cluster.client
    part = pslib.PartSpec("v", 2, pslib.SGD(learning_rate=1.0), Constant(0.0))
    client.setup([pslib.TableSpec("item", (part,))])
    push(client)
    before = client.stats()
    place = [client.member.coordinator, client.servers[0], os.environ["PSLIB_CLUSTER_ID"]]
    print("ready " + json.dumps(place))
    slowest_s = 0.0
    while not os.path.exists("over"):
        begin_s = time.monotonic()
        check(client, 1.0)
        slowest_s = max(slowest_s, time.monotonic() - begin_s)
    after = client.stats()
    for name in ("rows", "pushes_applied", "updates_applied", "rows_pushed", "maintained"):
        assert before[name] == after[name], name
    push(client)  # its number is the next one: no mark has moved
    check(client, 2.0)
    print(f"unchanged, and served in {slowest_s:.2f} s at most")
"""


class Victim:
    """A running cluster of one server, with or without keys."""

    def __init__(self, folder: Path, keys: bool) -> None:
        (folder / "script.py").write_text(SCRIPT)
        if keys:
            write_keys(folder / "keys", make_keys())
        more = ("--keys", "keys") if keys else ()
        self.reader = read_keys(folder / "keys" / "reader.keys") if keys else None
        self.command = Command(folder, "launch", *more, "--out", "out", "--quiet", "script.py")
        self.command.wait_for("ready ", 40)
        place = json.loads(self.command.lines("ready ")[0].partition("ready ")[2])
        self.coordinator, self.server, self.cluster_id = place

    def held_bytes(self) -> dict[str, int]:
        """Resident memory of the processes under fire."""
        pids = {name: self.command.pid_of(name) for name in ("coordinator", "server 0")}
        return {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}

    def finish(self) -> str:
        """End it; what the good client says of it."""
        (self.command.folder / "over").touch()
        assert self.command.finish(60) == 0, self.command.output
        (line,) = self.command.lines("unchanged")
        return line


class Hostile:
    """Sends what it likes to one address, and reads the answers, of which there is one each."""

    def __init__(self, address: str, codec: Codec, keys: Keys | None) -> None:
        self._codec = codec
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger, self._socket.rcvtimeo = 0, 20_000
        if keys is not None:
            encrypt_client(self._socket, keys)
        self._socket.connect(address)
        self._open = 0

    def send(self, frames: Sequence[bytes]) -> None:
        self._socket.send_multipart(frames)
        self._open += 1
        if self._open == WINDOW:
            self.read()

    def read(self) -> None:
        """Wait for the answers to all that was sent."""
        for _ in range(self._open):
            self._socket.recv_multipart()
        self._open = 0

    def close(self) -> None:
        self._socket.close()


def hostile_frames(codec: Codec, count: int, seed: int, may_change: bool) -> Iterator[list[bytes]]:
    """Mutants to send; without ``may_change`` none that still are legal requests to change something.

    Nobody can tell them from what a trainer wants; where there are keys, its role does. Nor are there any
    that still ask for credit: those may be answered late or never, and here every message has its answer.
    """
    item = {"item": np.arange(3, dtype=np.uint64)}
    seeds: tuple[Message, ...] = (
        *EXAMPLES,
        Pull(item, np.empty(0, np.uint32)),
        example(ALL_MESSAGES["Push"], keys=item, gradients={"item": np.ones((3, 2), np.float32)}),
        example(ALL_MESSAGES["Erase"], keys=item),
    )
    reads = {name for name, kind in ALL_MESSAGES.items() if "reader" in kind.senders}
    for frames in mutants(codec, seeds, count, seed):
        kind = _legal_kind(codec, frames)
        if frames and kind != Reserve.kind and (may_change or not kind or kind in reads):
            yield frames


def _legal_kind(codec: Codec, frames: list[bytes]) -> str:
    try:
        return codec.decode(frames).message.kind
    except RemoteProtocolError:
        return ""


def attack(folder: Path, keys: bool, count: int) -> None:
    """Fire ``count`` mutants at a server and half as many at its coordinator."""
    victim = Victim(folder, keys)
    codec = Codec(victim.cluster_id)
    try:
        for address, probe, share in ((victim.server, Stats(), 1), (victim.coordinator, Status(), 2)):
            hostile = Hostile(address, codec, victim.reader)
            held: dict[str, int] = {}
            for number, frames in enumerate(hostile_frames(codec, count // share, 7, may_change=keys)):
                hostile.send(frames)
                if number == WARM_UP:
                    held = victim.held_bytes()
            hostile.send([bytes(frame) for frame in codec.encode(9, probe)])
            hostile.read()
            for name, now in victim.held_bytes().items():
                assert now - held[name] < GROWTH_BYTES_MAX, f"{name} grew by {now - held[name]:,} bytes"
            hostile.close()
        assert float(victim.finish().split()[4]) < SERVED_S
    finally:
        victim.command.clean_up()


@pytest.mark.parametrize("keys", [False, True], ids=["a stranger on loopback", "a reader's key"])
def test_mutants_change_nothing_in_a_live_cluster(tmp_path: Path, keys: bool) -> None:
    attack(tmp_path, keys, 2_000)


@pytest.mark.soak
@pytest.mark.parametrize("keys", [False, True], ids=["a stranger on loopback", "a reader's key"])
def test_a_hundred_thousand_mutants_change_nothing(tmp_path: Path, keys: bool) -> None:
    attack(tmp_path, keys, 100_000)
