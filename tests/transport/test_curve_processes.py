"""A launched cluster with keys: permissions of the roles, and places where no secret may ever stand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq

from pslib.client.endpoint import Endpoint
from pslib.clock import SystemClock
from pslib.cluster import watch
from pslib.config import Timing
from pslib.errors import AccessError, PslibError, RemoteProtocolError
from pslib.transport import Keys, ZmqTransport
from pslib.transport.curve import encrypt_client
from pslib.transport.keys import make_keys, read_folder, write_keys
from pslib.wire.codec import PROTOCOL_VERSION, Codec
from pslib.wire.fields import Message
from pslib.wire.messages import ALL_MESSAGES, Pull, Pulled, Result, Stats, Status
from tests.support.messages import example
from tests.support.processes.command import Command
from tests.support.waiting import PATIENCE, PATIENCE_S

NAMED_S = 3.0
SCRIPT = """\
import json, os, sys, time
import numpy as np
import pslib

with pslib.connect() as cluster:
    client = cluster.client
    client.setup([pslib.TableSpec("item", (pslib.PartSpec("v", 2),))])
    keys = np.arange(100, dtype=np.uint64)
    client.push({"item": (keys, np.ones((100, 2), np.float32))}).wait()
    place = [client.member.coordinator, client.servers[0], os.environ["PSLIB_CLUSTER_ID"]]
    print("ready " + json.dumps(place))
    while not os.path.exists("over"):
        client.pull({"item": keys}).wait()
        time.sleep(0.01)
    client.save_files("out/saved", "file")
    print("environment", dict(os.environ), client.joined, cluster.status())
"""


@dataclass
class Launched:
    """A running cluster with keys, and where it is."""

    command: Command
    keys: dict[str, Keys]
    coordinator: str
    server: str
    cluster_id: str


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("launched")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "out").mkdir()
    write_keys(folder / "keys", make_keys())
    command = Command(folder, "launch", "--keys", "keys", "--out", "out", "--quiet", "script.py")
    try:
        command.wait_for("ready ", 40)
        place = json.loads(command.lines("ready ")[0].partition("ready ")[2])
        yield Launched(command, read_folder(folder / "keys"), *place)
    finally:
        command.clean_up()


def ask(address: str, cluster_id: str, keys: Keys | None, message: Message) -> tuple[Any, float]:
    """The answer, or the error in its place; and seconds."""
    transport = ZmqTransport(keys=keys)
    endpoint = Endpoint(transport.connect(), Codec(cluster_id), Timing(), SystemClock(), 1)
    started_s = time.monotonic()
    try:
        return endpoint.ask(address, message).wait(10), time.monotonic() - started_s
    except PslibError as error:
        return error, time.monotonic() - started_s
    finally:
        endpoint.close()
        transport.close()


def test_a_reader_sees_and_changes_nothing(launched: Launched) -> None:
    reader, server = launched.keys["reader"], launched.server
    pull = Pull({"item": np.arange(3, dtype=np.uint64)}, np.empty(0, np.uint32))
    rows = ask(server, launched.cluster_id, reader, pull)[0]
    assert isinstance(rows, Pulled)
    before = ask(server, launched.cluster_id, reader, Stats())[0]
    assert isinstance(before, Result)
    assert before.values["rows"] == 100
    for kind in ("Push", "Erase", "Setup", "Save", "CheckLoad", "Load", "Release", "Adopt", "Maintain"):
        error, _seconds = ask(server, launched.cluster_id, reader, example(ALL_MESSAGES[kind]))
        assert isinstance(error, AccessError), (kind, error)
        assert f"{kind} is for " in str(error)
        assert "this key is a reader's" in str(error)
    after = ask(server, launched.cluster_id, reader, Stats())[0]
    assert (after.values["rows"], after.values["pushes_applied"]) == (100, before.values["pushes_applied"])


def test_a_reader_watches_and_can_not_stop(launched: Launched) -> None:
    watcher = watch(launched.coordinator, launched.cluster_id, launched.keys["reader"])
    try:
        assert watcher.status(PATIENCE_S)["servers"] == 1
        with pytest.raises(AccessError, match="Stop is for server or admin; this key is a reader's"):
            watcher.stop("enough")
    finally:
        watcher.close()


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("nobody's", "it is encrypted and this process has no key"),
        ("a stranger's", "it refused this key: it knows no such trainer"),
        ("another cluster's", "it has another server key"),
    ],
)
@pytest.mark.parametrize("at", ["coordinator", "server"])
def test_a_process_without_a_key_of_this_cluster_hears_why_within_three_seconds(
    launched: Launched, at: str, whose: str, said: str
) -> None:
    other = make_keys()["trainer"]
    keys = {
        "nobody's": None,
        "a stranger's": replace(other, server_public=launched.keys["trainer"].server_public),
        "another cluster's": other,
    }[whose]
    address = getattr(launched, at)
    error, seconds = ask(address, launched.cluster_id, keys, Status() if at == "coordinator" else Stats())
    assert isinstance(error, AccessError)
    assert str(error).startswith(f"{address}: {said}")
    assert "\n" not in str(error)
    assert seconds < PATIENCE * NAMED_S


@pytest.mark.parametrize("at", ["coordinator", "server"])
def test_another_cluster_id_is_refused_in_one_line(launched: Launched, at: str) -> None:
    address = getattr(launched, at)
    error, seconds = ask(address, "another", launched.keys["trainer"], Status())
    assert isinstance(error, RemoteProtocolError)
    assert str(error).startswith(f"{address}: cluster id: expected 'another', got")
    assert "\n" not in str(error)
    assert seconds < PATIENCE * NAMED_S


@pytest.mark.parametrize("at", ["coordinator", "server"])
def test_another_protocol_version_is_refused_in_one_line(launched: Launched, at: str) -> None:
    address = getattr(launched, at)
    header = msgpack.packb([PROTOCOL_VERSION + 1, launched.cluster_id, "Status", 7, [], []])
    with zmq.Context() as context, context.socket(zmq.DEALER) as link:
        link.linger = 0
        encrypt_client(link, launched.keys["trainer"])
        link.connect(address)
        link.send(header)
        assert link.poll(int(1000 * PATIENCE_S))
        answer = b"".join(link.recv_multipart())
    expected = f"protocol version: expected {PROTOCOL_VERSION}, got {PROTOCOL_VERSION + 1}; install one pslib"
    assert expected.encode() in answer


def test_a_cluster_with_keys_grows_when_an_admin_says_so(launched: Launched) -> None:
    """Servers send units to each other, with servers' keys."""
    for role, code, text in (
        ("trainer", 64, "Scale is for server or admin; this key is a trainer's"),
        ("admin", 0, "moved 2,080 of 2,080 units"),
    ):
        folder = launched.command.folder
        command = Command(folder, "scale", "--servers", "2", "--keys", f"keys/{role}.keys", "out")
        try:
            assert command.finish(30) == code, command.output
        finally:
            command.clean_up()
        assert text in command.output


def secrets_of(keys: dict[str, Keys]) -> list[bytes]:
    return [one.encode() for own in keys.values() for one in (own.secret, own.server_secret) if one]


def test_no_secret_stands_in_arguments_or_environments(launched: Launched) -> None:
    processes = launched.command.processes()
    assert len(processes) >= 4
    for process in processes:
        for name in ("cmdline", "environ"):
            text = Path(f"/proc/{process.pid}/{name}").read_bytes()
            assert not [one for one in secrets_of(launched.keys) if one in text]


def test_at_the_end_no_secret_stands_in_logs_records_or_files(launched: Launched) -> None:
    """Runs last: it ends the cluster."""
    (launched.command.folder / "over").touch()
    assert launched.command.finish(40) == 0, launched.command.output
    files = [path for path in launched.command.folder.rglob("*") if path.is_file()]
    files = [path for path in files if path.parent.name != "keys"]
    assert {"summary.json", "server-0.log", "trainer-0.log"} <= {path.name for path in files}
    assert any("saved" in path.parts for path in files)
    for path in files:
        content = path.read_bytes()
        assert not [path for one in secrets_of(launched.keys) if one in content]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--insecure-network"], "leave one of them out"),
        ([], "keys/server.keys: No such file or directory"),
    ],
)
def test_keys_that_can_not_be_are_one_line(tmp_path: Path, more: list[str], said: str) -> None:
    (tmp_path / "script.py").touch()
    command = Command(tmp_path, "launch", "--keys", "keys", *more, "script.py")
    assert command.finish(20) == 64
    assert command.output.count("\n") == 1
    assert said in command.output
